"""The bank in PostgreSQL, as a centre and an operator call it."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from dpfuse._arrays import Integers
from dpfuse.errors import LedgerMismatch, LedgerRefused, LedgerUnavailable
from dpfuse.guarantee import Guarantee
from dpfuse.ledger.bank.rules import NO_ANSWER, NOTHING, BankTerms, LastAnswer, Loan, Submission
from dpfuse.ledger.bank.schema import OLDEST_VERSION, VERSION, script, upgrade_script
from dpfuse.ledger.bank.server import BankAddress, connect, driver, raising_bank_refused

if TYPE_CHECKING:
    from psycopg import Connection

_ACCOUNTS = "SELECT count(*) FROM accounts WHERE spent < 0 OR lent < 0 OR spent + lent > %s"
# What is lent of each account, by the accounts and by the loans.
_LENT = """
SELECT count(*) FROM (
    SELECT sensor, sum(amount) AS amount FROM loans, unnest(sensors, amounts) AS own (sensor, amount)
    WHERE sensor >= 0 GROUP BY sensor
) AS out FULL JOIN accounts USING (sensor) WHERE coalesce(amount, 0) <> coalesce(lent, 0)
"""
_TOTALS = """
SELECT coalesce((SELECT (spent, lent) FROM closings ORDER BY boundary DESC LIMIT 1), (0::numeric, 0::numeric))
    = (SELECT (coalesce(sum(spent), 0), coalesce(sum(lent), 0)) FROM accounts)
"""
_CENTRES = """
SELECT DISTINCT ON (centre) centre, generation, greatest(centres.boundary, answers.boundary)
FROM centres LEFT JOIN answers USING (centre, generation) ORDER BY centre, generation DESC
"""
# The fifth part of a place is the mark of a restore. A ledger that was restored since need not hold the tip.
_PRIVATE_TIP = """
WITH known AS (SELECT * FROM answers JOIN centres USING (centre, generation) WHERE centre = %s AND ledger_id = %s)
SELECT num_commits, private_tip FROM known
WHERE EXISTS (SELECT 1 FROM known WHERE split_part(place, '/', 5) = %s) ORDER BY generation DESC LIMIT 1
"""
# A lost answer that is known already may be of a later boundary, if the clock of the server is behind.
_RESTORE = """
WITH gone AS (DELETE FROM lost_answers RETURNING boundary)
UPDATE bank SET restored_at = (SELECT greatest(restored_at, %s, max(boundary)) FROM gone) RETURNING restored_at
"""


class CentreShown(NamedTuple):
    """What is public of a centre: its name, its generation, and the last boundary at which the bank answered it."""

    centre: str
    generation: int
    boundary: int


@dataclass(frozen=True)
class BankCheck:
    """What a check of a bank found; public. Neither accounts nor their number are.

    Attributes:
        boundary: the last one that was closed.
        restored_at: the last boundary that a lost bank can have closed before this copy of it was restored.
    """

    terms: BankTerms
    boundary: int | None
    centres: tuple[CentreShown, ...]
    restored_at: int | None


class BankBusy(LedgerUnavailable):
    """The centre may still be releasing elsewhere; a new generation begins later."""


class Superseded(LedgerRefused):
    """A newer generation of this centre has begun elsewhere; this one never releases again."""


class OldCopy(LedgerRefused):
    """The bank does not know an answer that it gave: it is an old copy, and it lends to nobody any more."""

    def __init__(self, address: BankAddress) -> None:
        super().__init__(
            f"{address} is an old copy of itself: a centre holds a later answer of it; put the right one back or, if "
            f"it is lost, use `dpfuse bank restore` or make a new bank for new sensors"
        )


class Bank:
    """A connection to a bank. Every call is one transaction inside the server, so a caller never holds a lock."""

    def __init__(self, address: BankAddress, connection: Connection[Any], terms: BankTerms) -> None:
        """Use `create` or `open`."""
        self.address, self.terms = address, terms
        self._connection = connection

    @classmethod
    def create(
        cls, where: str, guarantee: Guarantee, *, epoch_s: float = 2.0, patience: int = 30, capacity: int = 10_000
    ) -> Bank:
        """A new bank in an empty schema of that database."""
        address = BankAddress.parse(where)
        terms = BankTerms(
            bank_id=secrets.token_hex(16), guarantee=guarantee, epoch_s=epoch_s, patience=patience, capacity=capacity
        )
        with raising_bank_refused(address), connect(address) as connection, connection.transaction():
            connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{address.schema}"')
            connection.execute(script(terms))
            connection.execute("INSERT INTO bank VALUES (%s, %s)", (VERSION, terms.to_json()))
        return cls.open(where)

    @classmethod
    def open(cls, where: str) -> Bank:
        """The bank at that address; refused if there is none."""
        address = BankAddress.parse(where)
        with raising_bank_refused(address):
            connection = connect(address)
            try:
                version, terms = _read_bank(connection, address)
                if version != VERSION:
                    raise LedgerMismatch(
                        f"{address} has version {version}, and this dpfuse needs {VERSION}; stop its centres and bring "
                        f"it up with `dpfuse bank upgrade`"
                    )
            except BaseException:
                connection.close()
                raise
            return cls(address, connection, terms)

    @classmethod
    def upgrade(cls, where: str) -> int:
        """Bring a bank of an earlier version to this one in one transaction; returns the version that it had.

        Accounts, loans and centres stay. Stop the centres first: an earlier dpfuse cannot use the bank afterwards.
        """
        address = BankAddress.parse(where)
        with raising_bank_refused(address), connect(address) as connection, connection.transaction():
            _read_bank(connection, address)  # without one there is nothing to lock
            connection.execute("LOCK TABLE bank, centres")
            version, terms = _read_bank(connection, address)
            connection.execute(upgrade_script(terms, version))
        return version

    def restore(self) -> int:
        """Go on from a backup of a bank that was lost; returns the last boundary that the lost one can have closed.

        **Guarantees**
            - Nothing is lent in the period of that boundary, to nobody. So whatever the lost bank lent there after the
              backup, no account exceeds its budget. In later periods all accounts are new.
            - All generations of centres end, also those that the backup does not know. A centre begins anew once its
              last generation cannot release any more.
            - Assumptions: the copy has lent nothing since it was put in place, so centres are started after this call.
              The clock of the server is not in an earlier period than that of the lost bank was.

        Raises:
            LedgerMismatch: the guarantee has no periods, so nothing could ever be lent again.
        """
        if self.terms.guarantee.period is None:
            raise LedgerMismatch(
                f"{self.address} has one budget for all time, and nobody knows what was spent after the backup, so it "
                f"could never lend again; put the lost bank back, or make a new one for new sensors"
            )
        return int(self._value(_RESTORE, (self.terms.epoch_at(self.now()) + 1,)))

    def now(self) -> float:
        """The bank's clock, in seconds since 1970."""
        return float(self._value("SELECT extract(epoch FROM clock_timestamp())"))

    def last_closed(self) -> int:
        """The last boundary that was closed; -1 for none."""
        return int(self._value("SELECT coalesce(max(boundary), -1) FROM closings"))

    def register(self, centre: str, ledger_id: str, place: str, streams: Sequence[str], num_commits: int) -> int:
        """The generation of a centre that starts now.

        Args:
            place: names the machine and the files of the ledger. With another place, ledger, or one that has fewer
                commits than it had, a new generation begins, and what was lent to the last one is forfeited.
            streams: that the centre writes. A stream belongs to one ledger for ever, and a ledger to one centre.
        """
        query = "SELECT * FROM register_centre(%s, %s, %s, %s, %s)"
        [(result, number)] = self._rows(query, (centre, ledger_id, place, list(streams), num_commits))
        if result == "another":
            raise LedgerRefused(
                f"{self.address} knows this ledger, or the one that it is a copy of, under another name of its centre; "
                f"give that name, not {centre!r}"
            )
        if result == "busy":
            raise BankBusy(
                f"{self.address}: centre {centre!r} may still be releasing with another ledger or in another place; "
                f"try again in {number * self.terms.epoch_s:.0f} s"
            )
        return int(number)

    def submit(self, own: Submission, num_commits: int, private_tip: bytes = b"") -> None:
        """Hand in what a centre claims and states for a boundary.

        Args:
            num_commits, private_tip: of the centre's ledger, which must hold them when it starts again.

        Raises:
            Superseded: the generation has ended.
            OldCopy: some centre holds a later answer than the bank.
        """
        capacity = self.terms.capacity
        # Numbers of fixed width, filled up: the size of the message depends on the number of statements and on how many
        # times the capacity the sensors are.
        width = max(map(len, own.statements.values()), default=0)
        spent = np.concatenate(
            [np.zeros(0, np.int64), *(_filled(one, capacity, width) for one in own.statements.values())]
        )
        epochs = np.fromiter(own.statements, np.int64, len(own.statements))
        values = own.centre, own.generation, own.boundary, num_commits, _filled(own.claims, capacity)
        query = "SELECT submit(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        result = self._value(query, (*values, epochs, spent, *own.last_answer, private_tip))
        if result == "old copy":
            raise OldCopy(self.address)
        if result == "ended":
            raise Superseded(
                f"{self.address}: a newer generation of centre {own.centre!r} has begun; this one has ended for good"
            )

    def check_knows(self, centre: str, generation: int, last_answer: LastAnswer) -> None:
        """Refuse a bank that did not give this answer to that generation of a centre; it then lends to nobody."""
        if not self._value("SELECT knows_answer(%s, %s, %s, %s)", (centre, generation, *last_answer)):
            raise OldCopy(self.address)

    def last_answer(self, centre: str, generation: int) -> LastAnswer:
        """The last answer to that generation of a centre."""
        query = "SELECT boundary, mark FROM answers WHERE centre = %s AND generation = %s"
        rows = self._rows(query, (centre, generation))
        return LastAnswer(*rows[0]) if rows else NO_ANSWER

    def private_tip(self, centre: str, ledger_id: str, restore_mark: str) -> tuple[int, bytes]:
        """The last commit that the bank knows of that ledger, in any place, and its private tip.

        Empty for none, and if the bank has not answered the ledger yet since it was restored with that mark.
        """
        rows = self._rows(_PRIVATE_TIP, (centre, ledger_id, restore_mark))
        return rows[0] if rows else (0, b"")

    def close_boundary(self, boundary: int) -> bool:
        """Close that boundary if its deadline is over and nobody else is closing it; whether it is closed now."""
        return bool(self._value("SELECT close_boundary(%s)", (boundary,)))

    def loans(self, centre: str, generation: int, known: Collection[int] = ()) -> dict[int, Loan]:
        """The loans of a centre that are not settled, by boundary, without those that it knows. Private."""
        query = "SELECT epoch, sensors, amounts FROM loans WHERE centre = %s AND generation = %s AND epoch <> ALL (%s)"
        rows = self._rows(query, (centre, generation, np.array(sorted(known), np.int64)))
        return {epoch: Loan(sensors[sensors >= 0], amounts[sensors >= 0]) for epoch, sensors, amounts in rows}

    def unsettled(self, centre: str, generation: int) -> set[int]:
        """The epochs of a centre's loans whose statement was not counted yet."""
        rows = self._rows("SELECT epoch FROM loans WHERE centre = %s AND generation = %s", (centre, generation))
        return {epoch for (epoch,) in rows}

    def verify(self) -> BankCheck:
        """Check all accounts and loans, also while centres use them.

        Raises:
            LedgerRefused: an account is above its budget, or accounts, loans and closings do not add up.
            OldCopy: some centre holds a later answer than the bank.
        """
        with raising_bank_refused(self.address), self._snapshot():
            if self._value("SELECT count(*) FROM lost_answers"):
                raise OldCopy(self.address)
            budget = self.terms.budget
            if self._value(_ACCOUNTS, (budget,)):
                raise LedgerRefused(f"{self.address}: an account is above its budget; it was changed by hand")
            if self._value(_LENT):
                raise LedgerRefused(f"{self.address}: accounts and loans do not add up; one was changed by hand")
            if not self._value(_TOTALS):
                raise LedgerRefused(f"{self.address}: accounts do not add up to what was stated; one was changed")
            centres = tuple(CentreShown(*row) for row in self._rows(_CENTRES))
            last, restored_at = self.last_closed(), self._value("SELECT restored_at FROM bank")
            return BankCheck(
                self.terms, last if last >= 0 else None, centres, restored_at if restored_at >= 0 else None
            )

    def close(self) -> None:
        """Close the connection."""
        with suppress(driver().Error, OSError):
            self._connection.close()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with raising_bank_refused(self.address):
            return self._connection.cursor(binary=True).execute(query, values).fetchall()

    def _value(self, query: str, values: tuple[object, ...] = ()) -> Any:
        [(value,)] = self._rows(query, values)
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Bank({str(self.address)!r})"


def _read_bank(connection: Connection[Any], address: BankAddress) -> tuple[int, BankTerms]:
    """Version and terms of the bank at that address; refused if there is none that can be used or upgraded."""
    try:
        found: list[Any] = connection.execute(f'SELECT version, content FROM "{address.schema}".bank').fetchall()
    except driver().errors.UndefinedTable:
        raise LedgerMismatch(f"{address} holds no bank; make one with `dpfuse bank init`") from None
    if len(found) != 1 or not OLDEST_VERSION <= found[0][0] <= VERSION:
        raise LedgerMismatch(
            f"{address} has no version from {OLDEST_VERSION} to {VERSION}; use the dpfuse that made it"
        )
    return found[0][0], BankTerms.from_json(found[0][1])


def _filled(values: Sequence[int], capacity: int, width: int = 0) -> Integers:
    """The values, filled up to the next multiple of the capacity that has room for `width` of them, too."""
    length = max(1, -(-max(len(values), width) // capacity)) * capacity
    filled = np.full(length, NOTHING, np.int64)
    filled[: len(values)] = values
    return filled
