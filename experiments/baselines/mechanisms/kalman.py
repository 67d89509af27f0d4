"""Noise on each measurement, before a Kalman filter, or after it (leny2014differentially).

All sensors have the same model, so the filter reads their measurements through the sums only. Noise before the filter
is therefore added to the sums. Noise on each measurement, which needs no trusted centre, is the baseline `local`: the
same map, but every slot adds independent noise, used or not, so that the noise does not tell how many sensors are
present.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dpfuse._arrays import Floats
from experiments.baselines.mechanisms.estimator import best_estimator
from experiments.baselines.mechanisms.mechanism import ReleaseProblem

# Noise variances for which the released filter is designed.
_NOISE_FACTORS = (0.001, 0.01, 0.1, 1.0)


def input_perturbation(problem: ReleaseProblem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The map that releases the sums of every step, all with the same noise."""
    yield {}, problem.plain


def output_perturbation(problem: ReleaseProblem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The maps that release the output of a Kalman filter that reads the sums without noise.

    A filter designed for no noise would hardly smooth. One designed for more noise has a smoother output, which one
    sensor changes less.
    """
    plain = problem.scaled(problem.plain)
    num_states = problem.moments.state_mean.shape[1]
    for factor in _NOISE_FACTORS:
        gain = best_estimator(problem.moments, plain, factor).gain
        yield {"noise_factor": factor}, gain.reshape(problem.num_steps, num_states, *plain.shape[2:])
