"""A Rényi budget as (epsilon, delta), by four conversions, and back.

All four describe the same releases. `mironov` and `order` use the loss at one order only. `zcdp` uses that a Gaussian
release has loss rho alpha' at every order alpha', with rho = B / alpha (Bun and Steinke 2016). `gdp` uses that telling
two worlds apart by all releases is at least as hard as telling N(0, 1) from N(mu, 1), with mu^2 = 2 B / alpha (Dong,
Roth and Su 2022; under adaptive composition Smith and Thakurta 2022). The results are floats, for reports only: budgets
are enforced in integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.privacy.budget import GRID

Conversion = Literal["mironov", "order", "zcdp", "gdp"]

CONVERSIONS: tuple[Conversion, ...] = ("mironov", "order", "zcdp", "gdp")

SURCHARGE = 0.021
"""In one coordinate the total variation between the discrete Gaussian and a rounded continuous one is below this
number / sigma^2; to leading order it is E|N^2 - 1| / (48 sigma^2) = 0.0202 / sigma^2."""


def rho_of(order: float, budget: float) -> float:
    """The rho of the guarantee as rho-zCDP: B / alpha."""
    return budget / order


def mu_of(order: float, budget: float) -> float:
    """The mu of the guarantee as mu-GDP: sqrt(2 B / alpha)."""
    return math.sqrt(2 * budget / order)


def epsilons(order: float, budget: float, delta: float, coordinates: int = 0) -> dict[Conversion, float]:
    """The epsilon at this delta by each conversion.

    Args:
        coordinates: for `gdp`, as in `gdp_epsilon`.

    **Guarantees**
        - `mironov` (Mironov 2017, Prop. 3) and `order` (Canonne, Kamath and Steinke 2020, Prop. 12) hold for all
          releases that are (order, budget)-RDP.
        - `zcdp` holds for the releases of a dpfuse filter, with continuous and with discrete noise.
        - `gdp` is exact for continuous noise. With `coordinates` it also holds for the discrete noise of live releases.
        - The unit and the adjacency are those of the budget.
    """
    return {by: _convert(by, order, budget, delta, coordinates) for by in CONVERSIONS}


def gdp_epsilon(order: float, budget: float, delta: float, coordinates: int = 0) -> float:
    """The epsilon by GDP, with the surcharge for discrete noise; infinite where the surcharge alone exceeds delta.

    Args:
        coordinates: the number released while one sensor contributed, steps times d; 0 for continuous noise.
    """
    _check_arguments(order, budget, delta)
    mu = mu_of(order, budget)
    epsilon = _gaussian_epsilon(mu, delta)
    if not coordinates:
        return epsilon

    def solve(epsilon: float) -> float:
        left = delta - discrete_surcharge(epsilon, coordinates)
        return _gaussian_epsilon(mu, left) if left > 0 else math.inf

    # Iterate from below to the fixed point. Then check, slightly above it, that both deltas together fit.
    for _ in range(100):
        epsilon, previous = solve(epsilon), epsilon
        if epsilon - previous < 1e-12 or math.isinf(epsilon):
            break
    epsilon *= 1 + 1e-9
    return epsilon if solve(epsilon) <= epsilon else math.inf


def discrete_surcharge(epsilon: float, coordinates: int, grid: int = GRID) -> float:
    """The addition to the delta of `gdp` for discrete noise: (1 + e^epsilon) n 0.021 / sigma^2.

    Rounded continuous noise keeps the GDP curve. Discrete noise in its place changes the probability of any event by at
    most the total variation between the two, in each coordinate and under each neighbour.

    Args:
        coordinates: n, the number released while one sensor contributed, steps times d.
        grid: sigma, the standard deviation of the noise in grid steps.
    """
    _check.is_count("coordinates", coordinates, 0)
    return (1 + math.exp(min(epsilon, 700.0))) * coordinates * SURCHARGE / grid**2


def budget_for(epsilon: float, delta: float, order: float, by: Conversion = "gdp", coordinates: int = 0) -> float:
    """The largest budget at this order whose epsilon by that conversion is at most `epsilon`.

    Args:
        coordinates: for `gdp`, as in `gdp_epsilon`.

    **Guarantees**
        - The epsilon of the returned budget, increased by 1e-9 of itself for rounding, is at most `epsilon`.
        - `mironov` and `order` cannot go below a certain epsilon; a smaller `epsilon` raises ValueError.
    """
    _check.is_positive("epsilon", epsilon)
    _check.is_one_of("by", by, CONVERSIONS)

    def fits(budget: float) -> bool:
        return _convert(by, order, budget, delta, coordinates) * (1 + 1e-9) <= epsilon

    smallest, largest = 1e-12 * order, 2.0**20 * order
    if not fits(smallest):
        raise ValueError(
            f"epsilon must be larger at order {order!r} and delta {delta!r} by {by!r}, got {epsilon!r}; "
            f"raise the order or convert by 'gdp'"
        )
    return largest if fits(largest) else _bisect(fits, smallest, largest)


def chance_to_tell(order: float, budget: float) -> float:
    """The largest probability with which an observer of all releases tells two neighbours apart.

    It is Phi(mu / 2): 0.5 is guessing, 1 is certainty. The observer is assumed to know all other data, and believes
    beforehand, with probability 50%, that the first of the two is true.
    """
    return 0.5 * (1 + math.erf(mu_of(order, budget) / 2 / math.sqrt(2)))


def _convert(by: Conversion, order: float, budget: float, delta: float, coordinates: int = 0) -> float:
    _check_arguments(order, budget, delta)
    if by == "mironov":
        return budget + math.log(1 / delta) / (order - 1)
    if by == "order":
        return max(0.0, float(_improved(np.array(order), np.array(budget), delta)))
    if by == "zcdp":
        return _best_order(rho_of(order, budget), delta)
    return gdp_epsilon(order, budget, delta, coordinates)


def _improved(orders: Floats, losses: Floats, delta: float) -> Floats:
    """The epsilon of Prop. 12 of Canonne, Kamath and Steinke 2020."""
    return np.asarray(losses + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1))


def _gaussian_epsilon(mu: float, delta: float) -> float:
    from dp_accounting import get_epsilon_gaussian

    with np.errstate(divide="ignore"):  # its search takes the logarithm of a delta of 0 where epsilon is far too large
        return float(get_epsilon_gaussian(1 / mu, delta))


def _best_order(rho: float, delta: float) -> float:
    """The smallest epsilon over all orders; every order is valid, so a coarse search is safe."""
    low, high = -8.0, 12.0  # decimal logarithm of order - 1
    for _ in range(4):
        exponents = np.linspace(low, high, 2001)
        orders = 1 + 10**exponents
        candidates = _improved(orders, rho * orders, delta)
        best = int(candidates.argmin())
        low, high = float(exponents[max(best - 1, 0)]), float(exponents[min(best + 1, 2000)])
    return max(0.0, float(candidates[best]))


def _bisect(fits: Callable[[float], bool], low: float, high: float) -> float:
    """The largest number that fits, to 1e-12, given that `low` does and `high` does not."""
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _check_arguments(order: float, budget: float, delta: float) -> None:
    if _check.is_positive("order", order) <= 1:
        raise ValueError(f"order must be > 1, got {order!r}; 2 is a usual choice")
    _check.is_positive("budget", budget)
    if not 0 < _check.is_positive("delta", delta) < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta!r}; 1e-5 is a usual choice")
