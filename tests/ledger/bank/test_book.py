"""The bank as pure code: the size of a slice, what statements do, and what happens to generations."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpfuse import Guarantee
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank import BankAnswer, BankTerms, Book, Borrower, Loan, Submission, slice_of
from dpfuse.policy import ExactStep
from dpfuse.privacy import IndividualFilter, Release
from support.designs import make_design

GUARANTEE = Guarantee(order=2.0, budget=1.5, adjacency="remove-one", accounting="individual")
TERMS = BankTerms(bank_id="test", guarantee=GUARANTEE, patience=3)


def book_with(*centres):
    book = Book(TERMS)
    for centre in centres:
        book.register(centre, 0)
    return book


def claim(boundary, *sensors, centre="a", generation=1, **statements):
    return Submission(centre, generation, boundary, sensors, {int(key[1:]): own for key, own in statements.items()})


def test_a_slice_is_the_rule_in_exact_arithmetic():
    for left in (0, 1, 17, 10**6 + 1, TERMS.budget):
        for num_claimants in (1, 2, 3, 7):
            rule = min(Fraction(left, 2), Fraction(TERMS.budget, 8)) / num_claimants
            assert slice_of(left, TERMS.budget, num_claimants) == math.floor(rule)


def test_one_centre_can_use_all_but_a_thousandth_of_a_budget_in_45_epochs():
    """With the step that makes contributions, ten in each epoch."""
    step = ExactStep(make_design("individual", spread=0.5, horizon=None, expected_stay=4.0), 1)
    assert step.mechanism.budget == TERMS.budget
    book, borrower, spent, carry, rng = book_with("a"), Borrower(), 0, step.init(), np.random.default_rng(3)

    def balance_of(sensors):
        return np.full(len(sensors), spent)

    for epoch in range(45):
        borrower.enter(epoch, balance_of)
        borrower.note(np.array([5]))
        own = borrower.submit("a", 1, epoch + 1)
        for num_steps in range(10, 0, -1):
            lent = borrower.allowances(num_steps, balance_of)
            accounts = IndividualFilter.lending(TERMS.budget, step.mechanism.factor, *lent)
            carry, charged = step.contribute(carry._replace(accounts=accounts), [5], rng.uniform(-1, 1, (1, 2)))
            carry, _ = step.estimate(carry, Release(np.zeros(2, np.int64), charged.fusion_weight, None))
            spent += int(charged.debits.sum())
        loan = book.close(epoch + 1, [own])["a"]
        borrower.receive(BankAnswer(epoch + 1, {epoch + 1: loan}, {key[2] for key in book.loans}))
    assert 0.999 * TERMS.budget <= spent <= TERMS.budget


def test_centres_that_claim_a_sensor_together_have_equal_slices():
    book = book_with("a", "b", "c")
    loans = book.close(1, [claim(1, 7, 8), claim(1, 8, centre="b"), claim(1, centre="c")])
    assert loans["a"] == ([7, 8], [slice_of(TERMS.budget, TERMS.budget, 1), slice_of(TERMS.budget, TERMS.budget, 2)])
    assert loans["b"].amounts == loans["a"].amounts[1:] and loans["c"] == Loan([], [])


@pytest.mark.parametrize("stated", [[-1], [2**62], []])
def test_an_impossible_statement_counts_as_the_whole_loan(stated):
    book = book_with("a")
    [amount] = book.close(1, [claim(1, 7)])["a"].amounts
    book.close(2, [claim(2, e1=stated)])
    assert (book.accounts[7].spent, book.accounts[7].lent) == (amount, 0)


def test_a_statement_counts_once():
    book = book_with("a")
    book.close(1, [claim(1, 7)])
    for boundary in (2, 3):
        book.close(boundary, [claim(boundary, e1=[10])])
        assert (book.accounts[7].spent, book.accounts[7].lent) == (10, 0)


def test_claims_that_are_no_ids_or_repeated_open_nothing():
    book = book_with("a")
    assert book.close(1, [claim(1, 7, -1, 7)])["a"].sensors == [7]
    assert list(book.accounts) == [7]


def test_a_submission_for_another_boundary_or_generation_is_left_out():
    book = book_with("a")
    assert book.close(2, [claim(1, 7)]) == book.close(3, [claim(3, 7, generation=2)]) == {}
    with pytest.raises(ValueError, match="boundary must be above 3"):
        book.close(3, [])


def test_a_new_generation_waits_until_the_last_one_has_stopped_and_forfeits_its_loans():
    book = book_with("a")
    [amount] = book.close(1, [claim(1, 7)])["a"].amounts
    with pytest.raises(LedgerRefused, match="may still be releasing elsewhere"):
        book.register("a", 1 + TERMS.patience)
    assert book.register("a", 4, is_same_ledger=True) == 1
    assert book.register("a", 4 + TERMS.patience + 3) == 2
    book.close(12, [claim(12, e1=[0])])  # the old generation wakes up and states that nothing was spent
    assert (book.accounts[7].spent, book.accounts[7].lent) == (amount, 0)


def test_claims_of_reports_in_the_period_before_are_lent_nothing():
    """A period has six epochs, and a claim is of reports two epochs before its boundary."""
    book = Book(replace(TERMS, guarantee=replace(GUARANTEE, period=6 * TERMS.epoch_s)))
    book.register("a", 0)
    lent = {boundary: book.close(boundary, [claim(boundary, 7)])["a"].sensors for boundary in range(4, 15)}
    assert [boundary for boundary, sensors in lent.items() if not sensors] == [6, 7, 12, 13]


def test_terms_are_read_back_as_written():
    assert BankTerms.from_json(TERMS.to_json()) == TERMS


def test_neither_accounts_nor_ids_are_shown():
    book = book_with("a")
    loan = book.close(1, [claim(1, 7777)])["a"]
    borrower = Borrower()
    borrower.receive(BankAnswer(1, {1: loan}, {1}))
    shown = [book, loan, borrower, borrower.slices[1], claim(1, 7777, e1=[7777])]
    assert all("7777" not in repr(own) and str(loan.amounts[0]) not in repr(own) for own in shown)


def test_a_bank_for_total_accounting_is_refused():
    guarantee = replace(TERMS.guarantee, accounting="total")
    with pytest.raises(ValueError, match="an account belongs to a stream, and a stream to one ledger"):
        replace(TERMS, guarantee=guarantee)
