"""Open or read a ledger by where it is: a path is a ledger in SQLite, a postgresql:// address one in PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dpfuse.errors import LedgerRefused
from dpfuse.ledger import postgres_reader, reader
from dpfuse.ledger.postgres import PostgresLedger
from dpfuse.ledger.postgres_store import Address, is_address
from dpfuse.ledger.writer import Ledger
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from dpfuse.policy.design import Design

Place = str | os.PathLike[str]


def create_ledger(where: Place, design: Design, streams: Iterable[str] = ("main",)) -> Ledger:
    """A new ledger with these streams, opened for writing; refused if there is one already."""
    kind = PostgresLedger if is_address(where) else Ledger
    return kind.create(where, design, streams)


def open_ledger(where: Place, design: Design, streams: Iterable[str] | None = None) -> Ledger:
    """The ledger, opened to write these streams of it; refused if it is missing.

    Args:
        where: a path, or postgresql://USER@HOST/DATABASE.
        streams: None for all. In SQLite one centre writes all streams; in PostgreSQL others may write the rest.
    """
    if is_address(where):
        return PostgresLedger.open(where, design, streams)
    path = Path(where).resolve()
    ledger = Ledger.open(path, design)
    if streams is not None and set(streams) != set(ledger.streams):
        ledger.close()
        raise LedgerRefused(
            f"{path} has the streams {', '.join(ledger.streams)}, and one writer for all of them; name these, or "
            f"create another ledger"
        )
    return ledger


def verify(where: Place) -> reader.LedgerCheck:
    """Read and check the whole ledger, also while it is written to.

    Raises:
        LedgerRefused: if a row was changed, added, moved or is missing, if the ledger is behind its head file, if a
            budget was exceeded, or if accounts do not add up to what was debited.
    """
    return postgres_reader.verify(where) if is_address(where) else reader.verify(where)


def public_rows(where: Place, stream: str | None = None, start: int = 1) -> Iterator[Row]:
    """The public rows of one stream, or of all, from step `start` on and sorted by step."""
    if is_address(where):
        return postgres_reader.public_rows(where, stream, start)
    return reader.public_rows(where, stream, start)


def name_of(where: Place) -> str:
    """The place as it may be shown: an address without user and password."""
    return Address.parse(where).name if is_address(where) else os.fspath(where)
