"""The precision attack: whether the released numbers carry marks that tell more than their distribution should.

The noise of a release is known to whoever knows everybody's data. If it is the discrete Gaussian of `GRID` steps, it is
a whole number, its low bits are even, and it comes back to the same value as rarely as `GRID` steps to the standard
deviation allow. Floating-point noise fails here: it leaves the grid, or, put back on it, has too few values in its
tails, so that some releases are possible in one world only.
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
"""Of each of these checks."""

_BINS = 32
_LOW_BITS = 16
# Rings of |noise| in standard deviations, counted apart: a poor generator is poor in its tails.
_RINGS = (0.0, 1.0, 2.0, 2.5, 3.0, 3.5, 4.0, math.inf)


def check_noise(noise: NDArray[Any]) -> list[Check]:
    """Whether these draws are the discrete Gaussian noise that was promised."""
    flat = noise.ravel()
    if not np.issubdtype(flat.dtype, np.integer):
        share = np.mean(flat != np.round(flat))
        found = f"releases of type {flat.dtype} instead of whole grid steps, {share:.0%} of them off the grid"
        return [Check("grid", False, found)]
    return [
        Check("grid", True, "every release is a whole number of grid steps"),
        _check_spread("spread", flat),
        _check_shape(flat),
        _check_low_bits(flat),
        _check_coincidences(flat),
    ]


def check_live(noise: NDArray[Any]) -> Check:
    """The spread of what a live step drew, apart: few draws, whose lack of noise all the others would cover up."""
    return _check_spread("live noise", noise.ravel())


def _check_spread(name: str, noise: NDArray[Any]) -> Check:
    """Too little noise is a leak, too much is not what was designed for."""
    from scipy import stats

    n = noise.size
    if not n:
        return Check(name, False, "not so: nothing was drawn")
    ratio = float(np.mean((noise / GRID) ** 2))
    low, high = (stats.chi2.ppf(level, n) / n for level in (FALSE_ALARM / 2, 1 - FALSE_ALARM / 2))
    found = f"the noise's standard deviation is {math.sqrt(ratio):.4f} of the promised one"
    return Check(name, bool(low <= ratio <= high), found, FALSE_ALARM)


def _check_shape(noise: Integers) -> Check:
    from scipy import stats

    edges = np.concatenate([[-np.inf], stats.norm.ppf(np.arange(1, _BINS) / _BINS), [np.inf]])
    counts, _ = np.histogram(noise / GRID, edges)
    return _even("shape", counts, f"the noise falls into {_BINS} equally likely intervals")


def _check_low_bits(noise: Integers) -> Check:
    counts = np.bincount(noise % _LOW_BITS, minlength=_LOW_BITS)
    return _even("low bits", counts, "the last four bits of the noise take all values")


def _even(name: str, counts: Integers, what: str) -> Check:
    from scipy import stats

    value = float(stats.chisquare(counts).pvalue)
    return Check(name, value >= FALSE_ALARM, f"{what}, evenly with a p-value of {value:.2g}", FALSE_ALARM)


def _check_coincidences(noise: Integers) -> Check:
    """How many pairs of draws are equal, ring by ring, against how many should be."""
    from scipy import stats

    values, counts = np.unique(noise, return_counts=True)
    pairs = counts * (counts - 1) / 2
    ring = np.searchsorted(_RINGS, np.abs(values) / GRID, side="right") - 1
    worst, found = 1.0, ""
    for number, (low, high) in enumerate(zip(_RINGS[:-1], _RINGS[1:], strict=True)):
        # The density squared is a normal one again, of variance a half.
        chance = (stats.norm.sf(math.sqrt(2) * low) - stats.norm.sf(math.sqrt(2) * high)) / (math.sqrt(math.pi) * GRID)
        expected = noise.size * (noise.size - 1) / 2 * chance
        seen = float(pairs[ring == number].sum())
        value = float(stats.poisson.sf(seen - 1, expected))
        if value < worst:
            worst, found = value, f"; beyond {low:g} standard deviations {seen:.0f}, where {expected:.3g} should be"
    passed = worst >= FALSE_ALARM / len(_RINGS)
    return Check("coincidences", passed, f"equal draws are as rare as they should be{found}", FALSE_ALARM)
