"""Rényi budgets as (epsilon, delta): against mpmath, against dp-accounting, and the way back."""

from __future__ import annotations

import math
from statistics import NormalDist

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfuse.guarantee import Guarantee
from dpfuse.privacy import (
    CONVERSIONS,
    GRID,
    budget_for,
    chance_to_tell,
    discrete_surcharge,
    epsilons,
    gdp_epsilon,
    mu_of,
    rho_of,
)
from dpfuse.privacy.conversion import SURCHARGE

checked = settings(max_examples=40, deadline=None, derandomize=True)

orders = st.floats(1.05, 100)
budgets = st.floats(1e-3, 20)
deltas = st.sampled_from([1e-3, 1e-5, 1e-9])


def gaussian_delta(mu, epsilon):
    """The exact delta of mu-GDP (Dong, Roth and Su 2022, Cor. 1 in v3; Balle and Wang 2018), to 40 digits."""
    with mpmath.workdps(40):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


def improved(order, loss, delta):
    """Canonne, Kamath and Steinke 2020, Prop. 12, from its delta: the textbook version, for any order."""
    return loss + math.log(1 / (delta * (order - 1) * (1 - 1 / order) ** -order)) / (order - 1)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (2.0, (13.0129, 11.6266, 5.9785, 5.5448)),
        (8.0, (3.1447, 2.7141, 2.7139, 2.5017)),
        (32.0, (1.8714, 1.7278, 1.2628, 1.1575)),
    ],
)
def test_epsilons_agree_with_published_numbers(order, expected):
    figures = epsilons(order, 1.5, 1e-5)
    assert tuple(figures) == CONVERSIONS == ("mironov", "order", "zcdp", "gdp")
    assert tuple(figures.values()) == pytest.approx(expected, abs=6e-5)


def test_rho_and_mu_follow_from_the_budget():
    assert rho_of(2.0, 1.5) == 0.75
    assert mu_of(2.0, 1.5) == pytest.approx(1.2247, abs=5e-5)
    squared = Guarantee(order=3.0, budget=0.7, adjacency="remove-one").squared_radius
    assert mu_of(3.0, 0.7) ** 2 == pytest.approx(float(squared))


@checked
@given(orders, budgets, deltas)
def test_gdp_epsilon_is_on_the_exact_gaussian_curve(order, budget, delta):
    epsilon = epsilons(order, budget, delta)["gdp"]
    exact = gaussian_delta(mu_of(order, budget), epsilon)
    if epsilon > 0:
        assert float(exact) == pytest.approx(delta, rel=1e-6)
    else:
        assert exact <= delta


@checked
@given(orders, budgets, deltas)
def test_epsilon_of_one_order_agrees_with_dp_accounting(order, budget, delta):
    from dp_accounting import rdp

    figures = epsilons(order, budget, delta)
    assert figures["order"] == pytest.approx(max(0.0, improved(order, budget, delta)), abs=1e-9)
    theirs, _ = rdp.compute_epsilon([order], [budget], delta)
    assert figures["order"] >= theirs - 1e-9  # theirs adds special cases of its own for tiny losses
    if order > 1.5 and budget > 0.1:
        assert figures["order"] == pytest.approx(theirs, abs=1e-9)


@checked
@given(budgets, deltas)
def test_zcdp_epsilon_is_the_smallest_over_all_orders(rho, delta):
    found = epsilons(2.0, 2 * rho, delta)["zcdp"]
    every = [improved(order, rho * order, delta) for order in 1 + np.logspace(-4, 6, 4001)]
    assert found <= max(0.0, min(every)) + 1e-12
    assert found == pytest.approx(max(0.0, min(every)), rel=1e-4, abs=1e-9)


@checked
@given(orders, budgets, deltas)
def test_tighter_conversions_give_smaller_valid_epsilons(order, budget, delta):
    """Each is a true statement about the Gaussian mechanism, and they become sharper from left to right."""
    figures = epsilons(order, budget, delta)
    assert figures["mironov"] >= figures["order"] >= figures["zcdp"] - 1e-9
    assert figures["zcdp"] >= figures["gdp"] - 1e-9
    for epsilon in figures.values():
        assert gaussian_delta(mu_of(order, budget), epsilon) <= delta * (1 + 1e-6)


class TestDiscreteNoise:
    @pytest.mark.parametrize("sigma", [2, 4, 8, 32, 128])
    def test_surcharge_constant_bounds_the_total_variation(self, sigma):
        """Between the discrete Gaussian and a rounded continuous one, summed up over the integers."""
        reach = 12 * sigma
        grid = np.arange(-reach, reach + 1)
        discrete = np.exp(-(grid**2) / (2 * sigma**2))
        discrete /= discrete.sum()
        edges = np.array([math.erf((x - 0.5) / sigma / math.sqrt(2)) / 2 for x in [*grid, reach + 1]])
        variation = np.abs(discrete - np.diff(edges)).sum() / 2
        assert variation <= SURCHARGE / sigma**2
        assert variation > 0.9 * SURCHARGE / sigma**2

    def test_surcharge_constant_is_above_the_leading_term(self):
        """The expected |N^2 - 1| is 4 phi(1), and the variation half of a 24th of it."""
        assert 4 * NormalDist().pdf(1) / 48 == pytest.approx(0.0202, abs=5e-5)
        assert 4 * NormalDist().pdf(1) / 48 < SURCHARGE

    @pytest.mark.parametrize("sigma", [4, 8])
    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
    @pytest.mark.parametrize("move", [3, 8])
    def test_surcharge_covers_the_curve_of_discrete_noise(self, sigma, epsilon, move):
        """The exact delta of one discrete coordinate, against the continuous curve and the surcharge."""
        grid = np.arange(-20 * sigma, 20 * sigma + 1)
        p, q = (np.exp(-((grid - mean) ** 2) / (2 * sigma**2)) for mean in (move, 0))
        delta = np.maximum(p / p.sum() - math.exp(epsilon) * q / q.sum(), 0).sum()
        continuous = float(gaussian_delta(move / sigma, epsilon))
        assert delta <= continuous + discrete_surcharge(epsilon, 1, sigma)

    def test_surcharge_is_proportional_to_coordinates_and_1e_9_for_200_of_them(self):
        assert discrete_surcharge(5.545, 200) == pytest.approx(1e-9, rel=0.02)
        assert discrete_surcharge(1.0, 0) == 0
        assert (
            discrete_surcharge(1.0, 3)
            == 3 * discrete_surcharge(1.0, 1)
            == pytest.approx(3 * (1 + math.e) * 0.021 / GRID**2)
        )

    @pytest.mark.parametrize("coordinates", [1, 200, 10**6, 10**8])
    def test_epsilon_with_surcharge_keeps_both_deltas_within_delta(self, coordinates):
        epsilon = gdp_epsilon(2.0, 1.5, 1e-5, coordinates)
        both = float(gaussian_delta(mu_of(2.0, 1.5), epsilon)) + discrete_surcharge(epsilon, coordinates)
        assert gdp_epsilon(2.0, 1.5, 1e-5) < epsilon
        if coordinates < 10**8:
            assert 0.99999 * 1e-5 < both <= 1e-5
        else:
            assert math.isinf(epsilon)

    def test_epsilon_of_a_negligible_budget_is_zero(self):
        assert gdp_epsilon(2.0, 1e-14, 1e-5, 100) == 0

    @pytest.mark.parametrize("coordinates", [-1, 1.5, True])
    def test_coordinates_must_be_a_count(self, coordinates):
        with pytest.raises((TypeError, ValueError), match="coordinates must be"):
            discrete_surcharge(1.0, coordinates)


class TestBudgetFor:
    @pytest.mark.parametrize("by", CONVERSIONS)
    @settings(checked, max_examples=12)
    @given(epsilon=st.floats(0.05, 30), order=st.floats(1.5, 64), delta=deltas)
    def test_budget_is_the_largest_that_keeps_epsilon(self, by, epsilon, order, delta):
        try:
            budget = budget_for(epsilon, delta, order, by)
        except ValueError as error:
            assert by in ("mironov", "order")
            assert "epsilon must be larger" in str(error)
            assert epsilons(order, 1e-9, delta)[by] > 0.99 * epsilon
            return
        assert epsilons(order, budget, delta)[by] <= epsilon
        assert epsilons(order, budget * 1.00001, delta)[by] > epsilon * (1 - 1e-8)
        if by == "gdp":
            assert gaussian_delta(mu_of(order, budget), epsilon) <= delta

    def test_budget_for_epsilon_3_agrees_with_the_documented_number(self):
        assert budget_for(3.0, 1e-5, 2.0) == pytest.approx(0.51713, abs=1e-5)

    def test_budget_is_smaller_with_discrete_noise(self):
        budget = budget_for(3.0, 1e-5, 2.0, coordinates=10**6)
        assert budget < budget_for(3.0, 1e-5, 2.0)
        assert gdp_epsilon(2.0, budget, 1e-5, 10**6) <= 3.0

    def test_an_epsilon_that_no_budget_reaches_is_refused(self):
        with pytest.raises(ValueError, match="epsilon must be larger.*order 2.0.*'mironov', got 3.0; raise the"):
            budget_for(3.0, 1e-5, 2.0, "mironov")

    def test_budget_is_at_most_the_largest_of_a_guarantee(self):
        assert budget_for(1e9, 1e-5, 2.0) == 2**21
        Guarantee(order=2.0, budget=2.0**21, adjacency="remove-one")


def test_chance_to_tell_is_that_of_the_best_threshold_test():
    """Half of one plus the total variation of N(0, 1) and N(mu, 1): delta at epsilon 0."""
    for order, budget in [(2.0, 0.07), (2.0, 1.5), (8.0, 5.0)]:
        expected = (1 + float(gaussian_delta(mu_of(order, budget), 0))) / 2
        assert chance_to_tell(order, budget) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("order", "budget", "delta", "message"),
    [
        (1.0, 1.0, 1e-5, "order must be > 1"),
        (math.nan, 1.0, 1e-5, "order must be finite"),
        (2.0, 0.0, 1e-5, "budget must be finite and > 0"),
        (2.0, 1.0, 0.0, "delta must be finite and > 0"),
        (2.0, 1.0, 1.0, "delta must be in"),
        (2.0, 1.0, math.inf, "delta must be finite"),
    ],
)
def test_the_wrong_argument_is_named(order, budget, delta, message):
    with pytest.raises(ValueError, match=message):
        epsilons(order, budget, delta)
