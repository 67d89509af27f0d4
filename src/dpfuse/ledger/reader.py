"""Read a ledger and check it: every row as it was committed, every budget kept, no commit missing."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.events import RESTORE, TERMS, Restored, read_charged_to_all, read_period
from dpfuse.ledger.head import Head, head_path, read_head
from dpfuse.ledger.progress import REMEDY, LedgerCheck
from dpfuse.ledger.seals import follow_private_chain, last_seal, read_streams
from dpfuse.ledger.signed import check_signatures
from dpfuse.ledger.store import check_exists, check_schema, connect, raising_ledger_refused, read_terms, script
from dpfuse.ledger.terms import Terms, next_tip
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

COLUMNS = ", ".join(Row._fields)


def verify(path: str | os.PathLike[str], public_key: str | None = None) -> LedgerCheck:
    """Read and check the whole ledger, also while it is written to.

    Args:
        public_key: of the centre, 64 hex digits, if it is known from elsewhere; otherwise signatures are checked with
            the key that the ledger names.

    Raises:
        LedgerRefused: if a row was changed, added, moved or is missing, if the ledger is behind its head file, if a
            budget was exceeded, if accounts, debits or slices are not those that were committed, if tables or
            triggers were changed, or if a stream is not the one that the centre signed.
    """
    target = Path(path).resolve()
    with _snapshot(target) as (connection, head):
        found = check(connection, target, head)[0]
        found.signed = check_signatures(connection, target, public_key)
    return found


def public_rows(path: str | os.PathLike[str], stream: str | None = None, start: int = 1) -> Iterator[Row]:
    """The public rows of one stream, or of all, from step `start` on and sorted by step."""
    target = Path(path).resolve()
    with _snapshot(target) as (connection, _):
        if stream is not None:
            _check.is_one_of("stream", stream, sorted(read_streams(connection)))
        query = f"SELECT {COLUMNS} FROM releases WHERE step >= ? AND stream = ifnull(?, stream) ORDER BY step, stream"
        yield from map(Row._make, connection.execute(query, (start, stream)))


def check_tip(path: str | os.PathLike[str], tip: bytes) -> None:
    """Refuse a ledger that does not hold the commit with that public tip: it is behind, or another one."""
    with _snapshot(Path(path).resolve()) as (connection, _):
        is_first = read_terms(connection, Path(path), 0).first_tip == tip
        if not is_first and connection.execute("SELECT 1 FROM commits WHERE tip = ?", (tip,)).fetchone() is None:
            raise LedgerRefused(f"{path} does not hold the tip {tip.hex()}: it was rolled back or replaced; {REMEDY}")


def design_fingerprints(path: str | os.PathLike[str]) -> dict[str, str]:
    """The fingerprint of each design that the ledger had, by the id that names it in rows; public."""
    with _snapshot(Path(path).resolve()) as (connection, _):
        contents: list[Any] = connection.execute("SELECT content FROM events WHERE kind = ?", (TERMS,)).fetchall()
    return {terms.design_id: terms.fingerprint for terms in (Terms.from_json(text) for (text,) in contents)}


def read_newest(path: str | os.PathLike[str]) -> tuple[Terms, int]:
    """The terms that hold now, and the last step of all streams; 0 for none."""
    with _snapshot(Path(path).resolve()) as (connection, _):
        found: list[Any] = connection.execute("SELECT ifnull(max(step), 0) FROM releases").fetchall()
        events: list[Any] = connection.execute("SELECT content FROM events WHERE kind = ?", (RESTORE,)).fetchall()
        restored = (Restored.from_json(text) for (text,) in events)
        last = max([int(found[0][0]), *(one.last_step for one in restored if not one.is_witnessed)])
        return read_terms(connection, Path(path)), last


@contextmanager
def _snapshot(path: Path) -> Iterator[tuple[Connection, Head]]:
    """The ledger at one moment. The head is read first: the database then holds the commit that it names."""
    with raising_ledger_refused(path):
        check_exists(path)
        head = read_head(head_path(path))
        with closing(connect(path, read_only=True)) as connection:
            connection.execute("BEGIN")
            yield connection, head


def check(connection: Connection, path: Path, head: Head, *, is_full: bool = True) -> tuple[LedgerCheck, Balances]:
    """Check a ledger: its tables, accounts, debits and rows.

    Args:
        head: the last commit that the ledger must hold.
        is_full: check every page of the file and every row. False checks the rows since the last seal.
    """
    if is_full and connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise LedgerRefused(f"{path} is damaged; {REMEDY}")
    first, current = read_terms(connection, path, 0), read_terms(connection, path)
    check_schema(connection, path, script(first))
    _check_events(connection, path, first)
    if head.ledger_id != first.ledger_id:
        raise LedgerRefused(f"{path} has the head file of another ledger; {REMEDY}")
    seal, streams = last_seal(connection, path), read_streams(connection)
    is_full = is_full or head.number < seal.commit_number  # an old head file: rows after it were not checked yet
    limit = max(0, current.mechanism.budget - read_charged_to_all(connection))
    charged = read_charged_to_all(connection, seal.commit_number)
    balances = Balances.read(connection, path, limit, seal, streams, charged)
    sealed = LedgerCheck(
        read_terms(connection, path, seal.commit_number),
        seal.commit_number,
        _tip_after(connection, seal.commit_number, first),
        streams,
        seal.private_tip,
        charged,
        read_period(connection, seal.commit_number),
    )
    found = LedgerCheck.at_start(first) if is_full else copy.deepcopy(sealed)
    first_private_tip = LedgerCheck.at_start(first).private_tip
    _follow(connection, path, found, sealed)
    if head.number > found.num_commits or _tip_after(connection, head.number, first) != head.tip:
        raise LedgerRefused(
            f"{path} does not hold the commit {head.number} that its head file names: it was rolled back, cut short or "
            f"replaced; {REMEDY}"
        )
    found.private_tip = follow_private_chain(connection, path, head, first_private_tip, is_full=is_full)
    return found, balances


def head_of_copy(connection: Connection, path: Path) -> Head:
    """The head that the last seal names, for a copy without a head file."""
    seal, first = last_seal(connection, path), read_terms(connection, path, 0)
    return Head(
        first.ledger_id, seal.commit_number, _tip_after(connection, seal.commit_number, first), seal.private_tip
    )


def _tip_after(connection: Connection, number: int, first: Terms) -> bytes:
    """The tip that is stored for that commit; empty for none."""
    stored: Any = connection.execute("SELECT tip FROM commits WHERE number = ?", (number,)).fetchone() or (b"",)
    return first.first_tip if number == 0 else stored[0]


def _follow(connection: Connection, path: Path, found: LedgerCheck, sealed: LedgerCheck) -> None:
    """Follow every commit after `found`, and compare with what is sealed when its commit is reached."""
    events = _events(connection, found.num_commits)
    for number, tip, rows in _commits(connection, path, found.num_commits):
        if number != found.num_commits + 1:
            raise LedgerRefused(f"{path}: commit {found.num_commits + 1} is missing; {REMEDY}")
        for row in rows:
            found.follow(row, path)
        event = events.get(number)
        found.num_commits, found.tip = number, next_tip(found.tip, number, rows, event)
        if found.tip != tip:
            raise LedgerRefused(f"{path}: a row of commit {number} is missing, was added or moved; {REMEDY}")
        if event:
            found.adopt(*event)
        if number == sealed.num_commits and found.streams != sealed.streams:
            raise LedgerRefused(f"{path}: the state of its streams is not that of its rows; {REMEDY}")


def _check_events(connection: Connection, path: Path, first: Terms) -> None:
    """Refuse events that are not those of the public chain; each has a commit without rows. Quick, as there are few."""
    for number, event in _events(connection, 0).items():
        before = _tip_after(connection, number - 1, first)
        if _tip_after(connection, number, first) != next_tip(before, number, (), event):
            raise LedgerRefused(f"{path}: the event of commit {number} was changed; {REMEDY}")


def _events(connection: Connection, after: int) -> dict[int, tuple[str, str]]:
    """Kind and content of each event after that commit, by commit."""
    query = "SELECT commit_number, kind, content FROM events WHERE commit_number > ?"
    rows: Iterable[Any] = connection.execute(query, (after,))
    return {number: (kind, content) for number, kind, content in rows}


def _commits(connection: Connection, path: Path, after: int) -> Iterator[tuple[int, bytes, list[Row]]]:
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
        raise LedgerRefused(f"{path}: a row belongs to no commit; {REMEDY}")
