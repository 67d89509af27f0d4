"""The rows of a ledger as they are stored, read in pages.

Each page is one short read. SQLite cannot begin its log anew while somebody reads, so a single read of all rows would
let the log grow for as long as it takes. Rows are never changed, so pages that are read one after the other are a
state of the ledger at one moment: that of the last commit which the reader names.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.progress import REMEDY
from dpfuse.ledger.segments import Stored, find_segments, last_packed_step, unpack
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

COLUMNS = ", ".join(Row._fields)
_PAGE_ROWS, _PAGE_COMMITS = 1000, 16
# The index by commit would return the rows of all steps, to be sorted.
_BY_STEP = f"""SELECT {COLUMNS} FROM releases NOT INDEXED WHERE (step, stream) > (?, ?)
    AND stream = ifnull(?, stream) AND commit_number <= ? ORDER BY step, stream LIMIT {_PAGE_ROWS}"""
_ROW = f"SELECT {COLUMNS} FROM releases WHERE stream = ? AND step = ?"
_LAST_ROW = f"SELECT {COLUMNS} FROM releases WHERE stream = ? AND step <= ? ORDER BY step DESC LIMIT 1"
_COMMITS = f"SELECT number, tip FROM commits WHERE number > ? AND number <= ? ORDER BY number LIMIT {_PAGE_COMMITS}"
_BY_COMMIT = f"""SELECT commit_number, {COLUMNS} FROM releases WHERE commit_number > ? AND commit_number <= ?
    ORDER BY commit_number, stream"""
# A segment has rows of several pages of commits.
_unpack = functools.lru_cache(maxsize=2)(unpack)


def row_pages(connection: Connection, start: int, last_commit: int, stream: str | None = None) -> Iterator[list[Row]]:
    """The rows of one stream, or of all, from step `start` on, sorted by step, that were committed by `last_commit`."""
    place = (start, "")
    while True:
        for segment in find_segments(connection, "last_step", place[0]):
            rows = unpack(segment.content, stream)
            yield [row for number, row in rows if (row.step, row.stream) > place and number <= last_commit]
            place = (segment.last_step + 1, "")
        page = [Row._make(row) for row in connection.execute(_BY_STEP, (*place, stream, last_commit))]
        if last_packed_step(connection) >= place[0]:
            continue  # the writer has packed some of these rows meanwhile
        if not page:
            return
        yield page
        place = (page[-1].step, page[-1].stream)


def find_row(connection: Connection, stream: str, step: int) -> Row | None:
    """The row of that step."""
    found = connection.execute(_ROW, (stream, step)).fetchone()
    if found is not None:
        return Row._make(found)
    for segment in find_segments(connection, "last_step", step):
        return _by_place(segment.content).get((stream, step))
    return None


@functools.lru_cache(maxsize=2)
def _by_place(content: bytes) -> dict[tuple[str, int], Row]:
    """Neighbours are looked up one after the other, as when a witness's file is compared."""
    return {(row.stream, row.step): row for _, row in _unpack(content)}


def find_last_row(connection: Connection, stream: str, step: int) -> Row | None:
    """The last row up to that step; it is of an earlier one if a restore has moved the stream on."""
    if row := find_row(connection, stream, step):
        return row
    found = connection.execute(_LAST_ROW, (stream, step)).fetchone()
    if found is not None:
        return Row._make(found)
    earlier = _all(connection, "SELECT last_step FROM segments WHERE last_step < ? ORDER BY last_step DESC", step)
    for least in [step, *(end for (end,) in earlier)]:  # the segment that has the step comes first
        for segment in itertools.islice(find_segments(connection, "last_step", least), 1):
            if rows := [row for _, row in unpack(segment.content, stream) if row.step <= step]:
                return rows[-1]
    return None


def commits(connection: Connection, path: Path, after: int, last: int) -> Iterator[tuple[int, bytes, list[Row]]]:
    """The number, tip and rows of each commit after that one and up to the last one."""
    while page := _all(connection, _COMMITS, after, last):
        end = page[-1][0]
        by_commit: dict[int, dict[str, Row]] = {}
        rows = [(number, Row._make(row)) for number, *row in _all(connection, _BY_COMMIT, after, end)]
        # The table comes first: what the writer packs meanwhile is then found in both.
        for number, row in itertools.chain(rows, _packed_rows(connection, after, end)):
            if by_commit.setdefault(number, {}).setdefault(row.stream, row) != row:
                raise LedgerRefused(f"{path}: a row of commit {number} was added; {REMEDY}")
        for number, tip in page:
            yield number, tip, list(by_commit.pop(number, {}).values())
        if by_commit:
            raise LedgerRefused(f"{path}: a row belongs to no commit; {REMEDY}")
        after = end


def _packed_rows(connection: Connection, after: int, end: int) -> Iterator[Stored]:
    """The rows in segments of each commit after that one and up to the end."""
    for segment in find_segments(connection, "last_commit", after + 1):
        yield from (one for one in _unpack(segment.content) if after < one[0] <= end)
        if segment.last_commit >= end:
            return


def check_places(connection: Connection, path: Path, last_commit: int, *, is_full: bool) -> None:
    """Refuse rows that belong to no commit, so that `commits` would not read them.

    Args:
        is_full: count the rows, too. Then a damaged index hides none.
    """
    stray = "SELECT 1 FROM releases WHERE commit_number < 1 OR commit_number > ? LIMIT 1"
    shadowed = "SELECT 1 FROM releases WHERE step <= (SELECT max(last_step) FROM segments) LIMIT 1"
    if _all(connection, stray, last_commit) or _all(connection, shadowed):
        raise LedgerRefused(f"{path}: a row belongs to no commit; {REMEDY}")
    if is_full:
        counts = "(SELECT count(*) FROM releases NOT INDEXED), (SELECT count(*) FROM releases INDEXED BY {})"
        [(stored, indexed)] = _all(connection, f"SELECT {counts.format('releases_by_commit')}")
        if stored != indexed:
            raise LedgerRefused(f"{path} is damaged; {REMEDY}")


def _all(connection: Connection, query: str, *values: object) -> list[Any]:
    return connection.execute(query, values).fetchall()
