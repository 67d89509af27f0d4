"""Check a ledger in PostgreSQL, read its public rows, and keep its head file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.head import Head, SharedHeadFile, read_head
from dpfuse.ledger.postgres_store import Address, reading
from dpfuse.ledger.reader import COLUMNS, LedgerCheck, Readable, check_rows
from dpfuse.ledger.store import sync_folder
from dpfuse.public.rows import Row


def verify(where: str, head: str | os.PathLike[str] | None = None) -> LedgerCheck:
    """Read and check the whole ledger; see `places.verify`."""
    address = Address.parse(where)
    with reading(address) as (_, terms):
        known = read_known_head(head_path(terms.ledger_id, head), address)
    # Rows are read after the head, so that a commit made meanwhile is ahead of it.
    with reading(address) as (snapshot, terms):
        return check_rows(snapshot, address, terms, known, spent=spent_in(snapshot))


def public_rows(where: str, stream: str | None = None, start: int = 1) -> Iterator[Row]:
    """The public rows; see `places.public_rows`. This needs no head file."""
    with reading(Address.parse(where)) as (snapshot, terms):
        if stream is not None:
            _check.is_one_of("stream", stream, terms.streams)
        where_stream, names = ("", ()) if stream is None else ("AND stream = ?", (stream,))
        query = f"SELECT {COLUMNS} FROM releases WHERE step >= ? {where_stream} ORDER BY step, stream"
        yield from map(Row._make, snapshot.execute(query, (start, *names)))


def spent_in(snapshot: Readable) -> Iterator[int]:
    """What each sensor has spent. Private."""
    yield from (spent for (spent,) in snapshot.execute("SELECT spent FROM accounts"))


def join(where: str, head: str | os.PathLike[str] | None = None, tip: bytes | None = None) -> Path:
    """The new head file of this host, which may then write to a ledger that another host created.

    The whole ledger is checked first. Only a `tip` shows that the server was not rolled back earlier: the ledger must
    hold that tip, which `verify` returns on a host with a head file.
    """
    address = Address.parse(where)
    with reading(address) as (snapshot, terms):
        start = Head(terms.ledger_id, 0, terms.first_tip)
        found = check_rows(snapshot, address, terms, start, spent=spent_in(snapshot))
        is_held = tip in (None, terms.first_tip)
        if not is_held and not snapshot.execute("SELECT number FROM commits WHERE tip = ?", (tip,)).fetchall():
            raise LedgerRefused(
                f"{address} does not hold that tip: it was rolled back, or is another ledger; find out which"
            )
        target = head_path(terms.ledger_id, head)
        write_new_head(target, Head(terms.ledger_id, found.num_commits, found.tip))
        return target


def head_path(ledger_id: str, named: str | os.PathLike[str] | None = None) -> Path:
    """Where this host keeps the head of a ledger in PostgreSQL: the file named, or one in the state folder.

    The state folder is DPFUSE_STATE, else `dpfuse` in XDG_STATE_HOME, else in ~/.local/state.
    """
    if named is not None:
        return Path(named).resolve()
    if not (folder := os.environ.get("DPFUSE_STATE")):
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        folder = os.path.join(state, "dpfuse")
    return Path(folder).resolve() / f"{ledger_id}.head"


def write_new_head(path: Path, head: Head) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = SharedHeadFile(path, create=True)
    except FileExistsError:
        raise LedgerRefused(f"{path} is there already; it belongs to a ledger, so name another head file") from None
    try:
        file.write(head, sync=True)
        sync_folder(path.parent)
    finally:
        file.close()


def read_known_head(path: Path, address: Address) -> Head:
    if not path.exists():
        raise LedgerRefused(
            f"{path} is missing, so nothing shows that {address} was not rolled back; put the file back, or, on a host "
            f"that is new to this ledger, run `dpfuse ledger join`"
        )
    return read_head(path)
