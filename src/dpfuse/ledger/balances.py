"""What sensors have spent, in memory, and what of it has still to be written to the table of accounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpfuse._arrays import Integers
from dpfuse._index import ABSENT, Index
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.debits import Debits
from dpfuse.ledger.store import sqlite

if TYPE_CHECKING:
    from apsw import Connection

# Both in one statement for all accounts: one for each would take three times as long. What is not in the first array
# comes from a table in memory, as arrays cannot be joined; its rows are numbered as those of an array are, from 1 on.
_FILL = "DELETE FROM temp.filled; INSERT INTO temp.filled SELECT value FROM carray(?)"
_OPEN = """
INSERT INTO accounts SELECT wanted.value, filled.value, 0 FROM carray(?) AS wanted
    CROSS JOIN temp.filled AS filled ON filled.rowid = wanted.rowid
"""
_ADD = """
UPDATE accounts SET spent = spent + filled.value FROM carray(?) AS wanted
    CROSS JOIN temp.filled AS filled ON filled.rowid = wanted.rowid WHERE accounts.number = wanted.value
"""
_REFUSED = "the accounts do not hold what was debited; put the right file back, never an old copy"


class Balances:
    """The accounts of a ledger with one writer, in individual accounting. Private: never to be shown.

    A step's debits are durable as soon as they stand beside its release, in one row. To add each of them to its
    account, wherever that is in the file, takes many times as long, and is done once for many steps.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._index = Index()
        self._num_accounts, self._num_written = 0, 0
        self._spent = np.zeros(self._index.size, np.int64)
        self._unwritten = np.zeros(self._index.size, np.int64)

    @classmethod
    def read(cls, connection: Connection, path: object, budget: int) -> Balances:
        """Those of a ledger: what is in the table of accounts, and the debits that are not."""
        rows: list[Any] = connection.execute("SELECT number, sensor, spent FROM accounts ORDER BY number").fetchall()
        numbers, sensors, spent = np.array(rows, np.int64).reshape(-1, 3).T
        balances = cls(budget)
        is_right = (numbers == np.arange(len(rows))).all() and len(np.unique(sensors)) == len(rows)
        if not is_right or not ((spent >= 0) & (spent <= budget)).all():
            raise LedgerRefused(f"{path}: {_REFUSED}")
        number = balances._open(sensors.copy())  # first: the arrays grow with it
        balances._spent[number] = spent
        balances._num_written = len(rows)
        if not all(map(balances.debit, pending_debits(connection, path))):
            raise LedgerRefused(f"{path}: {_REFUSED}")
        return balances

    def debit(self, debits: Debits) -> bool:
        """Whether all debits fit their accounts; if so they are taken, else none is."""
        number = self._open(debits.sensors)
        # Both are within 0 and the budget, of 63 bits, if the cost is.
        if (debits.costs > self._budget - self._spent[number]).any():
            return False
        self._spent[number] += debits.costs
        self._unwritten[number] += debits.costs
        return True

    def write(self, connection: Connection, path: object) -> None:
        """Bring the table of accounts up to date, in a transaction that the caller has begun.

        The table takes none past the budget, and two budgets fit 63 bits.
        """
        connection.execute("CREATE TEMP TABLE IF NOT EXISTS filled (value INTEGER)")
        new = np.arange(self._num_written, self._num_accounts)
        _, _, sensors = self._index.keys()
        number = np.flatnonzero(self._unwritten)
        for statement, wanted, values in ((_OPEN, new, sensors[new]), (_ADD, number, self._unwritten[number])):
            if len(wanted):
                connection.execute(_FILL, (sqlite().carray(values),))
                connection.execute(statement, (sqlite().carray(wanted),))
                if connection.changes() != len(wanted):
                    raise LedgerRefused(f"{path}: {_REFUSED}")

    def written(self) -> None:
        """The transaction is durable."""
        self._unwritten[:] = 0
        self._num_written = self._num_accounts

    def tidy(self) -> None:
        """Make room for more accounts while there is time."""
        self._index.tidy()
        self._fill_room()

    def spent(self) -> dict[int, int]:
        """By id."""
        _, _, sensors = self._index.keys()
        return dict(zip(sensors.tolist(), self._spent[: self._num_accounts].tolist(), strict=True))

    def __repr__(self) -> str:
        return "Balances()"

    def _open(self, sensors: Integers) -> Integers:
        """The number of each one's account, which is opened if there is none: 0, 1, 2, ... as they come."""
        number = self._index.find(np.zeros_like(sensors), sensors)
        if (is_new := number == ABSENT).any():
            new = sensors[is_new]
            number[is_new] = self._index.add(np.zeros_like(new), new)
            self._num_accounts += len(new)
            self._fill_room()
        return number

    def _fill_room(self) -> None:
        """Nothing spent, for all numbers that the index may give."""
        if (room := self._index.size - len(self._spent)) > 0:
            more = np.zeros(room, np.int64)
            self._spent, self._unwritten = (np.concatenate([own, more]) for own in (self._spent, self._unwritten))


def pending_debits(connection: Connection, path: object) -> Iterator[Debits]:
    """What each commit debited that is not in the table of accounts yet. Private."""
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
