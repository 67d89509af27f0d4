"""Theorem 2 against the definition of the Rényi divergence, by quadrature and by summation over the grid."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from dpfuse.guarantee import ADJACENCIES
from dpfuse.privacy import FEATURE_SETS, IndividualFilter, charge_factor, largest_weight, renyi_loss

ORDERS = (1.5, 2.0, 5.0, 32.0)
CASES = list(itertools.product(FEATURE_SETS, (1, 2, 3), ADJACENCIES))


def worst_pair(features, dimension, adjacency):
    """The features of two sensors with the largest distance in the set, by hand."""
    first = np.eye(dimension)[0]
    if features == "box":
        return np.ones(dimension), np.zeros(dimension)
    if adjacency == "remove-one":
        return first, np.zeros(dimension)
    if features == "ball":
        return first, -first
    return first, np.eye(dimension)[1] if dimension > 1 else np.zeros(1)


def sample_features(rng, features, dimension, size):
    """Features of the set, most of them at its edge or its corners."""
    if features == "box":
        corners = rng.integers(0, 2, (size, dimension))
        return np.where(rng.random((size, dimension)) < 0.5, corners, rng.random((size, dimension)))
    direction = rng.normal(size=(size, dimension)) * (rng.random((size, dimension)) < 0.7)
    direction /= np.maximum(np.linalg.norm(direction, axis=1, keepdims=True), 1e-9)
    direction = np.abs(direction) if features == "orthant" else direction
    return direction * np.sqrt(rng.uniform(0.5, 1, (size, 1)))


def log_density(z, mean):
    return -((z - mean) ** 2) / 2 - math.log(2 * math.pi) / 2


def gaussian_divergence(order, first, second):
    """The Rényi divergence of N(first, I) from N(second, I), coordinate by coordinate, by quadrature."""
    total = 0.0
    for a, b in zip(first, second, strict=True):
        peak = order * a + (1 - order) * b

        def integrand(z, a=a, b=b):
            return math.exp(order * log_density(z, a) + (1 - order) * log_density(z, b))

        moment, _ = integrate.quad(integrand, peak - 12, peak + 12, points=[peak], epsrel=1e-13)
        total += math.log(moment) / (order - 1)
    return total


def log_weights(grid, mean, sigma):
    """Log probabilities of the discrete Gaussian on the integers `grid`."""
    logs = -((grid - mean) ** 2) / (2 * sigma**2)
    return logs - np.logaddexp.reduce(logs)


@functools.cache
def divergence_of_move(order, move, sigma):
    """The Rényi divergence of the discrete Gaussian at the integer `move` from the one at 0."""
    reach = int(order * abs(move) + 15 * sigma)
    grid = np.arange(-reach, reach + 1)
    p, q = log_weights(grid, move, sigma), log_weights(grid, 0, sigma)
    return float(np.logaddexp.reduce(order * p + (1 - order) * q) / (order - 1))


def discrete_divergence(order, shift, sigma):
    return sum(divergence_of_move(order, move, sigma) for move in shift)


@pytest.mark.parametrize(("features", "dimension", "adjacency"), [case for case in CASES if case[1] < 3])
@pytest.mark.parametrize("order", ORDERS)
def test_total_loss_is_the_divergence_of_the_worst_pair(features, dimension, adjacency, order):
    weight = 0.4
    first, second = worst_pair(features, dimension, adjacency)
    factor = charge_factor(features, dimension, adjacency, "total")
    divergence = gaussian_divergence(order, weight * first, weight * second)
    assert renyi_loss(order, factor, weight) == pytest.approx(divergence, rel=1e-9)


@pytest.mark.parametrize(("features", "adjacency"), list(itertools.product(FEATURE_SETS, ADJACENCIES)))
def test_two_ids_of_one_person_can_have_four_times_the_loss(features, adjacency):
    """Contributions of two ids in one step add up as vectors, and the loss grows with the square of the sum."""
    order, weight = 2.0, 0.4
    first, second = worst_pair(features, 2, adjacency)
    one_id = renyi_loss(order, charge_factor(features, 2, adjacency, "total"), weight)
    divergence = gaussian_divergence(order, weight * (first + first), weight * (second + second))
    assert divergence == pytest.approx(4 * one_id, rel=1e-9)


@pytest.mark.parametrize("sigma", [4, 8])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shift", [(1,), (3,), (8,), (2, 5), (-3, 1)])
def test_loss_with_discrete_noise_is_at_most_that_with_continuous_noise(sigma, order, shift):
    bound = renyi_loss(order, 1, math.hypot(*shift) / sigma)
    divergence = discrete_divergence(order, shift, sigma)
    assert divergence <= bound * (1 + 1e-12)
    assert divergence > 0.9999 * bound  # the bound is nearly attained


@pytest.mark.parametrize(("features", "dimension", "adjacency"), CASES)
def test_charge_factor_is_the_largest_squared_distance_in_the_set(features, dimension, adjacency):
    rng = np.random.default_rng(1)
    ones = sample_features(rng, features, dimension, 20_000)
    others = sample_features(rng, features, dimension, 20_000) if adjacency == "replace-one" else 0 * ones
    factor = charge_factor(features, dimension, adjacency, "total")
    distances = ((ones - others) ** 2).sum(1)
    assert distances.max() <= factor * (1 + 1e-12)
    assert distances.max() > 0.8 * factor  # the samples come close
    first, second = worst_pair(features, dimension, adjacency)
    assert ((first - second) ** 2).sum() == factor


@pytest.mark.parametrize(
    ("features", "adjacency", "expected"),
    [("box", "remove-one", 1), ("ball", "remove-one", 1), ("orthant", "remove-one", 1)]
    + [("box", "replace-one", 2), ("ball", "replace-one", 4), ("orthant", "replace-one", 2)],
)
@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_individual_factor_does_not_depend_on_dimension(features, adjacency, expected, dimension):
    assert charge_factor(features, dimension, adjacency, "individual") == expected


class TestPathwise:
    """The exact divergence of all releases of two adaptive steps with individual accounts.

    The filter is the real one, on a small grid with noise of `SIGMA` steps, so that outcomes can be summed. The data
    of a sensor are what it would add in each step. The weight of step 2 depends on the release of step 1. A sensor adds
    at most what its account pays for.
    """

    SIGMA, ORDER, BUDGET = 8, 2.0, 144
    RELEASES = np.arange(-150, 151)
    NON_NEGATIVE = list(itertools.product((0, 1, 2, 3), (0, 1, 3)))
    SIGNED = list(itertools.product((-3, -1, 0, 2), (-3, -1, 0, 1, 3)))

    def add(self, accounts, wanted):
        affordable = math.isqrt(int(accounts.left([7])[0]) // accounts.factor)
        return int(accounts.spend([7], [[np.sign(wanted) * min(abs(wanted), affordable)]]).contributions[0, 0])

    def contributions(self, data, factor):
        """What a sensor adds in step 1, and in step 2 for each first release."""
        accounts = IndividualFilter(self.BUDGET, factor)
        first = self.add(accounts, 4 * data[0])
        after = {
            weight: self.add(IndividualFilter(self.BUDGET, factor, accounts.accounts()), weight * data[1])
            for weight in (2, 5)
        }
        return first, [after[5 if released > 1 else 2] for released in self.RELEASES]

    def divergence(self, data, others, factor):
        (one, ones), (other, others) = self.contributions(data, factor), self.contributions(others, factor)
        p, q = (log_weights(self.RELEASES, mean, self.SIGMA) for mean in (one, other))
        inner = [divergence_of_move(self.ORDER, a - b, self.SIGMA) for a, b in zip(ones, others, strict=True)]
        outer = np.logaddexp.reduce(self.ORDER * p + (1 - self.ORDER) * q + (self.ORDER - 1) * np.array(inner))
        return outer / (self.ORDER - 1)

    def worst(self, data, others, factor):
        """The largest divergence of a pair, as a share of the budget."""
        budget = self.ORDER * self.BUDGET / (2 * self.SIGMA**2)
        return max(self.divergence(a, b, factor) for a in data for b in others) / budget

    def test_remove_one_divergence_is_within_the_budget(self):
        assert 0.99 < self.worst(self.SIGNED, [(0, 0)], factor=1) <= 1 + 1e-12

    def test_replace_one_divergence_is_within_the_budget_for_non_negative_features(self):
        assert 0.85 < self.worst(self.NON_NEGATIVE, self.NON_NEGATIVE, factor=2) <= 1 + 1e-12

    def test_replace_one_divergence_is_within_the_budget_for_signed_features(self):
        assert 0.95 < self.worst(self.SIGNED, self.SIGNED, factor=4) <= 1 + 1e-12

    def test_smaller_factors_exceed_the_budget(self):
        assert self.worst(self.NON_NEGATIVE, self.NON_NEGATIVE, factor=1) > 1.6
        assert self.worst(self.SIGNED, self.SIGNED, factor=2) > 1.6


@pytest.mark.parametrize("order", ORDERS)
def test_replace_one_factors_of_individual_accounting_are_tight(order):
    """One sensor spends its budget in step 1, the other in step 2; with signs, both in opposite directions."""
    budget = 0.7
    for features, ones, others in [("orthant", (1, 0), (0, 1)), ("ball", (1, 0), (-1, 0))]:
        factor = charge_factor(features, 2, "replace-one", "individual")
        length = largest_weight(order, factor, budget)
        both = gaussian_divergence(order, length * np.array(ones), length * np.array(others))
        assert both == pytest.approx(budget, rel=1e-9)


def test_an_adaptive_second_step_with_continuous_noise_is_within_the_budget():
    """A sensor adds 0.8 in step 1, and in step 2 all that it has left if the first release was above 0.3."""
    order, budget, first, threshold = 2.0, 1.0, 0.8, 0.3
    left = math.sqrt(largest_weight(order, 1, budget) ** 2 - first**2)

    def ratio(z, mean):
        return np.exp(order * log_density(z, mean) + (1 - order) * log_density(z, 0.0))

    def both(z, y):
        return ratio(z, first) * ratio(y, np.where(z > threshold, left, 0.1))

    nodes, weights = np.polynomial.legendre.leggauss(200)
    moment = 0.0
    for low, high in [(-10.0, threshold), (threshold, 12.0)]:
        z, y = (low + high) / 2 + (high - low) / 2 * nodes, 1 + 11 * nodes
        moment += (high - low) / 2 * 11 * weights @ both(z[:, None], y) @ weights
    assert 0.9 * budget < math.log(moment) / (order - 1) < budget


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("factor", [1, 2, 4, 7])
def test_largest_weight_spends_exactly_what_is_left(order, factor):
    left = np.array([0.0, 1e-6, 0.3, 1.5])
    assert renyi_loss(order, factor, largest_weight(order, factor, left)) == pytest.approx(left, rel=1e-12)
    assert largest_weight(2.0, 3, 1.5) == math.sqrt(2 * 1.5 / (2.0 * 3))  # as printed in Theorem 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cube", 2, "remove-one", "total"), "features must be one of box, ball, orthant, got 'cube'"),
        (("box", 0, "remove-one", "total"), "dimension must be at least 1"),
        (("box", 2, "add-one", "total"), "adjacency must be one of"),
        (("box", 2, "remove-one", "both"), "accounting must be one of"),
    ],
)
def test_charge_factor_names_the_wrong_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        charge_factor(*arguments)
