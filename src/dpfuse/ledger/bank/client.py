"""What a centre does with its bank, in the thread that makes its steps: epochs, slices, and what a step may use."""

from __future__ import annotations

import math
import platform
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np

from dpfuse._arrays import Integers
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank.bank import Bank
from dpfuse.ledger.bank.borrower import Borrower
from dpfuse.ledger.bank.link import BankLink
from dpfuse.ledger.bank.rules import NO_ANSWER
from dpfuse.ledger.writer import Ledger

_FEWEST_STEPS, _MOST_STEPS = 4, 1000  # of an epoch
_NOBODY = np.zeros(0, np.int64)


class BankClient:
    """A centre's accounts at a bank: it spends from slices that were lent for the epoch in progress.

        bank = Bank.open("postgresql://bank@db/roads")
        ledger = Ledger.create("north.db", design, ["north"], bank.terms.bank_id)
        with BankClient(bank, "postgresql://bank@db/roads", "north", ledger) as client:
            centre = FusionCentre(design, ledger, bank=client)

    **Guarantees**
        - No call waits for the bank; messages are sent by another thread (`BankLink`).
        - Loans are used from the first step of the epoch that they name, all of a boundary or none, and not later.
        - A slice is durable in the ledger before a step spends from it. It is closed durably before it is stated.
        - A step may use floor(slice left / steps left in the epoch) of each sensor that has a slice, and nothing of any
          other.
        - The period of a step is that of its epoch. In the first two epochs of a period nothing is lent.
        - Without an answer of the bank for `patience` boundaries no step may be released until there is one.
        - A ledger that starts again on the same machine, in the same file, goes on with its slices. In any other place,
          and restored from a backup, they count as spent.
        - A ledger that was rolled back, in any place, or whose debits were changed, is refused: the bank keeps its last
          private tip. One that was restored from a backup is not.
        - A bank that does not know an answer that this centre holds is an old copy. It is refused, and lends to nobody.
        - Any number of sensors may report: a message grows by whole capacities, and nobody's claim depends on how many
          others there are.

    Args:
        bank: an open connection, which the client closes.
        where: the address of the bank, to connect again.
        centre: the name of this centre at the bank.
        ledger: made for this bank.
    """

    def __init__(self, bank: Bank, where: str, centre: str, ledger: Ledger) -> None:
        self.terms, self.centre, self._ledger = bank.terms, centre, ledger
        if ledger.terms.bank_id != self.terms.bank_id:
            raise LedgerRefused(
                f"{ledger.path} was not created for {bank.address}, so the bank does not know what it has spent; use "
                f"the bank that it was created for, or a new ledger"
            )
        self.terms.check_guarantee(ledger.terms.guarantee, bank.address)
        place = _place_of(ledger)
        _check_tip(bank, centre, ledger)
        self.generation = bank.register(centre, ledger.terms.ledger_id, place, list(ledger.streams), ledger.num_commits)
        self._link = BankLink(bank, where)
        generation, last_answer = ledger.last_answer()
        bank.check_knows(centre, generation, last_answer)
        self._borrower = Borrower(
            ledger.slices(self.generation),
            ledger.spent_of,
            period_of=self.terms.period_of,
            last_answer=last_answer if generation == self.generation else NO_ANSWER,
        )
        self._last_answer = self.terms.epoch_at(bank.now())
        self._last_step = 0
        self._link.start()

    def lends_to(self, ledger: Ledger) -> bool:
        """Whether what is lent is debited in that ledger."""
        return ledger is self._ledger

    def check_interval(self, interval_s: float) -> None:
        """Refuse steps that are too long for the bank's epochs, or too short.

        Messages for long ones could not be in time. Of a slice a short one could use so little that the design would
        take it for nothing (`SMALLEST_ACCOUNT` of `dpfuse.policy.step`).
        """
        longest, shortest = self.terms.epoch_s / _FEWEST_STEPS, self.terms.epoch_s / _MOST_STEPS
        if not shortest <= interval_s <= longest:
            raise ValueError(
                f"interval must be from {shortest:g} to {longest:g} s, a thousandth to a quarter of the bank's epoch, "
                f"got {interval_s:g}; make a bank with other epochs"
            )

    @property
    def may_release(self) -> bool:
        """Whether the bank has answered lately; public."""
        return self._borrower.epoch - self._last_answer <= self.terms.patience

    @property
    def answer_age_s(self) -> float:
        """Seconds since the boundary that the bank answered last; public."""
        return max(0.0, self._link.now() - self.terms.begins_at(self._last_answer))

    def begin_step(self, step: int, closes_at_s: float, interval_s: float) -> tuple[Integers, Integers]:
        """Sensors, and what each may pay in that step, shape (m,) each. Private.

        Begins an epoch if the step is the first of one.

        Args:
            closes_at_s: the moment at which the step ends, by the monotonic clock.
            interval_s: from one step to the next.

        Raises:
            LedgerRefused: the centre may not borrow any more.
        """
        if self._link.ended is not None:
            raise self._link.ended
        if step > self._last_step:
            self._find_epoch(step, closes_at_s + self._link.offset_s, interval_s)
        if not self.may_release or step > self._last_step:
            return _NOBODY, _NOBODY
        return self._borrower.allowances(self._last_step - step + 1, self._ledger.spent_of)

    def note(self, sensors: Integers) -> None:
        """Claim slices for these sensors, which reported, at the next boundary."""
        self._borrower.note(sensors)

    def _find_epoch(self, step: int, bank_time_s: float, interval_s: float) -> None:
        epoch = self.terms.epoch_at(bank_time_s)
        self._follow_period(epoch)
        if epoch <= self._borrower.epoch:  # after a restart, or a clock that was set back: wait for the next boundary
            return
        self._last_step = step + max(0, math.ceil((self.terms.begins_at(epoch + 1) - bank_time_s) / interval_s) - 1)
        for answer in self._link.collect():
            self._borrower.receive(answer)
            if answer.is_counted:
                self._last_answer = max(self._last_answer, answer.boundary)
        self._borrower.enter(epoch, self._ledger.spent_of)
        self._keep_slices()
        own = self._borrower.submit(self.centre, self.generation, epoch + 1)
        ledger = self._ledger
        self._link.post(own, ledger.num_commits, ledger.found.private_tip, set(self._borrower.slices))

    def _follow_period(self, epoch: int) -> None:
        """Begin the period of that epoch, also after a crash between the two transactions here."""
        period, begun = self.terms.period_of(epoch), self._ledger.period
        if self.terms.guarantee.period is None or period <= (-1 if begun is None else begun):
            return
        # What was spent of a slice is a difference of balances, so slices are closed before these start afresh.
        self._borrower.close_before(epoch, self._ledger.spent_of)
        self._keep_slices()
        self._ledger.begin_period(period)

    def _keep_slices(self) -> None:
        self._ledger.keep_slices(self.generation, self._borrower.slices.values(), self._borrower.last_answer)

    def close(self) -> None:
        """End the messages to the bank."""
        self._link.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"BankClient({self.centre!r}, generation {self.generation})"


def _place_of(ledger: Ledger) -> str:
    """Names this machine and this file: a copy and a restored backup have another place, on this machine, too."""
    machine = ""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text().strip()
    found, mark = ledger.path.stat(), ledger.restore_mark()
    return f"{machine}/{platform.node()}/{found.st_dev}/{found.st_ino}" + (f"/{mark}" if mark else "")


def _check_tip(bank: Bank, centre: str, ledger: Ledger) -> None:
    """Refuse a ledger that lacks the commit whose private tip its bank keeps, or has another past up to it."""
    number, tip = bank.private_tip(centre, ledger.terms.ledger_id, ledger.restore_mark())
    if tip and ledger.private_tip_at(number) != tip:
        raise LedgerRefused(
            f"{ledger.path} does not hold commit {number} with the private tip that its bank keeps: it was rolled "
            f"back, or its debits were changed; put the right one back, or restore a backup (`dpfuse ledger restore`)"
        )
