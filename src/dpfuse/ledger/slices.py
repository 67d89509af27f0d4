"""The table of slices in a ledger with a bank: what was lent, for which epoch, and what was spent of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse._arrays import Integers
from dpfuse.ledger.bank.borrower import BalanceOf, HeldSlice
from dpfuse.ledger.bank.rules import NO_ANSWER, LastAnswer
from dpfuse.ledger.debits import Debits

if TYPE_CHECKING:
    from apsw import Connection

_STORED = np.dtype("<i8")


def read_slices(connection: Connection, generation: int) -> list[HeldSlice]:
    """The slices that were lent to that generation; those of an earlier one are forfeited."""
    query = "SELECT epoch, sensors, amounts, balances, spent FROM slices WHERE generation = ? ORDER BY epoch"
    rows: list[Any] = connection.execute(query, (generation,)).fetchall()
    return [_slice(*row) for row in rows]


def read_last_answer(connection: Connection) -> tuple[int, LastAnswer]:
    """The generation of the centre, 0 before the first, and the last answer of the bank to it."""
    rows: list[Any] = connection.execute("SELECT generation, boundary, mark FROM last_answer").fetchall()
    return (rows[0][0], LastAnswer(*rows[0][1:])) if rows else (0, NO_ANSWER)


def write_slices(connection: Connection, generation: int, slices: Iterable[HeldSlice], last_answer: LastAnswer) -> None:
    """Replace all slices by these, and the last answer if there is one, in a transaction that the caller has begun."""
    connection.execute("DELETE FROM slices")
    if last_answer != NO_ANSWER:  # until then the answer to the generation before shows an old copy of the bank
        connection.execute("DELETE FROM last_answer")
        connection.execute("INSERT INTO last_answer VALUES (?, ?, ?)", (generation, *last_answer))
    rows = [
        (own.epoch, generation, *map(_to_bytes, (own.sensors, own.amounts, own.before, own.spent))) for own in slices
    ]
    connection.executemany("INSERT INTO slices VALUES (?, ?, ?, ?, ?, ?)", rows)


def slices_digest(connection: Connection) -> bytes:
    """A hash of all slices and of the last answer, which a seal commits to; empty for a ledger without a bank."""
    if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'slices'").fetchall():
        return b""
    result = hashlib.sha256()
    for query in ("SELECT * FROM last_answer", "SELECT * FROM slices ORDER BY epoch"):
        rows: list[Any] = connection.execute(query).fetchall()
        result.update(len(rows).to_bytes(8, "big"))
        for part in (part for row in rows for part in row):
            content = b"" if part is None else b"+" + (part if isinstance(part, bytes) else str(part).encode())
            result.update(len(content).to_bytes(8, "big") + content)
    return result.digest()


def pays_for(opened: HeldSlice | None, debits: Debits, balance_of: BalanceOf) -> bool:
    """Whether each debit, in integers, fits what is left of its sensor's slice."""
    if not len(debits.sensors):
        return True
    if opened is None or opened.before is None or opened.spent is not None or not len(opened.sensors):
        return False
    place = np.minimum(np.searchsorted(opened.sensors, debits.sensors), len(opened.sensors) - 1)
    left = opened.amounts[place] - (balance_of(debits.sensors) - opened.before[place])
    return bool(((opened.sensors[place] == debits.sensors) & (debits.costs <= left)).all())


def _to_bytes(values: Integers | None) -> bytes | None:
    return None if values is None else values.astype(_STORED, copy=False).tobytes()


def _slice(epoch: int, *parts: bytes | None) -> HeldSlice:
    sensors, amounts, before, spent = (
        None if part is None else np.frombuffer(part, _STORED).astype(np.int64) for part in parts
    )
    assert sensors is not None and amounts is not None  # NOT NULL in the table
    return HeldSlice(epoch, sensors, amounts, before, spent)
