"""Committed rows, their estimates, and the message that publishes a row. All of it is public."""

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
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class Row(NamedTuple):
    """A committed release, the only thing that a centre publishes. All fields are public.

    Attributes:
        stream, step: the name of the stream and the step.
        release: Z_k in grid steps, 8 bytes a coordinate, little-endian.
        fusion_weight: G_k in grid steps.
        cost: what the stream was charged, in squared grid steps; None in individual accounting.
        budget_left: what the stream may still spend, in squared grid steps; None in individual accounting.
        hash: SHA-256 of this row and the hash of the row before it in its stream.
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
        cls,
        previous: bytes,
        stream: str,
        step: int,
        release: bytes,
        fusion_weight: int,
        cost: int | None,
        budget_left: int | None,
    ) -> Row:
        """The row that follows the row with the hash `previous`."""
        # A JSON list, written by hand: json.dumps takes three times as long, for every row of every step.
        amounts = f"{fusion_weight},{_or_null(cost)},{_or_null(budget_left)}"
        content = f'[{_quoted(stream)},{step},"{release.hex()}",{amounts}]'
        digest = hashlib.sha256(previous + content.encode()).digest()
        return cls(stream, step, release, fusion_weight, cost, budget_left, digest)

    def to_release(self) -> Release:
        """The release, as estimators read it."""
        return Release(np.frombuffer(self.release, _ENTRY).astype(np.int64), self.fusion_weight, self.budget_left)

    def to_dict(self) -> dict[str, Any]:
        """The row as the release message holds it: the release as whole numbers, the grid, the hash in hex."""
        return {
            "stream": self.stream,
            "step": self.step,
            "release": np.frombuffer(self.release, _ENTRY).tolist(),
            "fusion_weight": self.fusion_weight,
            "grid": GRID,
            "cost": self.cost,
            "budget_left": self.budget_left,
            "hash": self.hash.hex(),
        }


class Published(NamedTuple):
    """A committed row and the estimate from it and all rows before it.

    Attributes:
        row: the committed row.
        mean, std: one number for each coordinate of the state, in its units.
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
    """Z_k as a row stores it."""
    return release.value.astype(_ENTRY, copy=False).tobytes()


def release_message(row: Row) -> bytes:
    """The row as JSON, padded with spaces to the width of its stream."""
    return _to_json(row).ljust(release_width(row.stream, len(row.release) // _ENTRY.itemsize, row.cost is not None))


@functools.cache
def release_width(stream: str, dimension: int, is_total: bool) -> int:
    """The bytes of every release message of the stream: the length of the longest possible one."""
    amount = _INT64_MAX if is_total else None
    release = np.full(dimension, _INT64_MIN, _ENTRY).tobytes()
    return len(_to_json(Row(stream, _INT64_MAX, release, _INT64_MAX, amount, amount, bytes(32))))


def _to_json(row: Row) -> bytes:
    with requires_extra("live", "a JSON message"):
        import orjson
    return orjson.dumps(row.to_dict())
