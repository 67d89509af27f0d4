"""A statistical test of whether release times show which of two steps had more sensors."""

from __future__ import annotations

import math

import numpy as np


def in_pairs(times, has_more, latest):
    """The times of pairs of steps, shape (pairs, 2), that of the step with more sensors first.

    A pair with a step that was skipped or late is left out: the claim is about work that is done in time.

    Args:
        times: by step.
        has_more: for the first step of each pair, 1 if it has more sensors than the second, else 0.
    """
    pairs = [[times.get(step + 1 - is_fuller), times.get(step + is_fuller)] for step, is_fuller in has_more.items()]
    pairs = np.array(pairs, float).reshape(-1, 2)
    return pairs[(pairs < latest).all(1)]


def can_be_told_apart(pairs, false_alarms=1e-6):
    """Whether sign tests find a difference between first and second times, or in their distance from the median.

    If the sensor has no effect, a coin decided which time comes first. The number of n pairs in which the first is the
    larger one is then binomial, and differs from n / 2 by more than t n with probability at most 2 exp(-2 n t^2).
    """
    for values in (pairs, np.abs(pairs - np.median(pairs))):
        decided = values[values[:, 0] != values[:, 1]]
        share = (decided[:, 0] > decided[:, 1]).mean()
        if abs(share - 0.5) > math.sqrt(math.log(2 * 2 / false_alarms) / (2 * len(decided))):
            return True
    return False
