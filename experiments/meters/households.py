"""Simulated household meters: the mean demand of a district, and each household's own, every half hour."""

from __future__ import annotations

import numpy as np

import dpfuse

STEPS_PER_DAY, INTERVAL_S = 48, 1800.0
_MORNING, _EVENING = 15, 38
"""The half hours of the two peaks."""


def simulate(num_runs: int, num_days: int, num_households: int, seed: int) -> dpfuse.Trajectories:
    """Runs that begin at midnight; state and measurements are in kW, and the state is the mean over all households.

    A household's demand has a level of its own, two peaks a day, a part that all share (weather), which changes over
    hours, and a part of its own, which changes over an hour.
    """
    rng = np.random.default_rng(seed)
    steps = num_days * STEPS_PER_DAY
    of_day = np.arange(steps) % STEPS_PER_DAY
    profile = 0.3 + 0.5 * _peak(of_day, _MORNING, 3.0) + 0.9 * _peak(of_day, _EVENING, 5.0)
    shared = _walk(rng, (num_runs, steps), decay=0.98, spread=0.3)
    level = rng.lognormal(0.0, 0.4, (num_runs, 1, num_households))
    own = _walk(rng, (num_runs, num_households, steps), decay=0.7, spread=0.5).swapaxes(1, 2)
    demand = np.maximum(level * (profile[None, :, None] * np.exp(shared)[..., None] + 0.2 * own), 0.0)
    return dpfuse.Trajectories(
        state=demand.mean(-1)[..., None],
        measurements=demand[..., None],
        present=np.ones(demand.shape, bool),
        interval_s=INTERVAL_S,
    )


def _peak(of_day: np.ndarray, centre: int, width: float) -> np.ndarray:
    return np.asarray(np.exp(-np.square((of_day - centre) / width) / 2))


def _walk(rng: np.random.Generator, shape: tuple[int, ...], decay: float, spread: float) -> np.ndarray:
    """A stationary autoregressive process along the last axis."""
    noise = rng.normal(size=shape) * spread
    noise[..., 1:] *= np.sqrt(1 - decay**2)
    for step in range(1, shape[-1]):
        noise[..., step] += decay * noise[..., step - 1]
    return noise
