"""Committed rows, their estimates, and the message in which a row leaves the building; all of it is public."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any, NamedTuple

import numpy as np

from dpfuse._extras import requires_extra
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.release import Release

_ENTRY = np.dtype("<i8")
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class Row(NamedTuple):
    """A committed release: the only thing that may be published. All of it is public.

    Attributes:
        stream, step: which one it is.
        release: Z_k, as 8 bytes a coordinate, little-endian, in grid steps.
        fusion_weight: G_k in grid steps.
        cost: what the stream was charged, in squared grid steps; None in individual accounting.
        budget_left: what the stream may still spend; None in individual accounting.
        hash: of this row and all before it in its stream.
    """

    stream: str
    step: int
    release: bytes
    fusion_weight: int
    cost: int | None
    budget_left: int | None
    hash: bytes

    @classmethod
    def after(
        cls, previous: bytes, stream: str, step: int, release: bytes, weight: int, cost: int | None, left: int | None
    ) -> Row:
        """The row that follows the one with the hash `previous`."""
        # A JSON list, written out: json.dumps would take three times as long, for every row of every step.
        amounts = f"{weight},{_or_null(cost)},{_or_null(left)}"
        content = f'[{_quoted(stream)},{step},"{release.hex()}",{amounts}]'
        digest = hashlib.sha256(previous + content.encode()).digest()
        return cls(stream, step, release, weight, cost, left, digest)

    def to_release(self) -> Release:
        """The release, to estimate from."""
        return Release(np.frombuffer(self.release, _ENTRY).astype(np.int64), self.fusion_weight, self.budget_left)

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON takes it: Z_k as whole numbers, the hash in hex."""
        value = np.frombuffer(self.release, _ENTRY).tolist()
        return self._asdict() | {"release": value, "hash": self.hash.hex()}


class Published(NamedTuple):
    """What a step has made public.

    Attributes:
        row: the committed row.
        mean, std: what the estimator makes of it and of all before it, in the state's own units.
    """

    row: Row
    mean: tuple[float, ...]
    std: tuple[float, ...]


@functools.lru_cache(maxsize=2**16)
def _quoted(stream: str) -> str:
    return json.dumps(stream)


def _or_null(amount: int | None) -> int | str:
    return "null" if amount is None else amount


def to_bytes(release: Release) -> bytes:
    """Z_k as it is stored."""
    return release.value.astype(_ENTRY, copy=False).tobytes()


def release_message(row: Row) -> bytes:
    """The row as it leaves the building: JSON of fixed width."""
    content = row.to_dict()
    width = release_width(row.stream, len(content["release"]), row.cost is not None)
    return _release_json(content).ljust(width)


@functools.cache
def release_width(stream: str, dimension: int, is_total: bool) -> int:
    """The bytes of every release of that stream: those of the longest that there could be."""
    budget = _HIGHEST if is_total else None
    longest = {"stream": stream, "step": _HIGHEST, "release": [_LOWEST] * dimension, "fusion_weight": _HIGHEST}
    return len(_release_json(longest | {"cost": budget, "budget_left": budget, "hash": "0" * 64}))


def orjson() -> Any:
    """The module orjson, which comes with the extra."""
    with requires_extra("live", "a JSON message"):
        import orjson
    return orjson


def _release_json(content: dict[str, Any]) -> bytes:
    message: bytes = orjson().dumps(
        {
            "stream": content["stream"],
            "step": content["step"],
            "release": content["release"],
            "fusion_weight": content["fusion_weight"],
            "grid": GRID,
            "cost": content["cost"],
            "budget_left": content["budget_left"],
            "hash": content["hash"],
        }
    )
    return message
