"""The bank as pure code: accounts, loans, and the one closer. `bank/schema.py` does the same inside PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank.rules import BankTerms, Loan, Submission, slice_of


@dataclass
class Account:
    """What one sensor has spent by the statements, and what is lent out of its budget. Private."""

    spent: int = 0
    lent: int = 0


class Book:
    """Accounts of sensors, lent in slices to centres.

    **Guarantees**
        - Unit: one sensor id, over all centres and generations.
        - spent + lent is at most the budget, for every account, after every call.
        - What an account lends depends on the claims and statements for this sensor alone, and on which submissions
          were counted.
        - A loan counts once: a second statement for it changes nothing. A statement that is not between 0 and the loan
          counts as the whole loan.
        - With periods all of this holds within each period. At the first boundary of a period all accounts and loans of
          earlier ones are deleted, and no claim of an earlier one counts.
        - The loans of a generation that ended are forfeited: they count as spent.
        - A book that was restored from an old copy lends nothing in the period of the restore, and ends all generations
          that the copy or the lost book may have had.
    """

    def __init__(self, terms: BankTerms) -> None:
        self.terms = terms
        self.accounts: dict[int, Account] = {}
        self.loans: dict[tuple[str, int, int], Loan] = {}
        self.generations: dict[str, int] = {}
        self.last_boundary: dict[str, int] = {}
        self.closed = self.restored_at = -1

    def restore(self, boundary: int) -> None:
        """Go on from an old copy, after that boundary was the last one that the lost book can have closed."""
        self.restored_at = max(self.restored_at, boundary)

    def register(self, centre: str, boundary: int, *, is_same_ledger: bool = False) -> int:
        """The generation of a centre that starts now.

        Args:
            is_same_ledger: the ledger of the last generation, on the same machine and under its lock. It knows what was
                spent, so the generation goes on. Otherwise a new one begins.
        """
        generation = self.generations.get(centre, 0)
        if generation <= max(0, self.restored_at) or not is_same_ledger:
            last = max(self.restored_at, self.last_boundary.get(centre, -1))
            if last >= 0 and not self.terms.may_begin_anew(boundary, last):
                raise LedgerRefused(f"centre {centre!r} may still be releasing elsewhere; try again later")
            generation = max(generation, self.restored_at, 0) + 1
        self.generations[centre], self.last_boundary[centre] = generation, boundary
        return generation

    def close(self, boundary: int, submissions: Iterable[Submission]) -> dict[str, Loan]:
        """The loans of that boundary. Submissions for other boundaries or ended generations are left out."""
        if boundary <= self.closed:
            raise ValueError(f"boundary must be above {self.closed}, which is closed, got {boundary}")
        if self.terms.period_of(boundary) > self.terms.period_of(self.closed):
            self.accounts, self.loans = {}, {}
        self.closed = boundary
        counted = {
            own.centre: own
            for own in submissions
            if own.boundary == boundary
            and own.generation == self.generations.get(own.centre)
            and own.generation > self.restored_at
        }
        self._forfeit()
        for own in counted.values():
            self.last_boundary[own.centre] = boundary
            for epoch, spent in own.statements.items():
                self._settle(self.loans.pop((own.centre, own.generation, epoch), None), spent)
        may_claim = self.terms.may_claim(boundary, self.restored_at)
        claims = {
            centre: sorted({sensor for sensor in own.claims if sensor >= 0 and may_claim})
            for centre, own in counted.items()
        }
        num_claimants = Counter(sensor for sensors in claims.values() for sensor in sensors)
        amounts = {sensor: self._slice(sensor, num) for sensor, num in num_claimants.items()}
        granted = {centre: Loan(own, [amounts[sensor] for sensor in own]) for centre, own in claims.items()}
        for centre, loan in granted.items():
            self.loans[centre, self.generations[centre], boundary] = loan
            for sensor, amount in zip(*loan, strict=True):
                self.accounts[sensor].lent += amount
        return granted

    def _slice(self, sensor: int, num_claimants: int) -> int:
        account = self.accounts.setdefault(sensor, Account())
        budget = self.terms.budget
        return slice_of(budget - account.spent - account.lent, budget, num_claimants)

    def _settle(self, loan: Loan | None, spent: Sequence[int]) -> None:
        """Move what was spent of a loan from lent to spent; a missing or impossible number counts as the whole loan."""
        if loan is None:
            return
        for place, (sensor, amount) in enumerate(zip(*loan, strict=True)):
            used = spent[place] if place < len(spent) and 0 <= spent[place] <= amount else amount
            self.accounts[sensor].lent -= amount
            self.accounts[sensor].spent += used

    def _forfeit(self) -> None:
        for key in [key for key in self.loans if key[1] < self.generations[key[0]]]:
            self._settle(self.loans.pop(key), ())

    def __repr__(self) -> str:
        return "Book()"
