"""Budget filters: the budget is never exceeded for any input, and private accounts are not shown."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfuse.errors import BudgetExceeded
from dpfuse.guarantee import Guarantee
from dpfuse.privacy import GRID, IndividualFilter, TotalFilter, as_loss, squared_steps

checked = settings(max_examples=60, deadline=None, derandomize=True)

BUDGET = 1000
costs = st.lists(st.one_of(st.integers(0, 60), st.integers(0, 2**70)), max_size=40)
rows = st.tuples(st.integers(-25, 25), st.integers(-25, 25))
step = st.dictionaries(st.integers(0, 5), rows, max_size=6)
steps = st.lists(step, max_size=25)
in_streams = st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3), rows), min_size=1, max_size=30)


def spend_all(account, wanted):
    """What was taken, in order."""
    taken = []
    for cost in wanted:
        try:
            account.spend(cost)
        except BudgetExceeded:
            continue
        taken.append(cost)
    return taken


def spend_step(accounts, contributions):
    """One step given as id -> row; what comes back, likewise."""
    if not contributions:
        return {}
    admitted = accounts.spend(list(contributions), list(contributions.values()))
    return {sensor: tuple(row) for sensor, row in zip(contributions, admitted.contributions.tolist(), strict=True)}


class TestBudget:
    @pytest.mark.parametrize("order", [1.1, 2.0, 7.3, 32.0])
    @pytest.mark.parametrize("budget", [1e-9, 0.1, 1.5, 1 / 3, 1e4])
    def test_budget_in_grid_steps_is_the_floor_of_the_exact_number(self, order, budget):
        steps = squared_steps(Guarantee(order=order, budget=budget, adjacency="remove-one"))
        exact = 2 * Fraction(budget) * GRID**2 / Fraction(order)
        assert isinstance(steps, int)
        assert steps <= exact < steps + 1
        assert as_loss(order, steps) == pytest.approx(budget, rel=1e-6, abs=order / GRID**2)

    def test_budget_in_grid_steps_of_order_2_and_budget_1_5(self):
        assert squared_steps(Guarantee(order=2.0, budget=1.5, adjacency="remove-one")) == 3 * 2**39


class TestTotal:
    @checked
    @given(costs)
    def test_budget_is_never_exceeded_and_every_cost_that_fits_is_debited(self, wanted):
        account, left = TotalFilter(BUDGET), BUDGET
        for cost in wanted:
            before = account.left
            if cost <= left:
                account.spend(cost)
                left -= cost
            else:
                with pytest.raises(BudgetExceeded):
                    account.spend(cost)
            assert account.left == left <= before  # monotone; a refusal changes nothing
            assert account.spent + account.left == BUDGET
            assert account.left >= 0

    @checked
    @given(costs, st.randoms(use_true_random=False))
    def test_budget_left_does_not_depend_on_the_order_of_costs_that_fit(self, wanted, random):
        fitting = spend_all(TotalFilter(BUDGET), wanted)
        shuffled, account = list(fitting), TotalFilter(BUDGET)
        random.shuffle(shuffled)
        assert spend_all(account, shuffled) == shuffled
        assert account.left == BUDGET - sum(fitting)

    def test_a_cost_equal_to_the_budget_left_fits_and_one_more_does_not(self):
        account = TotalFilter(BUDGET, spent=1)
        account.spend(BUDGET - 1)
        account.spend(0)
        with pytest.raises(BudgetExceeded, match="cost must be at most the 0 squared grid steps left, got 1"):
            account.spend(1)

    def test_a_smaller_cost_may_follow_a_refusal(self):
        account = TotalFilter(10)
        with pytest.raises(BudgetExceeded):
            account.spend(11)
        account.spend(10)
        assert account.left == 0

    @pytest.mark.parametrize("cost", [-1, True, 1.0, np.float64(1), np.bool_(True), "1", None, Fraction(1)])
    def test_a_cost_that_is_not_a_whole_number_is_refused(self, cost):
        account = TotalFilter(BUDGET)
        with pytest.raises((TypeError, ValueError), match="cost must be"):
            account.spend(cost)
        assert account.left == BUDGET

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
    def test_numpy_integers_are_exact(self, dtype):
        account = TotalFilter(2**80)
        for _ in range(3):
            account.spend(np.iinfo(dtype).max)
            account.spend(dtype(np.iinfo(dtype).max))
        assert account.spent == 6 * int(np.iinfo(dtype).max)
        assert type(account.spent) is int

    @checked
    @given(st.integers(0, 2**62), st.integers(1, 64))
    def test_the_largest_weight_fits_and_the_next_does_not(self, left, factor):
        weight = TotalFilter(2**62, spent=2**62 - left).largest_weight(factor)
        assert factor * weight**2 <= left < factor * (weight + 1) ** 2

    @pytest.mark.parametrize(("budget", "spent"), [(10, 11), (-1, 0), (10, -1), (1.5, 0), (10, 0.5)])
    def test_a_wrong_budget_or_spent_amount_is_refused(self, budget, spent):
        with pytest.raises((TypeError, ValueError)):
            TotalFilter(budget, spent)

    def test_repr_shows_budget_and_spent(self):
        assert repr(TotalFilter(10, 3)) == "TotalFilter(budget=10, spent=3)"


class TestIndividual:
    @checked
    @given(steps, st.sampled_from([1, 2, 4]))
    def test_every_account_agrees_with_a_plain_python_account(self, stream, factor):
        accounts, left = IndividualFilter(BUDGET, factor), {}
        for contributions in stream:
            expected = {}
            for sensor, row in contributions.items():
                cost = factor * sum(entry * entry for entry in row)
                fits = cost <= left.get(sensor, BUDGET)
                left[sensor] = left.get(sensor, BUDGET) - cost * fits
                expected[sensor] = row if fits else (0, 0)
            assert spend_step(accounts, contributions) == expected
            assert accounts.left(list(left)).tolist() == list(left.values())
            assert all(0 < spent <= BUDGET for spent in accounts.accounts().values())

    @checked
    @given(steps, steps, st.integers(0, 5))
    def test_an_account_does_not_depend_on_other_sensors(self, stream, others, sensor):
        mixed, alone = IndividualFilter(BUDGET, 2), IndividualFilter(BUDGET, 2)
        others = others + [{}] * len(stream)
        for contributions, noise in zip(stream, others, strict=False):
            own = {i: row for i, row in contributions.items() if i == sensor}
            together = {i: row for i, row in noise.items() if i != sensor} | own
            assert spend_step(mixed, together).get(sensor) == spend_step(alone, own).get(sensor)
        assert mixed.left([sensor]) == alone.left([sensor])

    @checked
    @given(step, st.randoms(use_true_random=False))
    def test_accounts_do_not_depend_on_the_order_of_rows(self, contributions, random):
        shuffled = list(contributions.items())
        random.shuffle(shuffled)
        one, other = IndividualFilter(BUDGET, 1), IndividualFilter(BUDGET, 1)
        assert spend_step(one, contributions) == spend_step(other, dict(shuffled))
        assert one.accounts() == other.accounts()

    @checked
    @given(st.lists(in_streams, max_size=8), st.sampled_from([1, 4]))
    def test_a_sensor_in_several_streams_pays_row_by_row(self, steps, factor):
        """Against a plain loop, in which each row pays from what the rows before it have left."""
        accounts, left = IndividualFilter(BUDGET, factor), {}
        for step in steps:
            seen, expected = set(), []
            for sensor, stream, row in step:
                cost = factor * sum(entry * entry for entry in row)
                counts = sensor >= 0 and (sensor, stream) not in seen and cost <= left.get(sensor, BUDGET)
                seen.add((sensor, stream))
                left[sensor] = left.get(sensor, BUDGET) - cost * counts
                expected.append((row, cost) if counts else ((0, 0), 0))
            ids, streams, contributions = zip(*step, strict=True)
            admitted = accounts.spend(ids, contributions, np.array(streams))
            paid = zip(map(tuple, admitted.contributions.tolist()), admitted.costs.tolist(), strict=True)
            assert list(paid) == expected
        assert accounts.left(list(left)).tolist() == list(left.values())

    def test_a_sensor_in_two_streams_does_not_slow_the_step(self):
        """One sensor of 40,000. A loop over all rows would take five times as long. Measured in processor time."""
        alone, rows = np.random.default_rng(0).permutation(40_000), np.full((40_000, 2), 10)
        streams, durations = np.arange(40_000) % 1000, ([], [])
        twice = np.append(alone[:-1], alone[0])
        for which, ids in enumerate((alone, twice) * 5):
            accounts = IndividualFilter(2**40, 1, dict.fromkeys(range(40_000), 1))
            start = time.thread_time()
            accounts.spend(ids, rows, streams)
            durations[which % 2].append(time.thread_time() - start)
        assert min(durations[1]) < 2 * min(durations[0])

    def test_a_refused_row_costs_nothing_and_a_smaller_row_may_follow(self):
        accounts = IndividualFilter(26, 1)
        assert accounts.spend([3], [[1, 0]]).costs.tolist() == [1]
        refused = accounts.spend([3], [[5, 1]])
        assert refused.contributions.tolist() == [[0, 0]]
        assert refused.costs.tolist() == [0]
        assert accounts.spend([3], [[-3, 4]]).contributions.tolist() == [[-3, 4]]
        assert accounts.left([3, 4]).tolist() == [0, 26]

    def test_an_id_counts_once_a_step_and_a_negative_id_never(self):
        accounts = IndividualFilter(100, 1)
        admitted = accounts.spend([5, 5, -1, 5, 9, -7], [[3], [4], [5], [3], [2], [1]])
        assert admitted.contributions.ravel().tolist() == [3, 0, 0, 0, 2, 0]
        assert admitted.costs.tolist() == [9, 0, 0, 0, 4, 0]
        assert accounts.accounts() == {5: 9, 9: 4}

    def test_a_step_without_sensors_is_empty(self):
        admitted = IndividualFilter(100, 1).spend([], np.zeros((0, 2), np.int64))
        assert admitted.contributions.shape == (0, 2)

    def test_stored_accounts_are_restored_unchanged(self):
        accounts = IndividualFilter(100, 2)
        accounts.spend([1, 2**62], [[3], [7]])
        again = IndividualFilter(100, 2, {np.int64(i): np.int64(spent) for i, spent in accounts.accounts().items()})
        assert again.accounts() == accounts.accounts() == {1: 18, 2**62: 98}
        assert again.spend([2**62], [[2]]).contributions.tolist() == [[0]]
        assert all(type(number) is int for pair in again.accounts().items() for number in pair)

    def test_update_replaces_the_accounts_that_it_names(self):
        accounts = IndividualFilter(100, 1, {1: 10, 2: 20})
        accounts.update({2: 99, 3: 100})
        assert accounts.accounts() == {1: 10, 2: 99, 3: 100}
        assert accounts.spend([2, 3], [[2], [1]]).costs.tolist() == [0, 0]
        with pytest.raises(ValueError, match="at most the budget"):
            accounts.update({1: 101})

    @pytest.mark.parametrize("entry", [2**31, 2**32, 2**62, 2**63 - 1, -(2**63), -(2**32)])
    @pytest.mark.parametrize("dimension", [1, 2, 4])
    def test_large_entries_do_not_wrap(self, entry, dimension):
        """2^32 squared is 0 in int64, and so is the sum of four squares of 2^31."""
        accounts = IndividualFilter(2**60, 4)
        admitted = accounts.spend([1, 2], np.array([[entry] * dimension, [1] * dimension]))
        assert admitted.contributions.tolist() == [[0] * dimension, [1] * dimension]
        assert accounts.accounts() == {2: 4 * dimension}

    @pytest.mark.parametrize("dimension", [1, 3, 7])
    def test_the_largest_possible_rows_are_charged_exactly(self, dimension):
        """At d S just below 2^63, rows of the largest entries are counted as in Python integers."""
        budget = (2**63 - 1) // dimension
        largest = math.isqrt(budget)
        accounts = IndividualFilter(budget, 1)
        admitted = accounts.spend([1, 2], [[largest] * dimension, [largest] + [0] * (dimension - 1)])
        assert admitted.costs.tolist() == [largest**2 if dimension == 1 else 0, largest**2]

    def test_a_budget_that_could_overflow_is_refused(self):
        with pytest.raises(ValueError, match="must be below 2\\^63"):
            IndividualFilter(2**62, 1).spend([1], [[1, 1]])
        with pytest.raises(ValueError, match="must be below 2\\^63"):
            IndividualFilter(2**63, 1)

    @pytest.mark.parametrize(
        ("ids", "contributions"),
        [
            ([1], [[0.5, 1234.5]]),
            ([1], [[True, False]]),
            ([1], [["1234", "5"]]),
            ([1.5], [[1234, 5]]),
            ([1], [[1234, 5], [1, 2]]),
            ([1], [1234, 5]),
            ([[1]], [[1234, 5]]),
            ([1, 2], [[1234, 5], [1]]),
            ([1], np.array([[1234, 5]], np.uint64)),
            ([1], [[1234, 2**70]]),
        ],
    )
    def test_malformed_input_is_refused_and_not_shown(self, ids, contributions):
        accounts = IndividualFilter(10**8, 1, {1: 777})
        with pytest.raises((TypeError, ValueError), match="must have|must hold") as caught:
            accounts.spend(ids, contributions)
        assert accounts.accounts() == {1: 777}
        assert caught.value.__cause__ is None
        for private in ("1234", "777", str(10**8 - 777)):
            assert private not in str(caught.value)

    def test_repr_and_errors_show_no_account(self):
        quiet, busy = IndividualFilter(9999, 1), IndividualFilter(9999, 1, {12345: 77})
        admitted = busy.spend([12345], [[55, 1]])
        assert repr(quiet) == repr(busy) == str(busy) == "IndividualFilter(budget=9999, factor=1)"
        assert "55" not in repr(admitted)
        assert "3026" not in repr(admitted)
        for wrong in ({12345: 10_000}, {12345: -77}, {12345: 7.7}, {"12345": 77}, {-12345: 77}):
            with pytest.raises(ValueError, match="spent must") as caught:
                IndividualFilter(9999, 1, wrong)
            assert "77" not in str(caught.value)
            assert "12345" not in str(caught.value)
            assert "10000" not in str(caught.value)

    def test_arguments_are_not_changed(self):
        given_rows = np.array([[30, 0], [3, 0]])
        stored = {1: 5}
        accounts = IndividualFilter(100, 1, stored)
        accounts.spend(np.array([1, 2]), given_rows)
        accounts.accounts()[1] = 0  # a copy
        assert accounts.left([1, 2]).tolist() == [95, 91]
        assert given_rows.tolist() == [[30, 0], [3, 0]]
        assert stored == {1: 5}

    def test_a_step_of_64_sensors_takes_under_a_millisecond(self):
        """64 sensors take about 0.05 ms; the bound leaves room for a busy machine."""
        accounts = IndividualFilter(3 * 2**39, 1)
        ids, contributions = np.arange(64), np.full((64, 2), 1000)
        durations = []
        for _ in range(200):
            start = time.thread_time()
            accounts.spend(ids, contributions)
            durations.append(time.thread_time() - start)
        assert min(durations) < 1e-3


class TestLentAccounts:
    def test_an_id_may_spend_its_amount_and_every_other_id_nothing(self):
        accounts = IndividualFilter.lending(100, 1, np.array([3, 9]), np.array([25, 0]))
        assert accounts.left([3, 9, 4]).tolist() == [25, 0, 0]
        admitted = accounts.spend([3, 9, 4], [[5, 0], [1, 0], [1, 0]])
        assert admitted.costs.tolist() == [25, 0, 0] and not admitted.contributions[1:].any()
        assert accounts.left([3, 9, 4]).tolist() == [0, 0, 0]
        assert accounts.spend([3], [[1, 0]]).costs.tolist() == [0]

    @pytest.mark.parametrize("amount", [-1, 101])
    def test_an_amount_outside_of_the_budget_is_refused_and_not_shown(self, amount):
        with pytest.raises(ValueError, match="between 0 and the budget, 100, for every id") as caught:
            IndividualFilter.lending(100, 1, np.array([3]), np.array([amount]))
        assert str(amount) not in str(caught.value).replace("100", "")
