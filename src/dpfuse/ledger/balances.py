"""What each sensor has spent, in memory and in the table of accounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpfuse._keyed_arrays import KeyedArrays
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.debits import Debits
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
_REFUSED = "the accounts do not add up to what was debited; put the right file back, never an old copy"


class Balances:
    """The accounts of a ledger in SQLite, in individual accounting. Private: never shown.

    A commit writes the debits of its step as one row. That row makes them durable. `write` adds the debits of many
    steps to the table of accounts at once, since to update each account at every step takes many times as long.

    An account has a number: 0, 1, 2, ... in the order of opening. It is the account's row in memory and in the table.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._accounts = KeyedArrays(spent=np.int64(0), unwritten=np.int64(0))
        self._num_written = 0

    @classmethod
    def read(cls, connection: Connection, path: object, budget: int) -> Balances:
        """The balances of a ledger: the table of accounts, and the debits that were not added to it yet."""
        rows: list[Any] = connection.execute("SELECT number, sensor, spent FROM accounts ORDER BY number").fetchall()
        numbers, sensors, spent = np.array(rows, np.int64).reshape(-1, 3).T
        is_right = (numbers == np.arange(len(rows))).all() and len(np.unique(sensors)) == len(rows)
        if not is_right or not ((spent >= 0) & (spent <= budget)).all():
            raise LedgerRefused(f"{path}: {_REFUSED}")
        balances = cls(budget)
        number = balances._accounts.add(np.zeros_like(sensors), sensors.copy())
        balances._accounts["spent"][number] = spent
        balances._num_written = len(rows)
        if not all(map(balances.debit, pending_debits(connection, path))):
            raise LedgerRefused(f"{path}: {_REFUSED}")
        return balances

    def debit(self, debits: Debits) -> bool:
        """Take all debits if each fits its account, else none; returns whether they were taken."""
        number = self._accounts.find_or_add(np.zeros_like(debits.sensors), debits.sensors)
        spent = self._accounts["spent"]
        # Budget and spending are between 0 and 2^61, so the difference cannot wrap.
        if (debits.costs > self._budget - spent[number]).any():
            return False
        spent[number] += debits.costs
        self._accounts["unwritten"][number] += debits.costs
        return True

    def write(self, connection: Connection, path: object) -> None:
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
                    raise LedgerRefused(f"{path}: {_REFUSED}")

    def mark_written(self) -> None:
        """Note that the transaction of `write` is durable."""
        self._accounts["unwritten"][:] = 0
        self._num_written = len(self._accounts)

    def grow(self) -> None:
        """Make room for more accounts now, so that a later step need not."""
        self._accounts.grow()

    def spent(self) -> dict[int, int]:
        """What each sensor has spent, by id."""
        numbers, _, sensors = self._accounts.keys()
        return dict(zip(sensors.tolist(), self._accounts["spent"][numbers].tolist(), strict=True))

    def __repr__(self) -> str:
        return "Balances()"


def pending_debits(connection: Connection, path: object) -> Iterator[Debits]:
    """The debits of each commit that were not added to the table of accounts yet. Private."""
    query = """SELECT sensors, costs, debited FROM debits LEFT JOIN commits ON number = commit_number
        ORDER BY commit_number"""
    for sensors, costs, debited in connection.execute(query):
        try:
            debits = Debits.from_bytes(cast(bytes, sensors), cast(bytes, costs))
        except ValueError:
            raise LedgerRefused(f"{path}: {_REFUSED}") from None
        if debited != str(debits.total):
            raise LedgerRefused(f"{path}: {_REFUSED}")
        yield debits
