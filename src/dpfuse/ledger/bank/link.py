"""The messages between a centre and its bank, in a thread of their own: no step of the centre waits for them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import NamedTuple

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank.bank import Bank, OldCopy, Superseded
from dpfuse.ledger.bank.borrower import BankAnswer
from dpfuse.ledger.bank.rules import Submission

_log = logging.getLogger(__name__)
_POLL_S = 0.02  # between two questions whether a boundary is closed
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # after an error; doubled after each
# The centre's clock is set to the bank's once they differ by more than this share of an epoch. A measurement that takes
# longer than the same share is not used.
_CLOCK_SHARE = 0.05


class _Letter(NamedTuple):
    """A submission, the ledger's last commit and its private tip, and the epochs of the loans that the centre has."""

    submission: Submission
    num_commits: int
    private_tip: bytes
    known: Collection[int]


class BankLink:
    """Sends what a centre submits, closes boundaries, and fetches loans.

    `post` and `collect` return at once, whatever the bank does. After an error the link connects again, with longer
    and longer pauses, and the log says once that the bank is away and once that it is back.

    Attributes:
        ended: the error after which the centre never borrows again: a newer generation has begun elsewhere, or the
            bank is an old copy.
        offset_s: the bank's clock less the centre's monotonic clock.
    """

    def __init__(self, bank: Bank, where: str) -> None:
        self.terms = bank.terms
        self.ended: LedgerRefused | None = None
        self._where, self._address = where, bank.address
        self._bank: Bank | None = bank
        self.offset_s = float("inf")
        self._measure(bank, most_s=float("inf"))
        self._letter: _Letter | None = None
        self._answers: list[BankAnswer] = []
        self._pause_s = _FIRST_PAUSE_S
        self._changed = threading.Condition()
        self._is_stopping, self._is_away = False, False
        self._thread = threading.Thread(target=self._run, name="dpfuse-bank", daemon=True)

    def now(self) -> float:
        """The time by the bank's clock."""
        return time.monotonic() + self.offset_s

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A call that hangs at the bank ends with the process."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def post(self, submission: Submission, num_commits: int, private_tip: bytes, known: Collection[int]) -> None:
        """Send this for its boundary, in place of what was posted before."""
        with self._changed:
            self._letter = _Letter(submission, num_commits, private_tip, known)
            self._changed.notify()

    def collect(self) -> list[BankAnswer]:
        """The answers since the last call, in order."""
        with self._changed:
            answers, self._answers = self._answers, []
            return answers

    def _run(self) -> None:
        try:
            while (letter := self._next()) is not None:
                self._deliver(letter)
        except (Superseded, OldCopy) as error:
            self.ended = error
        except Exception as error:
            self.ended = LedgerRefused(f"the link to {self._address} stopped: {type(error).__name__}")
        finally:
            if self._bank is not None:
                self._bank.close()

    def _next(self) -> _Letter | None:
        with self._changed:
            self._changed.wait_for(lambda: self._letter is not None or self._is_stopping)
            letter, self._letter = self._letter, None
            return None if self._is_stopping else letter

    def _deliver(self, letter: _Letter) -> None:
        """Send the letter and fetch its answer, unless a newer letter is posted meanwhile."""
        while not self._is_outdated():
            try:
                answer = self._exchange(self._bank or self._connect(), letter)
            except (Superseded, OldCopy):
                raise
            except LedgerRefused as error:
                self._note_away(error)
                continue
            if answer is not None:
                self._note_back()
                with self._changed:
                    self._answers.append(answer)
            return

    def _exchange(self, bank: Bank, letter: _Letter) -> BankAnswer | None:
        """The answer to the letter; None if a newer letter is posted first."""
        own = letter.submission
        bank.submit(own, letter.num_commits, letter.private_tip)
        self._measure(bank, most_s=_CLOCK_SHARE * self.terms.epoch_s)
        if not self._wait(self.terms.deadline_of(own.boundary) - self.offset_s - time.monotonic()):
            return None
        while not bank.close_boundary(own.boundary):
            if not self._wait(_POLL_S):
                return None
        loans = bank.loans(own.centre, own.generation, letter.known)
        unsettled, last = bank.unsettled(own.centre, own.generation), bank.last_answer(own.centre, own.generation)
        return BankAnswer(own.boundary, loans, unsettled, last.mark if last.boundary == own.boundary else "")

    def _connect(self) -> Bank:
        self._bank = bank = Bank.open(self._where)
        if bank.terms != self.terms:
            raise Superseded(f"{self._address} holds another bank than before; put the right one back")
        return bank

    def _measure(self, bank: Bank, most_s: float) -> None:
        """Compare the clocks."""
        begin_s = time.monotonic()
        now_s = bank.now()
        end_s = time.monotonic()
        offset_s = now_s - (begin_s + end_s) / 2
        if end_s - begin_s <= most_s and abs(offset_s - self.offset_s) > _CLOCK_SHARE * self.terms.epoch_s:
            self.offset_s = offset_s

    def _wait(self, pause_s: float) -> bool:
        """Wait; False at once if a newer letter is posted or the link is to stop."""
        with self._changed:
            return not self._changed.wait_for(self._is_outdated, max(0.0, pause_s))

    def _is_outdated(self) -> bool:
        return self._letter is not None or self._is_stopping

    def _note_away(self, error: LedgerRefused) -> None:
        """Close the connection, and pause."""
        if self._bank is not None:
            self._bank.close()
            self._bank = None
        if not self._is_away:
            self._is_away = True
            _log.warning(
                "%s; trying again. Releases go on, and stop after %d boundaries without an answer",
                error,
                self.terms.patience,
            )
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping, self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _note_back(self) -> None:
        self._pause_s = _FIRST_PAUSE_S
        if self._is_away:
            self._is_away = False
            _log.warning("%s answers again", self._address)

    def __repr__(self) -> str:
        return f"BankLink({str(self._address)!r})"
