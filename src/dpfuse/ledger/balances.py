"""What each sensor has spent, in memory and in the table of accounts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse._arrays import Integers
from dpfuse._keyed_arrays import ABSENT, KeyedArrays
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.commitments import Seal, commit_to_debits
from dpfuse.ledger.debits import Debits, exact_sum
from dpfuse.ledger.progress import StreamCheck
from dpfuse.ledger.seals import NOT_COMMITTED, check_seal
from dpfuse.ledger.store import sqlite

if TYPE_CHECKING:
    from apsw import Connection

# One statement for all accounts; one statement for each account takes three times as long. Two arrays cannot be joined
# in SQLite, so the values are first copied to a table in memory, whose rows are numbered from 1 like those of an array.
_FILL = "DELETE FROM temp.filled; INSERT INTO temp.filled SELECT value FROM carray(?)"
_OPEN = """
INSERT INTO accounts SELECT wanted.value, filled.value, 0 FROM carray(?) AS wanted
    CROSS JOIN temp.filled AS filled ON filled.rowid = wanted.rowid
"""
_ADD = """
UPDATE accounts SET spent = spent + filled.value FROM carray(?) AS wanted
    CROSS JOIN temp.filled AS filled ON filled.rowid = wanted.rowid WHERE accounts.number = wanted.value
"""


class Balances:
    """The accounts of a ledger. There are none in total accounting. Private: never shown.

    A commit writes the debits of its step as one row. That row makes them durable. `write` adds the debits of many
    steps to the table of accounts at once, since to update each account at every step takes many times as long.

    An account has a number: 0, 1, 2, ... in the order of opening. It is the account's row in memory and in the table.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._accounts = KeyedArrays(spent=np.int64(0), unwritten=np.int64(0))
        self._num_written = 0
        self.total = 0
        """The sum of all accounts. Private."""

    @classmethod
    def read(
        cls,
        connection: Connection,
        path: Path,
        budget: int,
        seal: Seal,
        streams: Mapping[str, StreamCheck],
        charged_to_all: int,
    ) -> Balances:
        """The balances of a ledger: the sealed table of accounts, and the debits of the commits after the seal.

        Args:
            budget: what each account may hold in debits.
            streams, charged_to_all: as they were at the seal.

        Raises:
            LedgerRefused: accounts, streams or debits are not those that the private chain commits to.
        """
        rows: list[Any] = connection.execute("SELECT number, sensor, spent FROM accounts ORDER BY number").fetchall()
        numbers, sensors, spent = np.array(rows, np.int64).reshape(-1, 3).T
        is_right = (numbers == np.arange(len(rows))).all() and len(np.unique(sensors)) == len(rows)
        if not is_right or (spent < 0).any():
            raise LedgerRefused(f"{path}: {NOT_COMMITTED}")
        balances = cls(budget)
        number = balances._accounts.add(np.zeros_like(sensors), sensors.copy())
        balances._accounts["spent"][number] = spent
        balances._num_written, balances.total = len(rows), exact_sum(spent)
        check_seal(connection, seal, balances.to_bytes(), streams, charged_to_all, path)
        balances._add_pending(connection, path, seal)
        return balances

    def _add_pending(self, connection: Connection, path: Path, seal: Seal) -> None:
        """Take the debits of each commit after the seal, checked against its commitment."""
        query = """SELECT number, commitment, nonce, sensors, costs FROM commits LEFT JOIN debits
            ON commit_number = number WHERE number > ? ORDER BY number"""
        pending: list[Any] = connection.execute(query, (seal.commit_number,)).fetchall()
        for number, commitment, nonce, *parts in pending:
            try:
                debits = Debits.from_bytes(*parts)
            except (TypeError, ValueError):  # damaged, or there is no such row
                raise LedgerRefused(f"{path}: {NOT_COMMITTED}") from None
            is_right = commit_to_debits(number, debits, self.total + debits.total, nonce) == commitment
            if not is_right or not self.debit(debits):
                raise LedgerRefused(f"{path}: {NOT_COMMITTED}")
        if connection.execute("SELECT count(*) FROM debits").fetchall() != [(len(pending),)]:
            raise LedgerRefused(f"{path}: {NOT_COMMITTED}")

    def debit(self, debits: Debits) -> bool:
        """Take all debits if each fits its account, else none; returns whether they were taken."""
        number = self._accounts.find_or_add(np.zeros_like(debits.sensors), debits.sensors)
        spent = self._accounts["spent"]
        # Budget and spending are between 0 and 2^61, so the difference cannot wrap.
        if (debits.costs > self._budget - spent[number]).any():
            return False
        spent[number] += debits.costs
        self._accounts["unwritten"][number] += debits.costs
        self.total += debits.total
        return True

    def write(self, connection: Connection, path: Path) -> None:
        """Add the debits to the table of accounts, in a transaction that the caller has begun.

        The table refuses an account above the budget. Two budgets fit 63 bits, so the sum in the table cannot wrap.
        """
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS filled (value INTEGER)")
        _, _, sensors = self._accounts.keys()
        new, unwritten = np.arange(self._num_written, len(sensors)), self._accounts["unwritten"]
        paid = np.flatnonzero(unwritten)
        for statement, numbers, values in ((_OPEN, new, sensors[new]), (_ADD, paid, unwritten[paid])):
            if len(numbers):
                connection.execute(_FILL, (sqlite().carray(values),))
                connection.execute(statement, (sqlite().carray(numbers),))
                if connection.changes() != len(numbers):
                    raise LedgerRefused(f"{path}: {NOT_COMMITTED}")

    def clear(self, budget: int) -> None:
        """Forget all accounts, and give new ones that budget. The caller deletes the table's rows."""
        self._accounts = KeyedArrays(spent=np.int64(0), unwritten=np.int64(0))
        self._budget, self._num_written, self.total = budget, 0, 0

    def mark_written(self) -> None:
        """Note that the transaction of `write` is durable."""
        self._accounts["unwritten"][:] = 0
        self._num_written = len(self._accounts)

    def grow(self) -> None:
        """Make room for more accounts now, so that a later step need not."""
        self._accounts.grow()

    def spent_of(self, sensors: Integers) -> Integers:
        """What each of these sensors has spent, shape (m,)."""
        number = self._accounts.find(np.zeros_like(sensors), sensors)
        return np.asarray(np.where(number == ABSENT, 0, self._accounts["spent"][number]))

    def spent(self) -> dict[int, int]:
        """What each sensor was debited, by id; at most the budget, which a restore may have lowered since."""
        numbers, _, sensors = self._accounts.keys()
        spent = np.minimum(self._accounts["spent"][numbers], self._budget)
        return dict(zip(sensors.tolist(), spent.tolist(), strict=True))

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Ids and amounts of all accounts in the order of their numbers, as a seal covers them."""
        numbers, _, sensors = self._accounts.keys()
        return Debits(sensors, self._accounts["spent"][numbers]).to_bytes()

    def __repr__(self) -> str:
        return "Balances()"
