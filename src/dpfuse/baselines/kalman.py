"""Noise on each measurement, before the Kalman filter, or after it (leny2014differentially).

The sensors share one state and are alike, so that the filter reads their measurements through the sums alone. Noise
before the filter is therefore put on the sums. Noise on each measurement, which needs no trusted centre, is `local`:
the same map, but every slot that a sensor may have adds a noise of its own, used or not, so that the noise does not
tell how many sensors there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpfuse._arrays import Floats
from dpfuse.baselines.estimator import best_estimator
from dpfuse.baselines.mechanism import Problem

# The filter whose output is released may be tuned to more or less noise than there is.
_NOISE_FACTORS = (0.001, 0.01, 0.1, 1.0)


def input_perturbation(problem: Problem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The sums of every step, each with the same noise."""
    yield {}, problem.plain


def output_perturbation(problem: Problem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The output of a Kalman filter that reads the sums without noise.

    With no noise at all in its model the filter would trust each step alone and hardly smooth; with more its output is
    smoother, and one sensor can move it less.
    """
    plain = problem.scaled(problem.plain)
    num_states = problem.moments.state_mean.shape[1]
    for factor in _NOISE_FACTORS:
        gain = best_estimator(problem.moments, plain, factor).gain
        yield {"noise_factor": factor}, gain.reshape(problem.num_steps, num_states, *plain.shape[2:])
