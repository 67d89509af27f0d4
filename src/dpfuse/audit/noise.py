"""The precision attack: tests of the released noise beyond its distribution.

An attacker who knows all data knows the noise of each release. The discrete Gaussian of `GRID` steps is a whole number,
its low bits are uniform, and equal draws are as rare as its density says. Floating-point noise fails these tests: it is
not on the grid, or, rounded to the grid, it has too few values in its tails, so that some releases are possible in one
world only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Integers
from dpfuse.audit.checks import Check
from dpfuse.privacy.budget import GRID

FALSE_ALARM = 1e-7
"""The probability with which each of these checks fails for correct noise."""

_BINS = 32
_LOW_BITS = 16
# Intervals of |noise| in standard deviations, tested separately: poor generators are poor in their tails.
_RINGS = (0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0, math.inf)


def check_noise(noise: NDArray[Any]) -> list[Check]:
    """The checks whether these draws are discrete Gaussian noise of `GRID` steps."""
    flat = noise.ravel()
    if not np.issubdtype(flat.dtype, np.integer):
        share = np.mean(flat != np.round(flat))
        found = f"releases have type {flat.dtype} instead of whole grid steps, {share:.0%} of them are not on the grid"
        return [Check("grid", False, found)]
    return [
        Check("grid", True, "every release is a whole number of grid steps"),
        _check_spread("spread", flat),
        _check_shape(flat),
        _check_low_bits(flat),
        _check_coincidences(flat),
    ]


def check_live(noise: NDArray[Any]) -> Check:
    """The check of the noise of live runs on their own, as too little noise in a few draws is hidden among many."""
    return _check_spread("live noise", noise.ravel())


def _check_spread(name: str, noise: NDArray[Any]) -> Check:
    """The check of the standard deviation: too little noise leaks, too much is not as designed."""
    from scipy import stats

    n = noise.size
    if not n:
        return Check(name, False, "failed: nothing was drawn")
    ratio = float(np.mean((noise / GRID) ** 2))
    low, high = (stats.chi2.ppf(level, n) / n for level in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    found = f"the noise's standard deviation is {math.sqrt(ratio):.4f} of the designed one"
    return Check(name, bool(low <= ratio <= high), found, FALSE_ALARM)


def _check_shape(noise: Integers) -> Check:
    from scipy import stats

    edges = np.concatenate([[-np.inf], stats.norm.ppf(np.arange(1, _BINS) / _BINS), [np.inf]])
    counts, _ = np.histogram(noise / GRID, edges)
    return _even("shape", counts, f"counts of the noise in {_BINS} equally likely intervals")


def _check_low_bits(noise: Integers) -> Check:
    counts = np.bincount(noise % _LOW_BITS, minlength=_LOW_BITS)
    return _even("low bits", counts, "counts of the last four bits of the noise")


def _even(name: str, counts: Integers, what: str) -> Check:
    from scipy import stats

    value = float(stats.chisquare(counts).pvalue)
    return Check(name, value >= FALSE_ALARM, f"{what} are even with a p-value of {value:.2g}", FALSE_ALARM)


def _check_coincidences(noise: Integers) -> Check:
    """The check of the number of pairs of equal draws in each interval of |noise|."""
    from scipy import stats

    values, counts = np.unique(noise, return_counts=True)
    pairs = counts * (counts - 1) / 2
    ring = np.searchsorted(_RINGS, np.abs(values) / GRID, side="right") - 1
    worst, found = 1.0, ""
    for number, (low, high) in enumerate(zip(_RINGS[:-1], _RINGS[1:], strict=True)):
        # The square of the density is proportional to a normal density with variance 1/2.
        chance = (stats.norm.sf(math.sqrt(2) * low) - stats.norm.sf(math.sqrt(2) * high)) / (math.sqrt(math.pi) * GRID)
        expected = noise.size * (noise.size - 1) / 2 * chance
        seen = float(pairs[ring == number].sum())
        value = float(stats.poisson.sf(seen - 1, expected))
        if value < worst:
            worst, found = (
                value,
                f"; beyond {low:g} standard deviations there are {seen:.0f}, expected are {expected:.3g}",
            )
    passed = worst >= FALSE_ALARM / len(_RINGS)
    return Check(
        "coincidences",
        passed,
        f"the number of equal draws is as expected{found}" if passed else f"too many equal draws{found}",
        FALSE_ALARM,
    )
