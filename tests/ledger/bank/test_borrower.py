"""The centre's side as pure code: when a slice is opened and closed, and what a step may use of it."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank import BankAnswer, Borrower, Loan


class Balances:
    """What two sensors have spent."""

    def __init__(self):
        self.spent = {3: 100, 4: 0}

    def __call__(self, sensors):
        return np.array([self.spent[sensor] for sensor in sensors.tolist()], np.int64)


LOAN = Loan([3, 4], [60, 7])


def take(borrower, *epochs):
    borrower.receive(BankAnswer(max(epochs), dict.fromkeys(epochs, LOAN), {*borrower.slices, *epochs}))


def caps_of(borrower, num_steps, balances):
    return dict(zip(*(part.tolist() for part in borrower.allowances(num_steps, balances)), strict=True))


def test_a_slice_is_opened_at_its_own_boundary_and_closed_at_the_next():
    borrower, balances = Borrower(), Balances()
    borrower.enter(5, balances)
    take(borrower, 7)
    assert caps_of(borrower, 2, balances) == {}
    borrower.enter(6, balances)
    assert caps_of(borrower, 2, balances) == {}
    borrower.enter(7, balances)
    assert caps_of(borrower, 2, balances) == {3: 30, 4: 3}
    balances.spent[3] += 25
    assert caps_of(borrower, 1, balances) == {3: 35, 4: 7}
    borrower.enter(8, balances)
    assert caps_of(borrower, 1, balances) == {}
    assert borrower.submit("a", 1, 9).statements == {7: [25, 0]}


def test_a_loan_that_comes_after_its_boundary_is_returned_unspent():
    borrower, balances = Borrower(), Balances()
    borrower.enter(7, balances)
    take(borrower, 7)
    assert caps_of(borrower, 1, balances) == {}
    assert borrower.submit("a", 1, 8).statements == {7: [0, 0]}


def test_statements_are_repeated_until_the_bank_has_counted_them():
    borrower, balances = Borrower(), Balances()
    take(borrower, 1)
    borrower.enter(3, balances)
    for boundary in (4, 5):
        assert borrower.submit("a", 1, boundary).statements == {1: [0, 0]}
    borrower.receive(BankAnswer(5, {}, {1}))  # lent for boundary 1, and not settled yet
    assert borrower.submit("a", 1, 5).statements == {1: [0, 0]}
    borrower.receive(BankAnswer(5, {}, {5}))
    assert borrower.submit("a", 1, 6).statements == {}


def test_a_loan_that_was_settled_and_is_listed_again_is_refused():
    """An old copy of the bank lists it; as a late loan it would be stated as unspent."""
    borrower, balances = Borrower(), Balances()
    take(borrower, 7)
    borrower.enter(7, balances)
    borrower.enter(8, balances)
    borrower.receive(BankAnswer(9, {9: LOAN}, {9}, "mark"))  # loan 7 is settled and forgotten
    assert borrower.last_answer == (9, "mark") and list(borrower.slices) == [9]
    for one in (borrower, Borrower(borrower.slices.values(), balances, last_answer=borrower.last_answer)):
        with pytest.raises(LedgerRefused, match="a loan that was settled: it is an old copy"):
            one.receive(BankAnswer(10, {7: LOAN}, {7, 9}))


def test_claims_are_those_who_reported_since_the_last_submission():
    borrower = Borrower()
    borrower.note(np.array([9, 2]))
    borrower.note(np.array([9]))
    assert borrower.submit("a", 1, 4).claims == [2, 9]
    assert borrower.submit("a", 1, 5).claims == []


def test_after_a_crash_slices_are_closed_with_what_was_really_spent():
    borrower, balances = Borrower(), Balances()
    take(borrower, 7)
    take(borrower, 8)
    borrower.enter(7, balances)
    durable = copy.deepcopy(list(borrower.slices.values()))
    balances.spent[4] += 2
    again = Borrower(durable, balances)
    assert again.submit("a", 1, 9).statements == {7: [0, 2], 8: [0, 0]}
    again.enter(9, balances)
    assert caps_of(again, 1, balances) == {}
