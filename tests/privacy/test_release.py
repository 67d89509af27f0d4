"""The exact release: bounded rows that depend on their own sensor, exact sums, and the stated chance to tell."""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpfuse.guarantee import ADJACENCIES, Guarantee
from dpfuse.privacy import (
    FEATURE_SETS,
    GRID,
    IndividualFilter,
    Mechanism,
    TotalFilter,
    chance_to_tell,
    from_grid,
    release,
    squared_steps,
    to_grid,
    weight_to_grid,
    within_set,
)
from dpfuse.privacy import noise as noise_module

checked = settings(max_examples=100, deadline=None, derandomize=True)

checked_often = settings(checked, max_examples=40)  # in each of the cases

CASES = list(itertools.product(FEATURE_SETS, ADJACENCIES, ("total", "individual")))


def value_arrays(num_sensors, dtype=np.float64):
    info = np.finfo(dtype)
    extremes = [float(info.max), float(info.min), float(info.tiny), 1 + float(info.eps), 2.0**31, 2.0**63]
    nasty = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1.0, -1.0, *extremes])
    elements = st.one_of(nasty, st.floats(-1.5, 1.5, width=info.bits), st.floats(width=info.bits))
    return arrays.arrays(dtype, (num_sensors, 2), elements=elements)


def mechanism_for(features="ball", adjacency="remove-one", accounting="total", dimension=2, budget=1.5):
    guarantee = Guarantee(order=2.0, budget=budget, adjacency=adjacency, accounting=accounting)
    return Mechanism(guarantee, features, dimension)


def rows_of(mechanism, accounts, weight, ids, values):
    """Each sensor's integer row, as it goes into the sum."""
    seen = []

    def keep_rows(rows, stream, num_streams):
        seen.append(rows.copy())
        return rows.sum(0)[None]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "sum_by_stream", keep_rows)
        mechanism.charge(accounts, weight, ids, values)
    return seen[0]


def is_inside(row, mechanism, whole):
    """The bound of an exact release, in Python integers."""
    entries = [int(entry) for entry in row]
    squared = sum(entry * entry for entry in entries)
    if mechanism.features != "ball" and min(entries) < 0:
        return False
    if mechanism.guarantee.accounting == "individual":
        return mechanism.factor * squared <= mechanism.budget
    if mechanism.features == "box":
        return max(entries) <= whole
    return squared <= whole * whole


class TestGrid:
    def test_values_are_rounded_toward_zero(self):
        step = 1 / GRID
        values = np.array([[1.0, -1.0], [1.999 * step, -1.999 * step], [-0.0, 0.5 * step], [step, -2 * step]])
        assert to_grid(values).tolist() == [[GRID, -GRID], [1, -1], [0, 0], [1, -2]]
        assert to_grid(np.array([0.7, -0.7]), 10).tolist() == [7, -7]

    def test_a_row_with_an_entry_above_the_largest_becomes_zeros(self):
        assert to_grid([[2.0**11, -(2.0**11)], [2.0**11 + 1 / GRID, 0.0]]).tolist() == [
            [2**31, -(2**31)],
            [0, 0],
        ]

    @checked
    @given(value_arrays(3))
    def test_a_row_on_the_grid_depends_on_its_own_values_alone(self, values):
        together = to_grid(values)
        for row, expected in zip(values, together, strict=True):
            assert (to_grid(row) == expected).all()
            usable = all(abs(x * GRID) < 2**31 + 1 for x in row.tolist())
            assert expected.tolist() == ([math.trunc(x * GRID) for x in row.tolist()] if usable else [0, 0])

    def test_any_leading_axes_and_float32_values_are_exact(self):
        values = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
        assert to_grid(values).shape == values.shape
        assert to_grid(values).dtype == np.int64
        assert (to_grid(values) == to_grid(values.astype(np.float64))).all()
        assert to_grid(np.float32([1 / 3])) == math.trunc(float(np.float32(1 / 3)) * GRID)

    @pytest.mark.parametrize("values", ["secret", [["secret"]], [[1j]], [[None]], [[True]], 0.25, [[1.0], [2.0, 3.0]]])
    def test_values_that_are_not_numbers_are_refused_and_not_shown(self, values):
        with pytest.raises((TypeError, ValueError), match="values must") as caught:
            to_grid(values)
        assert "secret" not in str(caught.value)
        assert "0.25" not in str(caught.value)

    def test_values_on_the_grid_come_back_unchanged(self):
        assert from_grid(to_grid([0.5, -1.25])).tolist() == [0.5, -1.25]

    def test_a_weight_is_rounded_down_and_must_be_finite_and_positive(self):
        assert weight_to_grid(1.0) == GRID
        assert weight_to_grid(np.float32(0.1)) == math.floor(float(np.float32(0.1)) * GRID)
        assert weight_to_grid(0.0) == weight_to_grid(-0.0) == weight_to_grid(0.99 / GRID) == 0
        assert weight_to_grid(1e308) == 2**31
        for wrong in (-1e-9, math.nan, math.inf):
            with pytest.raises(ValueError, match="weight must be finite and >= 0"):
                weight_to_grid(wrong)


class TestWithinSet:
    ROWS = np.array([[3, 4], [5, 0], [4, 4], [5, 5], [6, 0], [-3, 4], [0, 0], [-6, 0], [2**40, 1]])

    @pytest.mark.parametrize(
        ("features", "kept"), [("box", [0, 1, 2, 3, 6]), ("ball", [0, 1, 5, 6]), ("orthant", [0, 1, 6])]
    )
    def test_rows_outside_of_the_set_become_zeros(self, features, kept):
        expected = np.zeros_like(self.ROWS)
        expected[kept] = self.ROWS[kept]
        assert (within_set(self.ROWS, features, 5) == expected).all()

    def test_large_entries_do_not_wrap(self):
        rows = np.array([[2**32, 0], [-(2**63), 0], [2**31, 2**31], [2**62, 2**62]])
        for features in FEATURE_SETS:
            assert not within_set(rows, features, 2**30).any()


class TestCharge:
    @pytest.mark.parametrize(("features", "adjacency", "accounting"), CASES)
    @checked_often
    @given(values=value_arrays(4), changed=value_arrays(1), weight=st.floats(0, 1.3), row=st.integers(0, 3))
    @example(values=np.eye(4, 2), changed=np.array([[math.nan, 0.5]]), weight=0.5, row=1)
    def test_the_rows_of_other_sensors_do_not_depend_on_what_one_sensor_sends(
        self, features, adjacency, accounting, values, changed, weight, row
    ):
        mechanism = mechanism_for(features, adjacency, accounting)
        ids = np.array([7, 3, 2**62, 0])
        before = rows_of(mechanism, mechanism.open_accounts(), weight, ids, values)
        neighbours = {"replaced": (ids, values.copy()), "removed": (ids.copy(), values)}
        neighbours["replaced"][1][row] = changed[0]
        neighbours["removed"][0][row] = -1
        for name, (others_ids, others_values) in neighbours.items():
            accounts = mechanism.open_accounts()
            after = rows_of(mechanism, accounts, weight, others_ids, others_values)
            assert (np.delete(before, row, 0) == np.delete(after, row, 0)).all()
            whole = weight_to_grid(weight)
            if isinstance(accounts, TotalFilter):
                whole = min(whole, TotalFilter(mechanism.budget).largest_weight(mechanism.factor))
                assert mechanism.budget - accounts.left == mechanism.factor * whole**2
            assert all(is_inside(line, mechanism, whole) for line in [*before, *after])
            assert name == "replaced" or not after[row].any()

    @pytest.mark.parametrize(("features", "adjacency", "accounting"), CASES)
    @checked_often
    @given(values=value_arrays(5, dtype=np.float32), order=st.permutations(range(5)))
    def test_rows_do_not_depend_on_their_slot(self, features, adjacency, accounting, values, order):
        mechanism, ids = mechanism_for(features, adjacency, accounting), np.array([4, -1, 9, 1, 2])
        one, other = mechanism.open_accounts(), mechanism.open_accounts()
        before = rows_of(mechanism, one, 0.3, ids, values)
        after = rows_of(mechanism, other, 0.3, ids[order], values[order])
        assert (before[order] == after).all()
        if isinstance(one, IndividualFilter) and isinstance(other, IndividualFilter):
            assert one.accounts() == other.accounts()

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_an_id_counts_once_a_step(self, accounting):
        mechanism = mechanism_for(accounting=accounting)
        values = np.array([[0.5, 0.0], [0.25, 0.0], [0.0, 0.5], [0.5, 0.5]])
        charged = mechanism.charge(mechanism.open_accounts(), 0.5, [8, 8, 9, -1], values)
        scale = GRID // 2 if accounting == "total" else GRID
        assert charged.exact_sum.tolist() == [scale // 2, scale // 2]

    def test_total_rows_are_computed_from_the_released_weight(self):
        mechanism = mechanism_for("box", "replace-one")
        values = np.float32([[1, 0], [0.3, 0.9999999], [1.0000001, 0], [0.5, -1e-7 * 0]])
        charged = mechanism.charge(mechanism.open_accounts(), 0.123, np.arange(4), values)
        whole = weight_to_grid(0.123)
        expected = [[math.trunc(whole * float(x)) for x in row] for row in values]
        assert charged.fusion_weight == whole
        assert charged.debits.tolist() == [2 * whole**2]
        assert charged.exact_sum.tolist() == np.sum(expected, 0).tolist()

    def test_a_weight_above_the_budget_left_is_lowered_to_the_largest_that_fits(self):
        mechanism = mechanism_for("ball", "replace-one", budget=1e-6)
        accounts = mechanism.open_accounts()
        charged = mechanism.charge(accounts, 1.0, [1], [[1.0, 0.0]])
        assert charged.fusion_weight == math.isqrt(mechanism.budget // 4)
        assert charged.budget_left == accounts.left == mechanism.budget - 4 * charged.fusion_weight**2
        for _ in range(20):
            charged = mechanism.charge(accounts, 1.0, [1], [[1.0, 0.0]])
        assert (charged.fusion_weight, charged.exact_sum.tolist()) == (0, [0, 0])
        assert 0 <= accounts.left < 4
        assert mechanism.draw(charged).value.shape == (2,)

    def test_individual_accounts_pay_for_what_their_sensor_added(self):
        mechanism = mechanism_for("orthant", "replace-one", "individual")
        accounts = mechanism.open_accounts()
        charged = mechanism.charge(accounts, 0.7, [5, 6, 7], [[0.25, 0.5], [0.1, -0.1], [0.9, 0.9]])
        quarter = GRID // 4
        assert charged.debits.tolist() == [
            2 * 5 * quarter**2,
            0,
            0,
        ]  # 6 has a forbidden sign, 7 cannot afford it
        assert charged.exact_sum.tolist() == [quarter, 2 * quarter]
        assert (charged.fusion_weight, charged.budget_left) == (weight_to_grid(0.7, math.ceil), None)

    @pytest.mark.parametrize(("features", "adjacency", "accounting"), CASES)
    @given(weight=st.floats(0, 0.5), values=value_arrays(3))
    @checked_often
    def test_no_sensor_pays_more_than_the_public_weight_allows(self, features, adjacency, accounting, weight, values):
        """What a row that is lost may have cost is then known from the public rows."""
        mechanism = mechanism_for(features, adjacency, accounting)
        charged = mechanism.charge(mechanism.open_accounts(), weight, [1, 2, 3], values)
        assert charged.debits.max() <= mechanism.largest_cost(charged.fusion_weight)

    def test_a_row_longer_than_the_weight_becomes_zeros_and_one_as_long_does_not(self):
        mechanism = mechanism_for("ball", "remove-one", "individual")
        charged = mechanism.charge(mechanism.open_accounts(), 0.25, [1, 2], [[0.25, 0.0], [0.25, 2.0**-11]])
        assert charged.debits.tolist() == [(GRID // 4) ** 2, 0]
        assert mechanism.largest_cost(charged.fusion_weight) == (GRID // 4) ** 2
        box = mechanism_for("box", "remove-one", "individual")
        charged = box.charge(box.open_accounts(), 0.25, [1, 2], [[0.25, 0.25], [0.25 + 1 / GRID, 0.0]])
        assert charged.debits.tolist() == [box.largest_cost(charged.fusion_weight), 0]

    @given(weight=st.floats(2.0**-20, 1.0, width=32), angle=st.floats(0, 2 * math.pi))
    @checked
    def test_a_feature_of_full_length_is_within_the_weight_in_float32(self, weight, angle):
        """The weight is rounded up, so that rounding in float32 never clears a sensor's row."""
        mechanism = mechanism_for("ball", "remove-one", "individual", budget=2.0)
        features = np.float32(1 - 2.0**-20) * np.array([math.cos(angle), math.sin(angle)], np.float32)
        rows = np.float32(weight) * features
        charged = mechanism.charge(mechanism.open_accounts(), weight, [1], rows[None])
        assert charged.exact_sum.tolist() == to_grid(rows).tolist()

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    @pytest.mark.parametrize("values", [[], np.zeros((0, 2))])
    def test_a_step_without_sensors_releases_noise(self, accounting, values):
        mechanism = mechanism_for(accounting=accounting)
        charged = mechanism.charge(mechanism.open_accounts(), 0.1, [], values)
        assert mechanism.draw(charged).value.shape == (2,)

    def test_the_sum_is_exact_where_a_float_sum_is_not(self):
        mechanism = mechanism_for("box", "remove-one", budget=2.0**20)
        accounts = mechanism.open_accounts()
        values = np.full((5000, 2), 1 - 2**-31)
        charged = mechanism.charge(accounts, 1000.0, np.arange(5000), values)
        assert charged.exact_sum.tolist() == [5000 * math.trunc(charged.fusion_weight * (1 - 2**-31))] * 2

    @pytest.mark.parametrize(
        ("ids", "values", "message"),
        [
            ([1, 2], [[0.125, 0.5]], r"values must have shape \(2, 2\), got \(1, 2\)"),
            ([1], [[0.125, 0.5, 0.5]], r"values must have shape \(1, 2\), got \(1, 3\)"),
            ([1], [0.125, 0.5], r"values must have shape \(1, 2\), got \(2,\)"),
            ([1], [[0.125, "x"]], "values must be an array of numbers, got str_"),
            ([[1]], [[0.125, 0.5]], r"ids must have shape \(m,\), got \(1, 1\)"),
            ([1.5], [[0.125, 0.5]], "ids must hold whole numbers"),
        ],
    )
    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_malformed_input_is_refused_without_a_debit_and_not_shown(self, accounting, ids, values, message):
        mechanism = mechanism_for(accounting=accounting)
        accounts = mechanism.open_accounts()
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            mechanism.charge(accounts, 0.5, ids, values)
        assert "0.125" not in str(caught.value)
        if isinstance(accounts, TotalFilter):
            assert accounts.spent == 0
        else:
            assert accounts.accounts() == {}

    def test_accounts_of_another_mechanism_are_refused(self):
        total, individual = mechanism_for(), mechanism_for(accounting="individual")
        with pytest.raises(TypeError, match="accounts must be for total accounting"):
            total.charge(individual.open_accounts(), 0.1, [1], [[0.0, 0.0]])
        with pytest.raises(TypeError, match="accounts must be for individual accounting"):
            individual.charge(total.open_accounts(), 0.1, [1], [[0.0, 0.0]])
        with pytest.raises(ValueError, match="factor 1 of this mechanism"):
            individual.charge(IndividualFilter(individual.budget, 2), 0.1, [1], [[0.0, 0.0]])
        with pytest.raises(ValueError, match="the budget .* of this mechanism"):
            total.charge(TotalFilter(total.budget + 1), 0.1, [1], [[0.0, 0.0]])

    def test_a_budget_beyond_63_bits_is_refused(self):
        with pytest.raises(ValueError, match="must be below 2\\^63"):
            mechanism_for(dimension=5, budget=2.0**21)

    def test_repr_shows_nothing_private(self):
        mechanism = mechanism_for(accounting="individual")
        charged = mechanism.charge(mechanism.open_accounts(), 0.5, [1], [[0.25, 0.0]])
        assert repr(charged) == f"Charged(fusion_weight={GRID // 2}, budget_left=None)"


class TestDraw:
    def test_a_charged_step_is_drawn_once(self):
        mechanism = mechanism_for()
        charged = mechanism.charge(mechanism.open_accounts(), 0.5, [1], [[0.25, 0.0]])
        drawn = mechanism.draw(charged)
        assert (drawn.fusion_weight, drawn.budget_left) == (
            GRID // 2,
            squared_steps(mechanism.guarantee) - (GRID // 2) ** 2,
        )
        with pytest.raises(RuntimeError, match="drawn already"):
            mechanism.draw(charged)

    def test_steps_of_many_streams_are_drawn_at_once_each_with_noise_of_its_own(self):
        mechanism = mechanism_for()
        many = [mechanism.charge(mechanism.open_accounts(), 0.1 * n, [1], [[0.5, 0.0]]) for n in range(1, 6)]
        sums = [charged.exact_sum for charged in many]
        drawn = mechanism.draw_many(many)
        assert [one.fusion_weight for one in drawn] == [charged.fusion_weight for charged in many]
        assert [one.budget_left for one in drawn] == [charged.budget_left for charged in many]
        noise = [tuple((one.value - exact_sum).tolist()) for one, exact_sum in zip(drawn, sums, strict=True)]
        assert len(set(noise)) == 5 and all(abs(entry) < 8 * GRID for pair in noise for entry in pair)
        for charged in many:
            with pytest.raises(RuntimeError, match="drawn already"):
                mechanism.draw(charged)

    def test_no_steps_are_drawn_as_none(self):
        assert mechanism_for().draw_many([]) == []

    def test_a_step_that_cannot_be_drawn_costs_no_other_its_step(self):
        mechanism = mechanism_for()
        good, done = (mechanism.charge(mechanism.open_accounts(), 0.5, [1], [[0.25, 0.0]]) for _ in range(2))
        long = release.Charged(1, None, np.zeros(1, np.int64), np.zeros(3, np.int64))
        mechanism.draw(done)
        for bad, error, message in [
            ([long], ValueError, "the sum must have shape"),
            ([done], RuntimeError, "drawn already"),
            ([good], ValueError, "many must hold each step once"),
        ]:
            with pytest.raises(error, match=message):
                mechanism.draw_many([good, *bad])
        assert mechanism.draw(good).fusion_weight == GRID // 2
        with pytest.raises(RuntimeError, match="drawn already"):
            mechanism.draw(good)

    def test_many_steps_are_drawn_at_once_each_with_noise_of_its_own(self, monkeypatch):
        mechanism = mechanism_for()
        accounts = mechanism.open_accounts()

        def charge_both():
            return [mechanism.charge(accounts, weight, [1], [[0.25, 0.5]]) for weight in (0.5, 0.25)]

        drawn = mechanism.draw_many(steps := charge_both())
        noise = [one.value - np.array([0.25, 0.5]) * one.fusion_weight for one in drawn]
        assert len(set(np.concatenate(noise).tolist())) == 4
        with pytest.raises(RuntimeError, match="drawn already"):
            mechanism.draw_many(steps)
        monkeypatch.setattr(noise_module, "make_noise", lambda dimension: lambda values: values)
        drawn = mechanism.draw_many(charge_both())
        assert [one.value.tolist() for one in drawn] == [[GRID // 8, GRID // 4], [GRID // 16, GRID // 8]]
        assert [one.fusion_weight for one in drawn] == [GRID // 2, GRID // 4]
        assert drawn[0].budget_left > drawn[1].budget_left

    def test_a_sum_of_another_length_is_not_drawn(self, monkeypatch):
        monkeypatch.setattr(release, "add_noise", lambda *_: pytest.fail("drew noise"))
        mechanism = mechanism_for()
        for length in (1, 3):
            charged = release.Charged(1, None, np.zeros(1, np.int64), np.zeros(length, np.int64))
            with pytest.raises(ValueError, match="the sum must have shape"):
                mechanism.draw(charged)


FALSE_ALARM = 1e-6


class TestGuarantee:
    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_neighbours_are_told_apart_with_the_stated_chance(self, accounting):
        """The best test is a threshold, here on releases with and without one sensor that spends its whole budget.

        The coordinates of a long release are independent trials, each with an equal part of the budget.
        """
        dimension, rounds, budget = 1000, 20, 1.0
        mechanism = mechanism_for("ball", "remove-one", accounting, dimension, budget * dimension)
        length = math.sqrt(budget * dimension)  # of the contribution: mu^2 = 2 B / alpha
        unit = np.full(dimension, 1 / math.sqrt(dimension))
        values = np.array([unit, unit * 0.1]) * (1 if accounting == "total" else length)
        right, chance = 0, chance_to_tell(2.0, budget)
        threshold = 0.6 * length / math.sqrt(dimension)  # half-way between 0.1 and 1.1 of it
        for _ in range(rounds):
            for ids, sign in (([1, 2], 1), ([-1, 2], -1)):
                charged = mechanism.charge(mechanism.open_accounts(), length, ids, values)
                released = from_grid(mechanism.draw(charged).value)
                right += int((sign * (released - threshold) > 0).sum())
        trials = 2 * rounds * dimension
        tolerance = NormalDist().inv_cdf(1 - FALSE_ALARM / 2) * math.sqrt(chance * (1 - chance) / trials)
        assert abs(right / trials - chance) < tolerance
        too_little_noise = NormalDist().cdf(math.sqrt(budget) / 2 * 1.5)  # noise smaller by a third
        assert too_little_noise - chance > 2 * tolerance
