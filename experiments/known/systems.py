"""The systems of the suite: recordings, and what is known about each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpfuse import Trajectories, optimal
from dpfuse.systems import freeway, growth, hidden_markov, linear_gaussian, tracking
from experiments.known import filters

BUDGETS = (0.15, 0.5, 1.5)
WALK = linear_gaussian.LinearGaussian.random_walk()
CHAIN = hidden_markov.HiddenMarkov(
    transition=np.array([[0.95, 0.05], [0.05, 0.95]]),
    sensor_probabilities=np.array([0.3, 0.7]),
    initial=np.array([0.5, 0.5]),
    num_sensors=20,
)
TARGET = tracking.Tracking()
GROWTH = growth.Growth()
_BY_RUN = (0.7, 0.1, 0.2)


class Parts(NamedTuple):
    """Recordings that share no step."""

    training: Trajectories
    validation: Trajectories
    test: Trajectories


class System(NamedTuple):
    """One system of the suite.

    Attributes:
        simulate: makes the recordings.
        horizon: releases in all.
        unit: of the squared error.
        filter_error: squared error of a filter that knows the model and reads every measurement; None if there is none.
        filter_name: of that filter.
    """

    simulate: Callable[[], Parts]
    horizon: int
    unit: str
    filter_error: Callable[[Trajectories], float] | None = None
    filter_name: str = ""


def _walks() -> Parts:
    runs = linear_gaussian.simulate(WALK, num_runs=2000, num_steps=50, seed=0)
    return Parts(*runs.split(_BY_RUN, by="run"))


def _chains() -> Parts:
    runs = hidden_markov.simulate(CHAIN, num_runs=2000, num_steps=50, seed=0)
    return Parts(*runs.split(_BY_RUN, by="run"))


def _targets() -> Parts:
    """420 runs to train on, 60 to validate, 240 to test."""
    runs = tracking.simulate(TARGET, num_runs=720, num_steps=60, seed=0)
    return Parts(*(runs.runs(np.arange(*part)) for part in ((0, 420), (420, 480), (480, 720))))


def _growths() -> Parts:
    runs = growth.simulate(GROWTH, num_runs=1000, num_steps=60, seed=0)
    return Parts(*runs.split(_BY_RUN, by="run"))


def _households() -> Parts:
    return Parts(*simulate_households(num_runs=1000, seed=0).split(_BY_RUN, by="run"))


def simulate_households(*, num_runs: int, seed: int, num_households: int = 40, num_steps: int = 48) -> Trajectories:
    """Days of half hours in which households measure their demand in kW; the state is their mean demand.

    A household's demand is the product of its size, of a daily profile, of a factor that all share (the weather), and
    of a factor of its own. The logarithms of both factors are first-order autoregressive.
    """
    rng = np.random.default_rng(seed)
    hour = np.arange(num_steps) * 24 / num_steps
    profile = 0.3 + 0.3 * np.exp(-(((hour - 8) / 2) ** 2)) + 0.7 * np.exp(-(((hour - 19) / 3) ** 2))
    size = np.exp(0.4 * rng.standard_normal((num_runs, 1, num_households)))
    shared = _autoregressive(rng, (num_runs, num_steps, 1), memory=0.95, std=0.4)
    own = _autoregressive(rng, (num_runs, num_steps, num_households), memory=0.7, std=0.6)
    demand = size * profile[:, None] * np.exp(shared + own)
    return Trajectories(
        state=demand.mean(-1, keepdims=True).astype(np.float32),
        measurements=demand[..., None].astype(np.float32),
        interval_s=1800.0,
    )


def _autoregressive(rng: np.random.Generator, shape: tuple[int, int, int], *, memory: float, std: float) -> np.ndarray:
    """A stationary process along the second axis."""
    noise = std * rng.standard_normal(shape)
    for k in range(1, shape[1]):
        noise[:, k] = memory * noise[:, k - 1] + np.sqrt(1 - memory**2) * noise[:, k]
    return noise


def _traffic() -> Parts:
    """The traffic of `dpfuse demo`."""
    recording = freeway.simulate(num_runs=8, seed=0).sample_sensors(0.3, 0)
    return Parts(*recording.split((0.5, 0.125, 0.375), by="run"))


SYSTEMS = {
    "linear": System(_walks, 50, "1", lambda test: filters.kalman_error(WALK, test), "Kalman"),
    "chain": System(_chains, 50, "1", lambda test: filters.forward_error(CHAIN, test), "forward"),
    "tracking": System(_targets, 60, "1", lambda test: filters.tracking_error(TARGET, test), "particle"),
    "growth": System(_growths, 60, "1", lambda test: filters.growth_error(GROWTH, test), "particle"),
    "households": System(_households, 48, "kW^2"),
    "freeway": System(_traffic, 100, "(veh/km)^2"),
}


def solved_optimum(budget: float) -> float:
    """The least squared error on the chain where features are the measurements, by Theorem 1.

    `dpfuse.optimal` has features y from 0 to 1. Under remove-one adjacency they may be signed: 2 y - 1 has the same
    norm bound and twice the difference, so a budget here is worth four times as much there.
    """
    problem = optimal.Problem(
        transition=CHAIN.transition,
        sensor_probabilities=CHAIN.sensor_probabilities,
        prior=CHAIN.initial,
        horizon=SYSTEMS["chain"].horizon,
        order=2.0,
        budget=4 * budget,
    )
    return float(optimal.solve(problem).value) / problem.horizon
