"""The lemma of docs/theory.md over simulated schedules: nobody's contribution depends on another sensor."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from dpfuse.ledger.bank import Book
from support.bank_schedules import draw_plan, of_others, pay_by_accounts, play, play_by_arrival


def check_schedules(seeds):
    """Every other sensor adds the same with and without one sensor; `play` checks the budgets after every boundary."""
    num_costs = 0
    for seed in seeds:
        plan = draw_plan(seed)
        with_all = play(plan)
        gone = plan.sensors[seed % len(plan.sensors)]
        assert play(plan, without=gone) == of_others(with_all, gone), f"schedule {seed}"
        num_costs += len(with_all)
    return num_costs


def test_no_sensor_changes_what_another_adds_to_any_centre():
    assert check_schedules(range(200)) > 200  # and not because nothing is added


@pytest.mark.slow
def test_no_sensor_changes_what_another_adds_over_ten_thousand_schedules():
    assert check_schedules(range(1000, 11_000)) > 10_000


def test_what_sensors_pay_in_a_schedule_is_what_the_accounts_of_a_centre_charge():
    """So the schedules above, which compute costs by themselves to be quick, are those of the real code."""
    num_costs = 0
    for seed in range(12):
        plan = draw_plan(seed)
        record = play(plan)
        assert play(plan, pays=pay_by_accounts) == record
        num_costs += len(record)
    assert num_costs > 20


def num_that_differ(seeds, how):
    differ = 0
    for seed in seeds:
        plan = draw_plan(seed)
        with_all = how(plan)
        differ += any(how(plan, without=gone) != of_others(with_all, gone) for gone in plan.sensors)
    return differ


def test_debits_in_order_of_arrival_break_independence():
    """Negative control."""
    assert num_that_differ(range(50), play_by_arrival) > 5


def test_a_slice_that_is_opened_on_arrival_breaks_independence():
    """Negative control."""
    assert num_that_differ(range(50), lambda plan, **more: play(plan, opens_on_arrival=True, **more)) > 5


class RefundsTwice(Book):
    """Planted fault: a statement that is sent again counts again."""

    def _settle(self, loan, spent):
        super()._settle(loan, spent)
        if loan is not None and len(spent):
            for sensor, amount, used in zip(*loan, spent, strict=True):
                self.accounts[sensor].spent = max(0, self.accounts[sensor].spent - (amount - used))


def test_a_loan_that_counts_twice_is_found():
    """Negative control of the check of budgets."""
    with pytest.raises(AssertionError):
        for seed in range(100):
            plan = draw_plan(seed)
            play(plan, book=RefundsTwice(plan.terms))


class KeepsClaims(Book):
    """Planted fault: claims of the period before count."""

    def close(self, boundary, submissions):
        object.__setattr__(self.terms, "may_claim", lambda *_: True)
        return super().close(boundary, submissions)


def num_that_depend_on_the_period_before(seeds, make_book=Book, *, keeps_claims=False):
    """Schedules with a loan in the second period that differs if a sensor reports nothing in the first."""
    differ = num_costs = 0
    for seed in seeds:
        plan = draw_plan(seed)
        if plan.terms.guarantee.period is None:
            continue
        for gone in plan.sensors:
            silent = silent_at_first(plan, gone)
            both = [
                later(plan, play(one, book=make_book(one.terms), keeps_claims=keeps_claims)) for one in (plan, silent)
            ]
            differ += both[0] != both[1]
            num_costs += len(both[0])
    assert num_costs > 20  # there is something to compare
    return differ


def silent_at_first(plan, gone):
    """The plan with a sensor that reports nothing in the first period."""
    wants = {
        key: {own: want for own, want in wanted.items() if own != gone or plan.terms.period_of(key[0]) > 0}
        for key, wanted in plan.wants.items()
    }
    return replace(plan, terms=copy.copy(plan.terms), wants=wants)


def later(plan, record):
    return {key: cost for key, cost in record.items() if plan.terms.period_of(key[0]) > 0}


def test_what_a_sensor_adds_does_not_depend_on_the_period_before():
    assert num_that_depend_on_the_period_before(range(60)) == 0


def test_claims_that_are_kept_over_a_period_are_found():
    """Negative control."""
    assert num_that_depend_on_the_period_before(range(60), KeepsClaims, keeps_claims=True) > 5
