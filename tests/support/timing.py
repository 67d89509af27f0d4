"""A test of whether release times tell two worlds apart."""

from __future__ import annotations

import math

import numpy as np


def in_pairs(times, has_more, latest):
    """The times of pairs of steps, that of the fuller one first; `has_more` says of the first step whether it is that.

    Where a busy machine had a step skipped or late, its pair is left out: what is claimed is that work which is done
    in time leaves no trace.
    """
    pairs = [[times.get(step + 1 - is_fuller), times.get(step + is_fuller)] for step, is_fuller in has_more.items()]
    pairs = np.array(pairs, float).reshape(-1, 2)
    return pairs[(pairs < latest).all(1)]


def can_be_told_apart(pairs, false_alarms=1e-6):
    """Sign tests of the times, and of how far they are from the usual one, with at most that share of false alarms.

    Where the sensor has no effect a coin decided which of a pair is called first, so the first is the larger one in a
    number of n pairs that is binomial, and off n / 2 by more than t n with a chance of at most 2 exp(-2 n t^2).
    """
    for values in (pairs, np.abs(pairs - np.median(pairs))):
        decided = values[values[:, 0] != values[:, 1]]
        share = (decided[:, 0] > decided[:, 1]).mean()
        if abs(share - 0.5) > math.sqrt(math.log(2 * 2 / false_alarms) / (2 * len(decided))):
            return True
    return False
