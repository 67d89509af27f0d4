"""The Rényi divergence over two periods of a small system, summed up over every possible release.

Three steps in each period; the noise is a discrete Gaussian of standard deviation 1, and a release outside of -6..6
saturates. One sensor reports in the first period of one world and not in that of the other. In the second period it
reports in both. What it adds may depend on everything that a centre may keep: its memory, whether it is known, its
account, and the last release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dpfuse.ledger.bank import BankTerms, Book, Borrower
from dpfuse.ledger.bank.borrower import BankAnswer
from dpfuse.privacy.budget import IndividualFilter
from support.bank_schedules import KeepsOwnClaims
from support.designs import make_guarantee

STEPS, LARGEST, ORDER, BUDGET = 3, 6, 2.0, 9
"""Steps of a period; the largest release; the Rényi order; the budget S in squared grid steps."""
SENSOR = np.array([7])
VALUES = np.arange(-LARGEST, LARGEST + 1)


def noise_around(mean):
    """Probabilities of the releases, those outside of the range added to its ends."""
    wide = np.arange(-40, 41)
    weights = np.exp(-np.square(wide - mean) / 2.0)
    found = np.bincount(np.clip(wide, -LARGEST, LARGEST) + LARGEST, weights / weights.sum(), len(VALUES))
    return found


@dataclass(frozen=True)
class Keeps:
    """What a faulty centre keeps over the boundary."""

    memory: bool = False
    limit: bool = False
    account: bool = False


@dataclass(frozen=True)
class State:
    """Everything private of the sensor: f's memory, steps since it last reported, and what it has spent."""

    memory: int = 0
    is_limited: bool = False
    spent: int = 0

    def at_boundary(self, keeps):
        fresh = State()
        return replace(
            fresh,
            memory=self.memory if keeps.memory else 0,
            is_limited=self.is_limited and keeps.limit,
            spent=self.spent if keeps.account else 0,
        )


def step(state, reports, last_release):
    """State after a step and what the sensor adds: 2 if it is new, else less, and more after a large release."""
    if not reports or state.is_limited:
        return replace(state, is_limited=False), 0
    wish = 2 - state.memory + (last_release > 0)
    accounts = IndividualFilter(BUDGET, 1, {7: state.spent})
    admitted = accounts.spend(SENSOR, np.array([[wish]]))
    spent = BUDGET - int(accounts.left(SENSOR)[0])
    return State(memory=1, is_limited=True, spent=spent), int(admitted.contributions[0, 0])


def divergence(keeps=Keeps()):  # noqa: B008  # frozen
    """The Rényi divergence of order 2 of all releases, the larger of the two directions."""

    def sums(number, one, other, last):
        """The sums over all continuations of P^2 / Q and Q^2 / P."""
        if number == 2 * STEPS:
            return np.ones(2)
        if number == STEPS:
            one, other = one.at_boundary(keeps), other.at_boundary(keeps)
        one, adds_one = step(one, True, last)
        other, adds_other = step(other, number >= STEPS, last)
        p, q = noise_around(adds_one), noise_around(adds_other)
        later = np.array([sums(number + 1, one, other, value) for value in (-1, 1)])
        rest = np.where(VALUES[:, None] > 0, later[1], later[0])  # only the sign of a release is read later
        return ((np.stack([p**2 / q, q**2 / p], axis=1)) * rest).sum(0)

    return float(np.log(sums(0, State(), State(), -1)).max()) / (ORDER - 1)


def test_two_worlds_that_differ_in_one_period_lose_at_most_one_budget():
    allowed = ORDER * BUDGET / 2
    found = divergence()
    assert 0.3 * allowed < found <= allowed


@pytest.mark.parametrize("kept", ["memory", "limit"])
def test_private_state_that_is_kept_over_a_boundary_loses_more_than_one_budget(kept):
    """Negative controls: f's memory, and a rate limit."""
    assert divergence(Keeps(**{kept: True})) > divergence() + 0.1


def test_an_account_that_is_kept_over_a_boundary_changes_the_second_period():
    """Negative control: the sensor adds less in the second period because of what it reported in the first."""
    assert divergence(Keeps(account=True)) > divergence() + 0.1


def second_period(reports_before, book, keep_claims):
    """What the bank lends for each epoch of the second period; the sensor reports in all of its epochs."""
    terms = book.terms
    first = 2 * terms.epochs_per_period
    borrower = (KeepsOwnClaims if keep_claims else Borrower)(epoch=first - 5, period_of=terms.period_of)
    book.register("a", first - 5)
    lent = []
    for epoch in range(first - 4, first + 4):
        borrower.enter(epoch, np.zeros_like)
        submission = borrower.submit("a", 1, epoch + 1)
        lent.append(borrower.allowances(1, np.zeros_like)[1].sum() if epoch >= first else 0)
        if epoch >= first or reports_before:
            borrower.note(SENSOR)
        book.close(epoch + 1, [submission])
        loans = {key[2]: loan for key, loan in book.loans.items() if key[2] not in borrower.slices}
        borrower.receive(BankAnswer(epoch + 1, loans, {key[2] for key in book.loans}))
    return lent


class KeepsClaims(Book):
    """Planted fault: claims of the period before count."""

    def close(self, boundary, submissions):
        object.__setattr__(self.terms, "may_claim", lambda *boundaries: True)
        return super().close(boundary, submissions)


@pytest.mark.parametrize(("book", "is_same"), [(Book, True), (KeepsClaims, False)])
def test_a_bank_lends_in_a_period_by_the_claims_of_that_period_alone(book, is_same):
    """With a negative control."""
    guarantee = make_guarantee("individual", period=10.0)
    lent = []
    for reports_before in (True, False):
        terms = BankTerms(bank_id="x", guarantee=guarantee, epoch_s=1.0)
        lent.append(second_period(reports_before, book(terms), keep_claims=book is KeepsClaims))
    assert (lent[0] == lent[1]) == is_same
    assert lent[0][-1] > 0  # from the third epoch of the period on
    assert math.isclose(sum(lent[1][:6]), 0)  # not in its first two epochs
