"""Committed rows, their estimates, and the message that publishes a row. All of it is public."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from dpfuse._extras import requires_extra
from dpfuse.errors import ReleaseRefused
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.release import Release
from dpfuse.public_inputs import NEVER, PACKED_SIZE, pack, unpack

SIGNATURE_SIZE = 64
_ENTRY = np.dtype("<i8")
_LARGEST = float(np.finfo(np.float32).max)
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
DESIGN_ID_LENGTH = 16
"""A row names its design by so many characters of its fingerprint."""
# No finite double has a longer text; that of every finite float32 fits, too.
_LONGEST_NUMBER = -2.2250738585072014e-308
_DESIGN_ID = re.compile(f"([0-9a-f]{{{DESIGN_ID_LENGTH}}})?")


class Row(NamedTuple):
    """A committed release, the only thing that a centre publishes. All fields are public.

    Attributes:
        stream, step: the name of the stream and the step.
        release: Z_k in grid steps, 8 bytes a coordinate, little-endian.
        fusion_weight: G_k in grid steps.
        cost: what the stream was charged, in squared grid steps; None in individual accounting.
        budget_left: what the stream may still spend, in squared grid steps; None in individual accounting.
        design: the first 16 characters of the fingerprint of the design that made it; empty in rows of ledgers that
            were written before rows named it.
        period: the number of the period, see `Guarantee.period_at`; None without periods.
        inputs: the public inputs that E reads with this release, see `dpfuse.public_inputs.pack`; None for a design
            that reads none.
        hash: SHA-256 of this row and the hash of the row before it in its stream.
    """

    stream: str
    step: int
    release: bytes
    fusion_weight: int
    cost: int | None
    budget_left: int | None
    design: str
    period: int | None
    inputs: bytes | None
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
        design: str = "",
        period: int | None = None,
        inputs: bytes | None = None,
    ) -> Row:
        """The row that follows the row with the hash `previous`."""
        content = _content(stream, step, release, fusion_weight, cost, budget_left, design, period, inputs)
        digest = hashlib.sha256(previous + content).digest()
        return cls(stream, step, release, fusion_weight, cost, budget_left, design, period, inputs, digest)

    @property
    def content(self) -> bytes:
        """All fields but the hash, as hash and signature cover them."""
        return _content(*self[:-1])

    def to_release(self) -> Release:
        """The release, as estimators read it."""
        return Release(np.frombuffer(self.release, _ENTRY).astype(np.int64), self.fusion_weight, self.budget_left)

    def to_dict(self) -> dict[str, Any]:
        """The row as the release message holds it: the release as whole numbers, the grid, the hash in hex.

        It names the period if there is one, and has the public inputs if the design reads some: a value, null before
        the first one, and its age in steps.
        """
        return {
            "stream": self.stream,
            "step": self.step,
            "release": np.frombuffer(self.release, _ENTRY).tolist(),
            "fusion_weight": self.fusion_weight,
            "grid": GRID,
            "cost": self.cost,
            "budget_left": self.budget_left,
            "design": self.design,
            **({} if self.period is None else {"period": self.period}),
            **({} if self.inputs is None else _inputs_to_dict(self.inputs)),
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


def _content(
    stream: str,
    step: int,
    release: bytes,
    fusion_weight: int,
    cost: int | None,
    budget_left: int | None,
    design: str,
    period: int | None,
    inputs: bytes | None,
) -> bytes:
    # A JSON list, written by hand: json.dumps takes three times as long, for every row of every step.
    amounts = f"{fusion_weight},{_or_null(cost)},{_or_null(budget_left)}"
    made_by = f',"{design}"' if design else ""
    made_in = "" if period is None else f',{{"period":{period}}}'
    read = "" if inputs is None else f',{{"inputs":"{inputs.hex()}"}}'
    return f'[{_quoted(stream)},{step},"{release.hex()}",{amounts}{made_by}{made_in}{read}]'.encode()


@functools.lru_cache(maxsize=2**16)
def _quoted(stream: str) -> str:
    return json.dumps(stream)


def _or_null(amount: int | None) -> int | str:
    return "null" if amount is None else amount


def to_bytes(release: Release) -> bytes:
    """Z_k as a row stores it."""
    return release.value.astype(_ENTRY, copy=False).tobytes()


def _inputs_to_dict(packed: bytes) -> dict[str, Any]:
    values, ages = np.split(unpack(packed), 2)
    known = [None if math.isnan(value) else value for value in values.tolist()]
    return {"inputs": known, "input_ages": ages.astype(int).tolist()}


def read_row(release: Mapping[str, Any], dimension: int, horizon: int | None, num_public: int = 0) -> Row:
    """The row in a release message; `ReleaseRefused` for one that cannot be of such a design.

    Args:
        dimension, horizon, num_public: of the design's structure.
    """
    if not isinstance(release, Mapping):
        raise ReleaseRefused(f"a release must be a mapping, got {type(release).__name__}")
    stream, step, value = release.get("stream"), release.get("step"), release.get("release")
    if not isinstance(stream, str) or not stream or len(stream) > 1000:
        raise ReleaseRefused("stream must be a name of 1 to 1000 characters; this is not a release")
    if not _is_whole(step, 1) or (horizon is not None and step > horizon):
        raise ReleaseRefused(f"step must be a whole number from 1 to {horizon or '2^63 - 1'}; is this another design?")
    if not isinstance(value, list | tuple) or len(value) != dimension or not all(map(_is_int64, value)):
        raise ReleaseRefused(f"release must be {dimension} whole numbers of 64 bits; is this another design?")
    if not _is_whole(weight := release.get("fusion_weight"), 0):
        raise ReleaseRefused("fusion_weight must be a whole number of grid steps, 0 or more")
    if release.get("grid", GRID) != GRID:
        raise ReleaseRefused(f"grid must be {GRID} steps to a standard deviation of the noise; this is another version")
    cost, left = release.get("cost"), release.get("budget_left")
    if not all(each is None or _is_whole(each, 0) for each in (cost, left)):
        raise ReleaseRefused("cost and budget_left must be whole numbers, 0 or more, or null")
    if (period := release.get("period")) is not None and not _is_whole(period, 0):
        raise ReleaseRefused("period must be a whole number, 0 or more, or missing")
    design = release.get("design", "")
    if not isinstance(design, str) or not _DESIGN_ID.fullmatch(design):
        raise ReleaseRefused("design must be 16 hexadecimal digits, or empty")
    inputs, digest = _read_inputs(release, num_public), _read_hash(release)
    return Row(stream, step, np.array(value, "<i8").tobytes(), weight, cost, left, design, period, inputs, digest)


def _read_hash(release: Mapping[str, Any]) -> bytes:
    try:
        digest = bytes.fromhex(release["hash"])
    except (KeyError, TypeError, ValueError):
        digest = b""
    if len(digest) != 32:
        raise ReleaseRefused("hash must be 64 hexadecimal digits")
    return digest


def _read_inputs(release: Mapping[str, Any], num_public: int) -> bytes | None:
    """The public inputs in a release message, packed; None for a design without any."""
    values, ages = release.get("inputs"), release.get("input_ages")
    if not num_public and values is None and ages is None:
        return None
    if not num_public or not _has_entries(values, num_public) or not _has_entries(ages, num_public):
        raise ReleaseRefused(f"inputs and input_ages must have {num_public} entries each; is this another design?")
    if not all(type(age) is int and 0 <= age <= NEVER for age in ages):
        raise ReleaseRefused(f"input_ages must be whole numbers from 0 to {NEVER}")
    if not all(value is None or _is_float32(value) for value in values):
        raise ReleaseRefused("inputs must be finite numbers of 32 bits, or null")
    if any(value is None and age < NEVER for value, age in zip(values, ages, strict=True)):
        raise ReleaseRefused(f"input_ages must be {NEVER} for an input that is null")
    return pack([*(math.nan if value is None else value for value in values), *ages])


def _has_entries(value: Any, number: int) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple) and len(value) == number


def _is_float32(value: Any) -> bool:
    if type(value) is int:  # JSON of other programs: 5 for 5.0
        return abs(value) <= 2**24
    return (
        type(value) is float and math.isfinite(value) and abs(value) <= _LARGEST and float(np.float32(value)) == value
    )


def read_any_row(release: Any) -> Row:
    """The row in a message of a design with any number of coordinates and public inputs, and with any end."""
    values = release.get("release") if isinstance(release, Mapping) else None
    if not isinstance(values, list):
        raise ReleaseRefused("release must be whole numbers of 64 bits; is this a centre?")
    inputs = release.get("inputs")
    return read_row(release, len(values), None, len(inputs) if isinstance(inputs, list) else 0)


def is_design_id(value: Any) -> TypeGuard[str]:
    """Whether it can be the name of a design in a row."""
    return isinstance(value, str) and bool(value) and _DESIGN_ID.fullmatch(value) is not None


def _is_whole(value: Any, minimum: int) -> TypeGuard[int]:
    return type(value) is int and minimum <= value <= _INT64_MAX


def _is_int64(value: Any) -> bool:
    return type(value) is int and _INT64_MIN <= value <= _INT64_MAX


class Message(NamedTuple):
    """A release message and its step."""

    step: int
    content: bytes


def release_message(row: Row, signature: bytes | None = None) -> Message:
    """The row as JSON, with the signature if there is one, padded with spaces to the width of its stream."""
    dimension = len(row.release) // _ENTRY.itemsize
    num_public = len(row.inputs or b"") // PACKED_SIZE
    kind = row.cost is not None, signature is not None, row.period is not None, num_public
    width = release_width(row.stream, dimension, *kind)
    return Message(row.step, _to_json(row.to_dict(), signature).ljust(width))


@functools.cache
def release_width(
    stream: str, dimension: int, is_total: bool, is_signed: bool, has_period: bool = False, num_public: int = 0
) -> int:
    """The bytes of every release message of the stream: the length of the longest possible one."""
    amount = _INT64_MAX if is_total else None
    release = np.full(dimension, _INT64_MIN, _ENTRY).tobytes()
    period = _INT64_MAX if has_period else None
    made_by, inputs = "0" * DESIGN_ID_LENGTH, None if not num_public else bytes(PACKED_SIZE * num_public)
    longest = Row(stream, _INT64_MAX, release, _INT64_MAX, amount, amount, made_by, period, inputs, bytes(32))
    numbers = {"inputs": [_LONGEST_NUMBER] * num_public, "input_ages": [NEVER] * num_public} if num_public else {}
    return len(_to_json(longest.to_dict() | numbers, bytes(SIGNATURE_SIZE) if is_signed else None))


def _to_json(row: Mapping[str, Any], signature: bytes | None) -> bytes:
    with requires_extra("live", "a JSON message"):
        import orjson
    signed = {} if signature is None else {"signature": signature.hex()}
    return orjson.dumps({**row, **signed})
