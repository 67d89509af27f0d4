"""Segments: old rows, packed. All of it is public.

A segment holds all rows of some steps, a column after the other, compressed. What follows from the row before it in its
stream is not stored: its hash, its cost and what is left. A segment is a row of the ledger's database, so it is
written, and its rows are deleted, in one transaction; backup and restore copy it like any row. Segments have a chain of
their own, whose last digest every seal of the private chain covers:

    digest = SHA-256(digest before | last step | last commit | content).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Integers
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.progress import REMEDY
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

Stored = tuple[int, Row]
"""A row, and the number of its commit."""
_COLUMNS = "last_step, last_commit, content, digest"
# A segment has about so many rows, of at least so many steps: `checkpoint` packs one between two steps.
_ROWS, _FEWEST_STEPS = 2**12, 4


class Segment(NamedTuple):
    """A row of the table `segments`.

    Attributes:
        last_step, last_commit: of its rows; all earlier steps and commits that had rows are in it or before it.
    """

    last_step: int
    last_commit: int
    content: bytes
    digest: bytes

    def next_digest(self, previous: bytes) -> bytes:
        """The digest of this segment after a segment with that digest; empty for the first."""
        numbers = self.last_step.to_bytes(8, "big") + self.last_commit.to_bytes(8, "big")
        return hashlib.sha256(previous + numbers + self.content).digest()


class _Kind(NamedTuple):
    """What is the same for all rows of a design and a period."""

    design: str
    period: int | None
    has_cost: bool
    release_size: int
    inputs_size: int | None


def last_digest(connection: Connection) -> bytes:
    """The digest of the last segment; empty for none."""
    found: Any = connection.execute("SELECT digest FROM segments ORDER BY last_step DESC LIMIT 1").fetchone()
    return bytes(found[0]) if found else b""


def last_packed_step(connection: Connection) -> int:
    """The step up to which all rows are packed, 0 for none."""
    [(step,)] = connection.execute("SELECT ifnull(max(last_step), 0) FROM segments").fetchall()
    return int(step)  # type: ignore[arg-type]


def find_segments(connection: Connection, column: str, least: int) -> Iterator[Segment]:
    """The segments whose `last_step`, or `last_commit`, is at least that, one after the other."""
    query = f"SELECT {_COLUMNS} FROM segments WHERE {column} >= ? ORDER BY {column} LIMIT 1"
    before = "SELECT digest FROM segments WHERE last_step < ? ORDER BY last_step DESC LIMIT 1"
    while found := connection.execute(query, (least,)).fetchall():
        segment = Segment._make(found[0])
        previous: Any = connection.execute(before, (segment.last_step,)).fetchone() or (b"",)
        if segment.digest != segment.next_digest(previous[0]):
            raise LedgerRefused(f"{connection.filename}: packed rows were changed; {REMEDY}")
        yield segment
        least = getattr(segment, column) + 1


def num_packed_steps(num_streams: int) -> int:
    """How many steps a segment covers."""
    return max(_FEWEST_STEPS, _ROWS // num_streams)


def pack_rows(connection: Connection, columns: str, last_step: int, num_streams: int) -> int:
    """Move the oldest rows from their table to a segment, in a transaction that the caller has begun.

    Returns the step after which the next segment can begin. Nothing happens if the rows up to `last_step` make none.
    Which rows move depends on the numbers of steps and commits alone. A segment is made of whole commits, after which
    every commit has later steps. Where streams do not step together there may be none, and the rows stay.
    """
    [(first,)] = connection.execute("SELECT min(step) FROM releases").fetchall()
    end = last_step if first is None else int(first) + num_packed_steps(num_streams) - 1
    if first is None or end > last_step:
        return last_step if first is None else int(first) - 1
    query = f"SELECT commit_number, {columns} FROM releases NOT INDEXED WHERE step <= ? ORDER BY step, stream"
    found: list[Any] = connection.execute(query, (end,)).fetchall()
    rows = [(number, Row._make(row)) for number, *row in found]
    last_commit = max(number for number, _ in rows)
    later = "SELECT 1 FROM releases WHERE commit_number <= ? AND step > ? LIMIT 1"
    if connection.execute(later, (last_commit, end)).fetchall():
        return last_step  # whoever asks for every step would read these rows each time
    segment = Segment(end, last_commit, pack(rows), b"")
    if unpack(segment.content) != rows:
        raise LedgerRefused(f"{connection.filename}: rows do not fit a segment; tell the authors of dpfuse")
    digest = segment.next_digest(last_digest(connection))
    connection.execute(f"INSERT INTO segments ({_COLUMNS}) VALUES (?, ?, ?, ?)", (*segment[:-1], digest))
    connection.execute("DELETE FROM releases WHERE step <= ?", (end,))
    return end


def pack(rows: Iterable[Stored]) -> bytes:
    """The content of a segment."""
    groups: dict[_Kind, list[Stored]] = {}
    for number, row in sorted(rows, key=lambda one: (one[1].stream, one[1].step)):
        groups.setdefault(_kind(row), []).append((number, row))
    return zlib.compress(b"".join(itertools.starmap(_pack_group, groups.items())))


def unpack(content: bytes, stream: str | None = None) -> list[Stored]:
    """The rows of a segment, or of one stream of it, sorted by step and stream."""
    reader, rows = _Reader(zlib.decompress(content)), list[Stored]()
    while reader.is_left:
        rows += _unpack_group(reader, stream)
    return sorted(rows, key=lambda one: (one[1].step, one[1].stream))


def _kind(row: Row) -> _Kind:
    inputs = None if row.inputs is None else len(row.inputs)
    return _Kind(row.design, row.period, row.cost is not None, len(row.release), inputs)


def _pack_group(kind: _Kind, rows: Sequence[Stored]) -> bytes:
    own = [row for _, row in rows]
    streams = [(name, len(list(group))) for name, group in itertools.groupby(row.stream for row in own)]
    weights = np.array([row.fusion_weight for row in own], np.int64)
    numbers = np.array([number for number, _ in rows], np.int64)
    columns = [np.array([row.step for row in own], np.int64), numbers, weights]
    factor = 0
    if kind.has_cost:
        costs, left = (np.array([getattr(row, name) for row in own], np.int64) for name in ("cost", "budget_left"))
        paid = np.flatnonzero(weights)
        factor = int(costs[paid[0]]) // int(weights[paid[0]]) ** 2 if len(paid) else 0
        columns += [costs - factor * weights**2, _differences(left) + costs]
    previous = [None, *own[:-1]]
    follows = [
        one is not None and one.stream == row.stream and row == Row.after(one.hash, *row[:-1])
        for one, row in zip(previous, own, strict=True)
    ]
    hashes = b"".join(row.hash for row, is_next in zip(own, follows, strict=True) if not is_next)
    columns[:2] = map(_differences, columns[:2])
    release = _zigzag(np.frombuffer(b"".join(row.release for row in own), "<i8").astype(np.int64))
    header = json.dumps({"kind": kind, "streams": streams, "factor": factor}).encode()
    parts = [
        header,
        b"".join(_planes(_zigzag(column), 8) for column in columns),
        _planes(release, kind.release_size),
        _planes(np.frombuffer(b"".join(row.inputs or b"" for row in own), np.uint8), kind.inputs_size or 0),
        np.array(follows, np.uint8).tobytes(),
        hashes,
    ]
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


class _Reader:
    """Takes one part after the other."""

    def __init__(self, content: bytes) -> None:
        self._left = memoryview(content)

    @property
    def is_left(self) -> bool:
        return len(self._left) > 0

    def take(self) -> bytes:
        size = int.from_bytes(self._left[:8], "big")
        part, self._left = bytes(self._left[8 : 8 + size]), self._left[8 + size :]
        return part


def _unpack_group(reader: _Reader, wanted: str | None) -> Iterator[Stored]:
    header = json.loads(reader.take())
    design, period, has_cost, release_size, inputs_size = _Kind._make(header["kind"])
    num_rows = sum(count for _, count in header["streams"])
    columns = reader.take()
    size = 8 * num_rows
    steps, numbers, weights, *amounts = (
        _unzigzag(_from_planes(columns[start : start + size], 8)) for start in range(0, len(columns), size)
    )
    steps, numbers = np.cumsum(steps), np.cumsum(numbers)
    costs, left = [None] * num_rows, [None] * num_rows
    if has_cost:
        paid = amounts[0] + header["factor"] * weights**2
        costs, left = paid.tolist(), np.cumsum(amounts[1] - paid).tolist()
    releases = _unzigzag(_from_planes(reader.take(), release_size)).astype("<i8").tobytes()
    inputs, follows, hashes = _from_planes(reader.take(), inputs_size or 0), reader.take(), reader.take()
    num_hashes = np.cumsum(np.frombuffer(follows, np.uint8) == 0)
    numbers_of, steps_of, weights_of = numbers.tolist(), steps.tolist(), weights.tolist()
    end, previous = 0, b""
    for stream, count in header["streams"]:
        begin, end = end, end + count
        for place in range(begin, end) if wanted in (None, stream) else ():
            release = releases[place * release_size : (place + 1) * release_size]
            read = None if inputs_size is None else inputs[place * inputs_size : (place + 1) * inputs_size]
            content = (stream, steps_of[place], release, weights_of[place], costs[place], left[place])
            row = Row.after(previous, *content, design, period, read)
            if not follows[place]:
                at = 32 * int(num_hashes[place])
                row = row._replace(hash=hashes[at - 32 : at])
            previous = row.hash
            yield numbers_of[place], row


def _differences(values: Integers) -> Integers:
    """What `numpy.cumsum` turns into these values."""
    return np.diff(values, prepend=0)


def _zigzag(values: Integers) -> NDArray[np.uint64]:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ...: the high bytes of small numbers are 0, whatever their sign."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _unzigzag(content: bytes) -> Integers:
    values = np.frombuffer(content, "<i8").astype(np.int64)
    return ((values >> 1) & (2**63 - 1)) ^ -(values & 1)


def _planes(values: NDArray[Any], size: int) -> bytes:
    """All first bytes of entries of that size, then all second bytes, ...: what is alike stands together."""
    return values.tobytes() if not size else np.frombuffer(values.tobytes(), np.uint8).reshape(-1, size).T.tobytes()


def _from_planes(content: bytes, size: int) -> bytes:
    """The inverse of `_planes`."""
    return content if not size else np.frombuffer(content, np.uint8).reshape(size, -1).T.tobytes()
