"""Fit a baseline to data and a guarantee, and tune it on validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.guarantee import Guarantee
from dpfuse.trajectories import Trajectories
from experiments.baselines.mechanisms.estimator import LinearModel, best_estimator, recorded_moments
from experiments.baselines.mechanisms.features import Features, basis_sums, projections, range_of
from experiments.baselines.mechanisms.kalman import input_perturbation, output_perturbation
from experiments.baselines.mechanisms.matrix import matrix_mechanism
from experiments.baselines.mechanisms.mechanism import LinearMechanism, ReleaseProblem
from experiments.baselines.mechanisms.two_stage import two_stage

Baseline = Literal["local", "input", "output", "two-stage", "matrix"]

BASELINES: tuple[Baseline, ...] = get_args(Baseline)
OUTSIDE = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Shares of the measurements below the range of a channel, and above it, that are tried."""

_MAPS: dict[Baseline, Callable[[ReleaseProblem], Iterator[tuple[dict[str, Any], Floats]]]] = {
    "local": input_perturbation,
    "input": input_perturbation,
    "output": output_perturbation,
    "two-stage": two_stage,
    "matrix": matrix_mechanism,
}
_MOST_WINDOWS = 6000


def fit(
    name: Baseline,
    training: Trajectories,
    validation: Trajectories,
    guarantee: Guarantee,
    *,
    horizon: int | None = None,
    outside: Sequence[float] = OUTSIDE,
) -> LinearMechanism:
    """The baseline for the guarantee, with the settings of least error on the validation data.

    The settings are the clipping range, the features that are summed (all, one channel, or the regression of the state
    on them), the moments of the estimator (recorded, or of a linear model), a curve after the estimator, and the
    baseline's own settings.

    Args:
        name: where the noise is added. `local`: to each measurement. `input`: to the input of a Kalman filter.
            `output`: to its output. `two-stage`: to the optimal aggregate. `matrix`: to the sums, with a variance for
            each step.
        training, validation: recordings that share no step, as for `dpfuse.train`.
        guarantee: a guarantee with total accounting.
        horizon: number of releases; by default the length of the runs.
        outside: shares of the measurements below the range of a channel, and above it, to try.
    """
    _check.is_one_of("name", name, BASELINES)
    if guarantee.accounting != "total":
        raise ValueError(f"guarantee must have total accounting, got {guarantee.accounting!r}; baselines have no other")
    if _widths(training) != _widths(validation):
        raise ValueError("training and validation must have the same channels and states")
    if not outside or not all(0 <= share < 0.5 for share in outside):
        raise ValueError(f"outside must be shares from 0 to below 0.5, at least one, got {outside!r}")
    length = training.num_steps if horizon is None else _check.is_count("horizon", horizon, minimum=2)
    state, checked_state = (_cut(data.state.astype(float), length) for data in (training, validation))
    best: tuple[float, LinearMechanism, Floats, Floats] | None = None
    for share, low, high in _ranges(training, outside):
        basis, checked_basis = (_cut(basis_sums(data, low, high), length) for data in (training, validation))
        for summed, projection in projections(state, basis):
            if name == "two-stage" and summed != "all":
                continue  # the aggregator chooses a projection itself
            sums, checked_sums = basis @ projection.T, checked_basis @ projection.T
            features = Features(low, high, projection)
            for mechanism in _candidates(name, features, guarantee, state, sums, training):
                error = mechanism.expected_error(checked_state, checked_sums)
                if best is None or error < best[0]:
                    settings = {"outside": share, "summed": summed, **mechanism.settings}
                    best = error, replace(mechanism, settings=settings), sums, checked_sums
    assert best is not None  # each loop above runs at least once
    return _with_curve(best[1], (state, best[2]), (checked_state, best[3]))


def _candidates(
    name: Baseline, features: Features, guarantee: Guarantee, state: Floats, sums: Floats, training: Trajectories
) -> Iterator[LinearMechanism]:
    """The baseline with each of its own settings, for given features."""
    model = LinearModel.fit(state, sums)
    sources = {"recorded": recorded_moments(state, sums), "model": model.moments(state.shape[1])}
    # The map is designed for the model. The estimator may use either source of moments.
    moves = features.moves(guarantee.adjacency)
    problem = ReleaseProblem(sources["model"], model, moves, float(guarantee.squared_radius))
    num_noises = training.num_slots if name == "local" else 1
    mean = training.state.mean(axis=(0, 1)).astype(float)
    for settings, shape in _MAPS[name](problem):
        release = problem.scaled(shape)
        for source, moments in sources.items():
            estimator = best_estimator(moments, release, num_noises)
            chosen = {"moments": source, **settings}
            yield LinearMechanism(name, guarantee, features, release, num_noises, estimator, mean, chosen)


def _with_curve(
    mechanism: LinearMechanism, training: tuple[Floats, Floats], validation: tuple[Floats, Floats]
) -> LinearMechanism:
    """The mechanism with a cubic after its estimator, if this reduces the error on the validation data."""
    rng = np.random.default_rng(0)
    released, checked = (mechanism.run(mechanism.noiseless(sums), rng) for _, sums in (training, validation))
    bent = mechanism.estimator.bend(released, training[0])
    linear_error, bent_error = (
        float(np.square(estimator(checked) - validation[0]).mean()) for estimator in (mechanism.estimator, bent)
    )
    is_bent = bent_error < linear_error
    settings = {**mechanism.settings, "curve": is_bent, "validation_mse": min(bent_error, linear_error)}
    return replace(mechanism, estimator=bent if is_bent else mechanism.estimator, settings=settings)


def _widths(data: Trajectories) -> tuple[int, int]:
    return data.state.shape[-1], data.measurements.shape[-1]


def _ranges(training: Trajectories, outside: Sequence[float]) -> Iterator[tuple[float, Floats, Floats]]:
    """The ranges to try, each once."""
    seen: set[bytes] = set()
    for share in outside:
        low, high = range_of(training, share)
        if (key := low.tobytes() + high.tobytes()) not in seen:
            seen.add(key)
            yield share, low, high


def _cut(values: Floats, length: int) -> Floats:
    """Windows of recordings of shape (N, T, columns), spread over them, shape (windows, K, columns)."""
    num_runs, num_steps = values.shape[:2]
    if length > num_steps:
        raise ValueError(f"horizon must be at most the {num_steps} steps recorded, got {length}")
    starts = np.arange(0, num_steps - length + 1, max(1, (num_steps - length) * num_runs // _MOST_WINDOWS))
    return values[:, starts[:, None] + np.arange(length)].reshape(-1, length, values.shape[2])
