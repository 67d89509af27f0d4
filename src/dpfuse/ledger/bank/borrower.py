"""The centre's side as pure code: slices that wait for their epoch, are spent from, closed and stated.

Which slice is open depends on the clock alone. What was spent of a slice is the difference of two balances of the
centre's own ledger, which is durable; so a crash at any moment leaves a number that is known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Integers
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank.rules import NO_ANSWER, LastAnswer, Loan, Submission

BalanceOf = Callable[[Integers], Integers]
"""What each of these sensors has spent in the centre's own ledger, ever. Private."""


class BankAnswer(NamedTuple):
    """What the bank holds for a centre after a boundary was closed. Private.

    Attributes:
        boundary: that was closed.
        loans: that the centre did not have yet, by epoch.
        unsettled: the epochs of all its loans whose statement was not counted yet.
        mark: of the closing of that boundary, see `LastAnswer`; empty if the centre's submission was not counted.
    """

    boundary: int
    loans: Mapping[int, Loan]
    unsettled: Collection[int]
    mark: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether the centre's submission for the boundary was in time; the bank then lends, be it to nobody."""
        return self.boundary in self.unsettled

    def __repr__(self) -> str:
        return f"BankAnswer(boundary={self.boundary})"


@dataclass
class HeldSlice:
    """A loan as the centre keeps it. Private.

    Attributes:
        epoch: in which it may be spent; it is void afterwards.
        sensors: ids in ascending order, shape (m,).
        amounts: shape (m,).
        before: the balances when the slice was opened, shape (m,); None before that.
        spent: what was spent of it, shape (m,), once it is closed.
    """

    epoch: int
    sensors: Integers = field(repr=False)
    amounts: Integers = field(repr=False)
    before: Integers | None = field(repr=False, default=None)
    spent: Integers | None = field(repr=False, default=None)

    def left(self, balance_of: BalanceOf) -> Integers:
        """What is left of the slice while it is open, shape (m,)."""
        assert self.before is not None
        return self.amounts - (balance_of(self.sensors) - self.before)

    @property
    def is_open(self) -> bool:
        return self.before is not None and self.spent is None

    def close(self, balance_of: BalanceOf) -> None:
        """Fix what was spent: 0 if the slice was never opened."""
        if self.spent is None:
            self.spent = self.amounts * 0 if self.before is None else balance_of(self.sensors) - self.before


class Borrower:
    """What one centre holds of the bank: at most one open slice, slices that wait, and closed ones to be stated.

    The caller makes `slices` durable after `enter`, before anything is spent or sent.

    **Guarantees**
        - A slice is opened only at the boundary that it names, for all its sensors at once. One that comes later is
          closed unspent.
        - A step may use floor(slice left / steps left in the epoch) of each sensor, and nothing of a sensor without a
          slice.
        - A closed slice is kept, and stated again, until the bank does not list it any more.
        - A loan of a boundary that was answered before is refused: it was settled, and the bank is an old copy.
        - What is claimed, allowed and stated for a sensor depends on this sensor alone and on the moments of the calls.
    """

    def __init__(
        self,
        slices: Iterable[HeldSlice] = (),
        balance_of: BalanceOf = np.zeros_like,
        epoch: int = -1,
        period_of: Callable[[int], int] = lambda epoch: 0,
        last_answer: LastAnswer = NO_ANSWER,
    ) -> None:
        """After a restart: `slices` and `last_answer` as they were made durable; all slices are closed now.

        Args:
            period_of: the period of an epoch, see `BankTerms.period_of`.
        """
        self.last_answer = last_answer
        self._period_of = period_of
        self.slices = {own.epoch: own for own in slices}
        self.epoch = max([epoch, *self.slices])
        self._claims: list[Integers] = []
        for own in self.slices.values():
            own.close(balance_of)

    @property
    def open(self) -> HeldSlice | None:
        """The slice of this epoch, if it came in time."""
        own = self.slices.get(self.epoch)
        return own if own is not None and own.is_open else None

    def note(self, sensors: Integers) -> None:
        """Claim these sensors at the next boundary: they reported in this epoch."""
        self._claims.append(sensors)

    def receive(self, answer: BankAnswer) -> None:
        """Keep new loans until their epoch, and forget closed slices whose statement was counted.

        Raises:
            LedgerRefused: the bank is an old copy, which would lend the same budget again: it has lost a loan that was
                never stated, or lists one that was settled.
        """
        for boundary, loan in answer.loans.items():
            self._take(boundary, loan)
        period = self._period_of(answer.boundary)  # loans of an earlier one are void, and the bank has deleted them
        current = [own for own in self.slices.values() if self._period_of(own.epoch) == period]
        if any(own.spent is None and own.epoch not in answer.unsettled for own in current):
            raise LedgerRefused("the bank does not know a loan that it has made: it is an old copy; make a new bank")
        if answer.is_counted:
            self.last_answer = LastAnswer(answer.boundary, answer.mark)
        for own in list(self.slices.values()):
            if own.spent is not None and own.epoch not in answer.unsettled:
                del self.slices[own.epoch]

    def _take(self, boundary: int, loan: Loan) -> None:
        if boundary in self.slices:
            return
        if boundary <= self.last_answer.boundary:
            raise LedgerRefused("the bank lists a loan that was settled: it is an old copy; make a new bank")
        own = HeldSlice(boundary, *(np.asarray(part, np.int64) for part in loan))
        self.slices[boundary] = own
        if boundary <= self.epoch:  # too late for all its sensors alike
            own.close(np.zeros_like)

    def close_before(self, epoch: int, balance_of: BalanceOf) -> None:
        """Close every slice of an epoch before that one."""
        for own in self.slices.values():
            if own.epoch < epoch:
                own.close(balance_of)

    def enter(self, epoch: int, balance_of: BalanceOf) -> None:
        """Begin that epoch: close every slice of an earlier one, and open the one of this.

        What reported in an earlier period than that of the next boundary is not claimed there.
        """
        assert epoch > self.epoch
        if self._period_of(self.epoch) != self._period_of(epoch + 1):
            self._claims = []
        self.epoch = epoch
        self.close_before(epoch, balance_of)
        opened = self.slices.get(epoch)
        if opened is not None and opened.spent is None:
            opened.before = balance_of(opened.sensors)

    def submit(self, centre: str, generation: int, boundary: int) -> Submission:
        """What to send for that boundary: claims of the epoch that ended, and all closed slices."""
        claims = np.unique(np.concatenate(self._claims)) if self._claims else np.zeros(0, np.int64)
        self._claims = []
        statements = {own.epoch: own.spent.tolist() for own in self.slices.values() if own.spent is not None}
        return Submission(centre, generation, boundary, claims.tolist(), statements, self.last_answer)

    def allowances(self, num_steps: int, balance_of: BalanceOf) -> tuple[Integers, Integers]:
        """Sensors, and what each may pay in the coming step of `num_steps` that are left in the epoch."""
        own = self.open
        if own is None:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return own.sensors, own.left(balance_of) // num_steps

    def __repr__(self) -> str:
        return f"Borrower(epoch={self.epoch})"
