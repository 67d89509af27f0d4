"""Reading a ledger from end to end: is every row as it was committed, does the budget hold, how far has it come?"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.head import Head, head_path, read_head
from dpfuse.ledger.store import check_there, connect, read_terms, refusals
from dpfuse.ledger.terms import Terms, next_tip
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

COLUMNS = ", ".join(Row._fields)
_REMEDY = "put the right one back, never an old copy, or start a new ledger for new sensors"


@dataclass
class StreamStory:
    """How far a stream has come; public.

    Attributes:
        num_rows: releases that were read, by a full audit all of them.
        last_step: the step of the last one, 0 for none.
        budget_left: in squared grid steps; None in individual accounting.
        last_hash: where its chain has come to.
    """

    num_rows: int
    last_step: int
    budget_left: int | None
    last_hash: bytes


@dataclass
class Audit:
    """A ledger that was read and found right; public.

    Attributes:
        terms: what it is bound to.
        number: commits so far.
        tip: stands for everything that was ever released; write it down to find it again.
        streams: by name.
    """

    terms: Terms
    number: int
    tip: bytes
    streams: dict[str, StreamStory]


def verify(path: str | os.PathLike[str]) -> Audit:
    """Read the whole ledger, also while its writer is at work.

    Raises:
        LedgerRefused: if a row was changed, added, moved or is missing, if the ledger is behind its head file, if a
            budget was passed, or if accounts do not add up to what was debited.
    """
    target = Path(path).resolve()
    with _snapshot(target) as (connection, terms, head):
        return check(connection, target, terms, head)


def public_rows(path: str | os.PathLike[str], stream: str | None = None, start: int = 1) -> Iterator[Row]:
    """The rows from step `start` on, by step, as they may be handed to anybody; of one stream, or of all."""
    target = Path(path).resolve()
    with _snapshot(target) as (connection, terms, _):
        if stream is not None:
            _check.is_one_of("stream", stream, terms.streams)
        query = f"SELECT {COLUMNS} FROM releases WHERE step >= ? AND stream = ifnull(?, stream) ORDER BY step, stream"
        yield from map(Row._make, connection.execute(query, (start, stream)))


@contextmanager
def _snapshot(path: Path) -> Iterator[tuple[Connection, Terms, Head]]:
    """A ledger as it stands at one moment. The head is read first: what is committed meanwhile is ahead of it."""
    with refusals(path):
        check_there(path)
        head = read_head(head_path(path))
        connection = connect(path, read_only=True)
        try:
            connection.execute("BEGIN")
            yield connection, read_terms(connection, path), head
        finally:
            connection.close()


def check(connection: Connection, path: Path, terms: Terms, head: Head, *, is_full: bool = True) -> Audit:
    """The audit of a file, in full, or of what was committed after the head was written."""
    if is_full:
        _check_file(connection, path)
    return check_rows(connection, path, terms, head, is_full=is_full, spent=_spent(connection, path, terms))


def _spent(connection: Connection, path: Path, terms: Terms) -> Iterator[int]:
    """What each sensor has spent. Private."""
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
) -> Audit:
    """The audit of what a ledger holds, in whatever database.

    Args:
        path: what messages call it.
        spent: by each sensor, looked at if the audit is full.
    """
    if head.ledger_id != terms.ledger_id:
        raise LedgerRefused(f"{path} has the head file of another ledger; {_REMEDY}")
    if is_full:
        _check_accounts(connection, path, terms, spent)
        audit = _at_start(terms)
    else:
        audit = _at_head(connection, terms, head)
    tip_at_head = audit.tip if audit.number == head.number else None
    for number, tip, rows in _commits(connection, path, audit.number):
        if number != audit.number + 1:
            raise LedgerRefused(f"{path}: commit {audit.number + 1} is missing; {_REMEDY}")
        for row in rows:
            _follow(audit, row, path)
        audit.number, audit.tip = number, next_tip(audit.tip, number, rows)
        if audit.tip != tip:
            raise LedgerRefused(f"{path}: a row of commit {number} is missing, was added or moved; {_REMEDY}")
        if number == head.number:
            tip_at_head = tip
    if tip_at_head != head.tip:
        raise LedgerRefused(
            f"{path} does not hold the commit {head.number} that its head file names: it was rolled back, cut short or "
            f"replaced; {_REMEDY}"
        )
    return audit


def _check_file(connection: Connection, path: Path) -> None:
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise LedgerRefused(f"{path} is damaged; {_REMEDY}")


def _check_accounts(connection: Readable, path: object, terms: Terms, spent: Iterable[int]) -> None:
    """Every account is within the budget, and together they hold every debit. No message shows one."""
    budget, total = terms.mechanism.budget, 0
    for amount in spent:
        if not 0 <= amount <= budget:
            raise LedgerRefused(f"{path}: an account passed the budget; {_REMEDY}")
        total += amount
    if total != sum(int(debited) for (debited,) in connection.execute("SELECT debited FROM commits")):
        raise LedgerRefused(f"{path}: the accounts do not add up to what was debited; {_REMEDY}")


def _at_start(terms: Terms) -> Audit:
    budget = terms.mechanism.budget if terms.is_total else None
    streams = {name: StreamStory(0, 0, budget, terms.first_hash(name)) for name in terms.streams}
    return Audit(terms, 0, terms.first_tip, streams)


def _at_head(connection: Readable, terms: Terms, head: Head) -> Audit:
    """The audit as it was when the head was written, taken from the last rows alone."""
    audit = _at_start(terms)
    found = connection.execute("SELECT tip FROM commits WHERE number = ?", (head.number,)).fetchone()
    if found is None:
        return audit  # no such commit: all is read, and the head is not found
    audit.number, audit.tip = head.number, found[0]
    query = f"SELECT {COLUMNS} FROM releases WHERE stream = ? AND commit_number <= ? ORDER BY step DESC LIMIT 1"
    for name, story in audit.streams.items():
        for row in map(Row._make, connection.execute(query, (name, head.number))):
            story.last_step, story.budget_left, story.last_hash = row.step, row.budget_left, row.hash
    return audit


def _commits(connection: Readable, path: object, after: int) -> Iterator[tuple[int, bytes, list[Row]]]:
    """Each commit's number, tip and rows."""
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


def _follow(audit: Audit, row: Row, path: object) -> None:
    """Take a row into the audit, if it follows from those before it."""
    terms, story = audit.terms, audit.streams.get(row.stream)
    if story is None:
        raise LedgerRefused(f"{path}: a row is of stream {row.stream!r}, which the ledger has not; {_REMEDY}")
    if row.step <= story.last_step or row != Row.after(story.last_hash, *row[:-1]):
        raise LedgerRefused(
            f"{path}: step {row.step} of stream {row.stream!r} was changed, or one before it is missing; {_REMEDY}"
        )
    cost, left = None, None
    if terms.is_total:
        assert story.budget_left is not None  # total accounting, see `_at_start`
        cost = terms.mechanism.factor * row.fusion_weight**2
        left = story.budget_left - cost
    is_due = len(row.release) == 8 * terms.dimension and row.step <= (terms.horizon or row.step)
    if not is_due or (row.cost, row.budget_left) != (cost, left) or (left is not None and left < 0):
        raise LedgerRefused(
            f"{path}: step {row.step} of stream {row.stream!r} has another size or cost than its design; {_REMEDY}"
        )
    story.num_rows, story.last_step, story.budget_left, story.last_hash = story.num_rows + 1, row.step, left, row.hash
