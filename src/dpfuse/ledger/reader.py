"""Read a ledger and check it: every row as it was committed, every budget kept, no commit missing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.head import Head, head_path, read_head
from dpfuse.ledger.store import check_exists, connect, raising_ledger_refused, read_terms
from dpfuse.ledger.terms import Terms, next_tip
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

COLUMNS = ", ".join(Row._fields)
_REMEDY = "put the right one back, never an old copy, or start a new ledger for new sensors"


@dataclass
class StreamCheck:
    """What a check found of one stream. All of it is public.

    Attributes:
        num_rows: rows that were read; a full check reads all.
        last_step: the step of the last row, 0 for none.
        budget_left: in squared grid steps; None in individual accounting.
        last_hash: the hash of the last row.
    """

    num_rows: int
    last_step: int
    budget_left: int | None
    last_hash: bytes

    def add(self, row: Row) -> None:
        """Follow the stream by one row."""
        self.num_rows += 1
        self.last_step, self.budget_left, self.last_hash = row.step, row.budget_left, row.hash


@dataclass
class LedgerCheck:
    """What a check found of a ledger that is in order. All of it is public.

    Attributes:
        terms: what the ledger was created for.
        num_commits: the number of the last commit, 0 before the first.
        tip: stands for all rows ever committed; a copy kept elsewhere shows later whether they were changed.
        streams: by name.
    """

    terms: Terms
    num_commits: int
    tip: bytes
    streams: dict[str, StreamCheck]


def verify(path: str | os.PathLike[str]) -> LedgerCheck:
    """Read and check a whole ledger in SQLite; see `places.verify`."""
    target = Path(path).resolve()
    with _snapshot(target) as (connection, terms, head):
        return check(connection, target, terms, head)


def public_rows(path: str | os.PathLike[str], stream: str | None = None, start: int = 1) -> Iterator[Row]:
    """The public rows of a ledger in SQLite; see `places.public_rows`."""
    target = Path(path).resolve()
    with _snapshot(target) as (connection, terms, _):
        if stream is not None:
            _check.is_one_of("stream", stream, terms.streams)
        query = f"SELECT {COLUMNS} FROM releases WHERE step >= ? AND stream = ifnull(?, stream) ORDER BY step, stream"
        yield from map(Row._make, connection.execute(query, (start, stream)))


@contextmanager
def _snapshot(path: Path) -> Iterator[tuple[Connection, Terms, Head]]:
    """The ledger at one moment. The head is read first: the database then holds the commit that it names."""
    with raising_ledger_refused(path):
        check_exists(path)
        head = read_head(head_path(path))
        with closing(connect(path, read_only=True)) as connection:
            connection.execute("BEGIN")
            yield connection, read_terms(connection, path), head


def check(connection: Connection, path: Path, terms: Terms, head: Head, *, is_full: bool = True) -> LedgerCheck:
    """Check a ledger in SQLite by `check_rows`; a full check also reads every page of the file."""
    if is_full and connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise LedgerRefused(f"{path} is damaged; {_REMEDY}")
    return check_rows(connection, path, terms, head, is_full=is_full, spent=_spent(connection, path, terms))


def _spent(connection: Connection, path: Path, terms: Terms) -> Iterator[int]:
    """What each sensor has spent; read only when the first value is asked for. Private."""
    yield from Balances.read(connection, path, terms.mechanism.budget).spent().values()


class Readable(Protocol):
    """A database with the tables of a ledger; `?` stands for a value."""

    def execute(self, query: str, values: tuple[Any, ...] = (), /) -> Any: ...


def check_rows(
    connection: Readable,
    path: object,
    terms: Terms,
    head: Head,
    *,
    is_full: bool = True,
    spent: Iterable[int],
) -> LedgerCheck:
    """Check the rows and accounts of a ledger in any database.

    Args:
        path: the name of the ledger in messages.
        head: the last commit that the ledger must hold.
        is_full: check the accounts and every row. False checks the rows that were committed after the head.
        spent: what each sensor has spent; read by a full check.
    """
    if head.ledger_id != terms.ledger_id:
        raise LedgerRefused(f"{path} has the head file of another ledger; {_REMEDY}")
    if is_full:
        _check_accounts(connection, path, terms, spent)
        found = _at_start(terms)
    else:
        found = _at_head(connection, terms, head)
    tip_at_head = found.tip if found.num_commits == head.number else None
    for number, tip, rows in _commits(connection, path, found.num_commits):
        if number != found.num_commits + 1:
            raise LedgerRefused(f"{path}: commit {found.num_commits + 1} is missing; {_REMEDY}")
        for row in rows:
            _check_row(found, row, path)
            found.streams[row.stream].add(row)
        found.num_commits, found.tip = number, next_tip(found.tip, number, rows)
        if found.tip != tip:
            raise LedgerRefused(f"{path}: a row of commit {number} is missing, was added or moved; {_REMEDY}")
        if number == head.number:
            tip_at_head = tip
    if tip_at_head != head.tip:
        raise LedgerRefused(
            f"{path} does not hold the commit {head.number} that its head file names: it was rolled back, cut short or "
            f"replaced; {_REMEDY}"
        )
    return found


def _check_accounts(connection: Readable, path: object, terms: Terms, spent: Iterable[int]) -> None:
    """Check that every account is within the budget, and that their sum is the sum of all debits."""
    budget, total = terms.mechanism.budget, 0
    for amount in spent:
        if not 0 <= amount <= budget:
            raise LedgerRefused(f"{path}: an account exceeds the budget; {_REMEDY}")
        total += amount
    if total != sum(int(debited) for (debited,) in connection.execute("SELECT debited FROM commits")):
        raise LedgerRefused(f"{path}: the accounts do not add up to what was debited; {_REMEDY}")


def _at_start(terms: Terms) -> LedgerCheck:
    """A ledger without a commit."""
    budget = terms.mechanism.budget if terms.is_total else None
    streams = {name: StreamCheck(0, 0, budget, terms.first_hash(name)) for name in terms.streams}
    return LedgerCheck(terms, 0, terms.first_tip, streams)


def _at_head(connection: Readable, terms: Terms, head: Head) -> LedgerCheck:
    """The ledger at the commit that the head names, from each stream's last row alone."""
    found = _at_start(terms)
    commit = connection.execute("SELECT tip FROM commits WHERE number = ?", (head.number,)).fetchone()
    if commit is None:
        return found  # all commits are read then, and the missing one is noticed
    found.num_commits, found.tip = head.number, commit[0]
    query = f"SELECT {COLUMNS} FROM releases WHERE stream = ? AND commit_number <= ? ORDER BY step DESC LIMIT 1"
    for name in terms.streams:
        for row in map(Row._make, connection.execute(query, (name, head.number))):
            found.streams[name] = StreamCheck(0, row.step, row.budget_left, row.hash)
    return found


def _commits(connection: Readable, path: object, after: int) -> Iterator[tuple[int, bytes, list[Row]]]:
    """The number, tip and rows of each commit after that one."""
    query = f"SELECT commit_number, {COLUMNS} FROM releases WHERE commit_number > ? ORDER BY commit_number, stream"
    grouped = itertools.groupby(connection.execute(query, (after,)), key=lambda row: row[0])
    pending = next(grouped, None)
    for number, tip in connection.execute("SELECT number, tip FROM commits WHERE number > ? ORDER BY number", (after,)):
        rows: Iterable[tuple[object, ...]] = ()
        if pending is not None and pending[0] == number:
            rows = list(pending[1])
            pending = next(grouped, None)
        yield number, tip, [Row._make(row[1:]) for row in rows]
    if pending is not None:
        raise LedgerRefused(f"{path}: a row belongs to no commit; {_REMEDY}")


def _check_row(found: LedgerCheck, row: Row, path: object) -> None:
    """Check that the row follows from the rows before it."""
    terms, stream = found.terms, found.streams.get(row.stream)
    if stream is None:
        raise LedgerRefused(f"{path}: a row names stream {row.stream!r}, which is not in the ledger; {_REMEDY}")
    if row.step <= stream.last_step or row != Row.after(stream.last_hash, *row[:-1]):
        raise LedgerRefused(
            f"{path}: step {row.step} of stream {row.stream!r} was changed, or one before it is missing; {_REMEDY}"
        )
    cost, left = None, None
    if terms.is_total:
        assert stream.budget_left is not None  # total accounting, see `_at_start`
        cost = terms.mechanism.factor * row.fusion_weight**2
        left = stream.budget_left - cost
    is_of_design = len(row.release) == 8 * terms.dimension and row.step <= (terms.horizon or row.step)
    if not is_of_design or (row.cost, row.budget_left) != (cost, left) or (left is not None and left < 0):
        raise LedgerRefused(
            f"{path}: step {row.step} of stream {row.stream!r} does not have the size or cost of its design; {_REMEDY}"
        )
