"""Read a ledger and check it: every row as it was committed, every budget kept, no commit missing."""

from __future__ import annotations

import copy
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
from dpfuse.ledger.stored_rows import check_places, commits, row_pages
from dpfuse.ledger.terms import Terms, next_tip
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection


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
    with _opened(target) as (connection, head):
        found = check(connection, target, head)[0]
        found.signed = check_signatures(connection, target, found, public_key)
    return found


def public_rows(path: str | os.PathLike[str], stream: str | None = None, start: int = 1) -> Iterator[Row]:
    """The public rows of one stream, or of all, from step `start` on and sorted by step, as they are at the call."""
    target = Path(path).resolve()
    with _opened(target) as (connection, _):
        if stream is not None:
            _check.is_one_of("stream", stream, sorted(read_streams(connection)))
        for page in row_pages(connection, start, _last_commit(connection), stream):
            yield from page


def check_tip(path: str | os.PathLike[str], tip: bytes) -> None:
    """Refuse a ledger that does not hold the commit with that public tip: it is behind, or another one."""
    with _opened(Path(path).resolve()) as (connection, _):
        is_first = read_terms(connection, Path(path), 0).first_tip == tip
        if not is_first and connection.execute("SELECT 1 FROM commits WHERE tip = ?", (tip,)).fetchone() is None:
            raise LedgerRefused(f"{path} does not hold the tip {tip.hex()}: it was rolled back or replaced; {REMEDY}")


def design_fingerprints(path: str | os.PathLike[str]) -> dict[str, str]:
    """The fingerprint of each design that the ledger had, by the id that names it in rows; public."""
    with _opened(Path(path).resolve()) as (connection, _):
        contents: list[Any] = connection.execute("SELECT content FROM events WHERE kind = ?", (TERMS,)).fetchall()
    return {terms.design_id: terms.fingerprint for terms in (Terms.from_json(text) for (text,) in contents)}


def read_newest(path: str | os.PathLike[str]) -> tuple[Terms, int]:
    """The terms that hold now, and the last step of all streams; 0 for none."""
    with _opened(Path(path).resolve()) as (connection, _):
        query = "SELECT ifnull((SELECT max(step) FROM releases), (SELECT ifnull(max(last_step), 0) FROM segments))"
        found: list[Any] = connection.execute(query).fetchall()
        events: list[Any] = connection.execute("SELECT content FROM events WHERE kind = ?", (RESTORE,)).fetchall()
        restored = (Restored.from_json(text) for (text,) in events)
        last = max([int(found[0][0]), *(one.last_step for one in restored if not one.is_witnessed)])
        return read_terms(connection, Path(path)), last


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Connection, Head]]:
    """The ledger, for reading. The head is read first: the database then holds the commit that it names."""
    with raising_ledger_refused(path):
        check_exists(path)
        head = read_head(head_path(path))
        with closing(connect(path, read_only=True)) as connection:
            yield connection, head


def check_pages(connection: Connection, path: Path) -> None:
    """Let SQLite check every page of the file. It is one long read, so the log cannot begin anew meanwhile."""
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise LedgerRefused(f"{path} is damaged; {REMEDY}")


def check(connection: Connection, path: Path, head: Head, *, is_full: bool = True) -> tuple[LedgerCheck, Balances]:
    """Check a ledger, as it is at the call: its tables, accounts, debits and rows.

    Args:
        head: the last commit that the ledger must hold.
        is_full: check every row. False checks the rows since the last seal.
    """
    with connection:  # what changes with time is read at one moment
        first, last = read_terms(connection, path, 0), _last_commit(connection)
        check_schema(connection, path, script(first))
        _check_events(connection, path, first)
        if head.ledger_id != first.ledger_id:
            raise LedgerRefused(f"{path} has the head file of another ledger; {REMEDY}")
        check_places(connection, path, last, is_full=is_full)
        sealed, balances = _read_sealed(connection, path, first)
    is_full = is_full or head.number < sealed.num_commits  # an old head file: rows after it were not checked yet
    found = LedgerCheck.at_start(first) if is_full else copy.deepcopy(sealed)
    first_private_tip = LedgerCheck.at_start(first).private_tip
    _follow(connection, path, found, sealed, last)
    if head.number > found.num_commits or _tip_after(connection, head.number, first) != head.tip:
        raise LedgerRefused(
            f"{path} does not hold the commit {head.number} that its head file names: it was rolled back, cut short or "
            f"replaced; {REMEDY}"
        )
    upto = sealed.num_commits, last
    found.private_tip = follow_private_chain(connection, path, head, first_private_tip, upto, is_full=is_full)
    return found, balances


def _read_sealed(connection: Connection, path: Path, first: Terms) -> tuple[LedgerCheck, Balances]:
    """The ledger as it was at the last seal, and the balances as they are."""
    seal, streams = last_seal(connection, path), read_streams(connection)
    limit = max(0, read_terms(connection, path).mechanism.budget - read_charged_to_all(connection))
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
    return sealed, balances


def head_of_copy(connection: Connection, path: Path) -> Head:
    """The head that the last seal names, for a copy without a head file."""
    seal, first = last_seal(connection, path), read_terms(connection, path, 0)
    return Head(
        first.ledger_id, seal.commit_number, _tip_after(connection, seal.commit_number, first), seal.private_tip
    )


def _last_commit(connection: Connection) -> int:
    found: list[Any] = connection.execute("SELECT ifnull(max(number), 0) FROM commits").fetchall()
    return int(found[0][0])


def _tip_after(connection: Connection, number: int, first: Terms) -> bytes:
    """The tip that is stored for that commit; empty for none."""
    stored: Any = connection.execute("SELECT tip FROM commits WHERE number = ?", (number,)).fetchone() or (b"",)
    return first.first_tip if number == 0 else stored[0]


def _follow(connection: Connection, path: Path, found: LedgerCheck, sealed: LedgerCheck, last: int) -> None:
    """Follow every commit from `found` to `last`, and compare with what is sealed when its commit is reached."""
    events = _events(connection, found.num_commits)
    for number, tip, rows in commits(connection, path, found.num_commits, last):
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
