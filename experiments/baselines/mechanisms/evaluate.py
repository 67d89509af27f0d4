"""The report of a baseline, in the same form as for a design."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpfuse import _check
from dpfuse._stats import Z95
from dpfuse.evaluation.report import Report, summarise
from dpfuse.privacy.conversion import epsilons
from dpfuse.privacy.statement import state_guarantee
from dpfuse.trajectories import Trajectories
from experiments.baselines.mechanisms.mechanism import LinearMechanism


def evaluate(
    mechanism: LinearMechanism,
    test: Trajectories,
    *,
    stride: int | None = None,
    num_draws: int = 4,
    delta: float = 1e-5,
    seed: int = 0,
) -> Report:
    """The report of a baseline on windows of the test recordings. The arguments are those of `dpfuse.evaluate`.

    Equal strides give equal windows, so that `dpfuse.compare` can compare a baseline with a design.
    """
    expected = len(mechanism.state_mean), len(mechanism.features.low)
    given = test.state.shape[-1], test.measurements.shape[-1]
    if given != expected:
        raise ValueError(f"test must have the (states, channels) of the baseline, {expected}, got {given}")
    if mechanism.num_noises > 1 and test.num_slots > mechanism.num_noises:
        raise ValueError(f"test must have at most the {mechanism.num_noises} slots of training, got {test.num_slots}")
    length = mechanism.horizon
    windows = test.windows(length, max(1, length // 4) if stride is None else stride)
    clean = mechanism.noiseless(mechanism.features.sums(windows))
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    errors, coverage = np.zeros((windows.num_runs, length)), 0.0
    for _ in range(_check.is_count("num_draws", num_draws)):
        squared = (mechanism.estimator(mechanism.run(clean, rng)) - windows.state) ** 2
        errors += squared.mean(-1) / num_draws
        coverage += float(np.mean(squared <= (Z95 * mechanism.estimator.std) ** 2)) / num_draws
    guarantee, loss, dimension = mechanism.guarantee, mechanism.loss, mechanism.dimension
    return replace(
        summarise(windows, errors, coverage, mechanism.state_mean, guarantee, delta),
        budget_spent_max=loss,
        within_budget=loss <= guarantee.budget,
        epsilon=epsilons(guarantee.order, guarantee.budget, delta, length * dimension),
        statement=state_guarantee(guarantee, horizon=length, dimension=dimension, delta=delta).to_text(),
    )
