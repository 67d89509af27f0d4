"""The rows of a ledger as they are stored, read in pages.

Each page is one short read. SQLite cannot begin its log anew while somebody reads, so a single read of all rows would
let the log grow for as long as it takes. Rows are never changed, so pages that are read one after the other are a
state of the ledger at one moment: that of the last commit which the reader names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.progress import REMEDY
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

COLUMNS = ", ".join(Row._fields)
_PAGE_ROWS, _PAGE_COMMITS = 1000, 16
# The index by commit would return the rows of all steps, to be sorted.
_BY_STEP = f"""SELECT {COLUMNS} FROM releases NOT INDEXED WHERE (step, stream) > (?, ?)
    AND stream = ifnull(?, stream) AND commit_number <= ? ORDER BY step, stream LIMIT {_PAGE_ROWS}"""
_COMMITS = f"SELECT number, tip FROM commits WHERE number > ? AND number <= ? ORDER BY number LIMIT {_PAGE_COMMITS}"
_BY_COMMIT = f"""SELECT commit_number, {COLUMNS} FROM releases WHERE commit_number > ? AND commit_number <= ?
    ORDER BY commit_number, stream"""


def row_pages(connection: Connection, start: int, last_commit: int, stream: str | None = None) -> Iterator[list[Row]]:
    """The rows of one stream, or of all, from step `start` on, sorted by step, that were committed by `last_commit`."""
    place = (start, "")
    while page := [Row._make(row) for row in connection.execute(_BY_STEP, (*place, stream, last_commit))]:
        place = (page[-1].step, page[-1].stream)
        yield page


def commits(connection: Connection, path: Path, after: int, last: int) -> Iterator[tuple[int, bytes, list[Row]]]:
    """The number, tip and rows of each commit after that one and up to the last one."""
    while page := _all(connection, _COMMITS, after, last):
        rows = _all(connection, _BY_COMMIT, after, page[-1][0])
        by_commit = {number: list(group) for number, group in itertools.groupby(rows, key=lambda row: row[0])}
        for number, tip in page:
            yield number, tip, [Row._make(row[1:]) for row in by_commit.pop(number, ())]
        if by_commit:
            raise LedgerRefused(f"{path}: a row belongs to no commit; {REMEDY}")
        after = page[-1][0]


def check_places(connection: Connection, path: Path, last_commit: int, *, is_full: bool) -> None:
    """Refuse rows that belong to no commit, so that `commits` would not read them.

    Args:
        is_full: count the rows, too. Then a damaged index hides none.
    """
    if _all(connection, "SELECT 1 FROM releases WHERE commit_number < 1 OR commit_number > ? LIMIT 1", last_commit):
        raise LedgerRefused(f"{path}: a row belongs to no commit; {REMEDY}")
    if is_full:
        counts = "(SELECT count(*) FROM releases NOT INDEXED), (SELECT count(*) FROM releases INDEXED BY {})"
        [(stored, indexed)] = _all(connection, f"SELECT {counts.format('releases_by_commit')}")
        if stored != indexed:
            raise LedgerRefused(f"{path} is damaged; {REMEDY}")


def _all(connection: Connection, query: str, *values: object) -> list[Any]:
    return connection.execute(query, values).fetchall()
