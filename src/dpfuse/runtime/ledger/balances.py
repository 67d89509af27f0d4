"""What sensors have spent, in memory, and what of it has still to be written to the table of accounts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from dpfuse._index import ABSENT, Index
from dpfuse.errors import LedgerRefused
from dpfuse.privacy.budget import Integers
from dpfuse.runtime.ledger.debits import Debits
from dpfuse.runtime.ledger.store import sqlite

if TYPE_CHECKING:
    from apsw import Connection

# One statement for all debits: one for each would take three times as long. The costs come from a table in memory, as
# arrays cannot be joined; its rows are numbered as those of an array are, from 1 on.
_COSTS = """
CREATE TEMP TABLE IF NOT EXISTS costs (cost INTEGER);
DELETE FROM temp.costs;
INSERT INTO temp.costs SELECT value FROM carray(?)
"""
_DEBIT = """
INSERT INTO accounts (sensor, spent) SELECT payer.value, costs.cost FROM carray(?) AS payer
    JOIN temp.costs AS costs ON costs.rowid = payer.rowid WHERE true
    ON CONFLICT (sensor) DO UPDATE SET spent = spent + excluded.spent
"""
_REFUSED = "the accounts do not hold what was debited; put the right file back, never an old copy"


class Balances:
    """The accounts of a ledger with one writer, in individual accounting. Private: never to be shown.

    A step's debits are durable as soon as they stand beside its release, in one row. To add each of them to its
    account, wherever that is in the file, takes many times as long, and is done once for many steps.
    """

    def __init__(self, budget: int, sensors: Integers, spent: Integers) -> None:
        self._budget = budget
        self._index = Index()
        self._spent = np.zeros(self._index.size, np.int64)
        self._unwritten = np.zeros(self._index.size, np.int64)
        self._spent[self._open(sensors)] = spent

    @classmethod
    def read(cls, connection: Connection, path: object, budget: int) -> Balances:
        """Those of a ledger: what is in the table of accounts, and the debits that are not."""
        rows: list[Any] = connection.execute("SELECT sensor, spent FROM accounts").fetchall()
        balances = cls(budget, *np.array(rows, np.int64).reshape(-1, 2).T)
        if not all(map(balances.debit, pending_debits(connection, path))):
            raise LedgerRefused(f"{path}: {_REFUSED}")
        return balances

    def write(self, connection: Connection, path: object) -> None:
        """Bring the table of accounts up to date; it takes none past the budget, and two budgets fit 63 bits."""
        sensors, costs = self._not_written()
        if not len(sensors):
            return
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_COSTS, (sqlite().carray(costs),))
        connection.execute(_DEBIT, (sqlite().carray(sensors),))
        if connection.changes() != len(sensors):
            raise LedgerRefused(f"{path}: {_REFUSED}")
        connection.execute("DELETE FROM debits; COMMIT")
        self._unwritten[:] = 0

    def debit(self, debits: Debits) -> bool:
        """Whether all debits fit their accounts; if so they are taken, else none is."""
        number = self._open(debits.sensors)
        # Both are within 0 and the budget, of 63 bits, if the cost is.
        if (debits.costs > self._budget - self._spent[number]).any():
            return False
        self._spent[number] += debits.costs
        self._unwritten[number] += debits.costs
        return True

    def spent(self) -> dict[int, int]:
        """By id, of those who have paid."""
        numbers, _, sensors = self._index.keys()
        pairs = zip(sensors.tolist(), self._spent[numbers].tolist(), strict=True)
        return {sensor: spent for sensor, spent in pairs if spent}

    def __repr__(self) -> str:
        return "Balances()"

    def _not_written(self) -> Debits:
        """In the order in which the accounts were opened: new ones come to stand side by side."""
        number = np.flatnonzero(self._unwritten)
        numbers, _, sensors = self._index.keys()
        return Debits(sensors[np.searchsorted(numbers, number)], self._unwritten[number])

    def _open(self, sensors: Integers) -> Integers:
        """The number of each one's account, which is opened if there is none."""
        number = self._index.find(np.zeros_like(sensors), sensors)
        if (is_new := number == ABSENT).any():
            new = sensors[is_new]
            number[is_new] = self._index.add(np.zeros_like(new), new)
            if (room := self._index.size - len(self._spent)) > 0:
                more = np.zeros(room, np.int64)
                self._spent, self._unwritten = (np.concatenate([own, more]) for own in (self._spent, self._unwritten))
        return number


def pending_debits(connection: Connection, path: object) -> Iterator[Debits]:
    """What each commit debited that is not in the table of accounts yet. Private."""
    for sensors, costs in connection.execute("SELECT sensors, costs FROM debits ORDER BY commit_number"):
        try:
            yield Debits.from_bytes(cast(bytes, sensors), cast(bytes, costs))
        except ValueError:
            raise LedgerRefused(f"{path}: {_REFUSED}") from None
