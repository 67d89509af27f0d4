"""The three systems of the comparison: training, validation and test data, the horizon, and what is estimated."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import dpfuse
from dpfuse.systems import freeway, hidden_markov, linear_gaussian


class Parts(NamedTuple):
    """Recordings that share no step."""

    training: dpfuse.Trajectories
    validation: dpfuse.Trajectories
    test: dpfuse.Trajectories


class System(NamedTuple):
    """A system to compare on: how to simulate it, releases in all, gradient steps for a design, unit of the error."""

    simulate: Callable[[], Parts]
    horizon: int
    updates: int
    unit: str


def _random_walk() -> Parts:
    walk = linear_gaussian.LinearGaussian.random_walk()
    runs = linear_gaussian.simulate(walk, num_runs=4000, num_steps=50, seed=0)
    return Parts(*runs.split((0.7, 0.1, 0.2), by="run"))


def _chain() -> Parts:
    chain = hidden_markov.HiddenMarkov(
        transition=np.array([[0.95, 0.05], [0.05, 0.95]]),
        sensor_probabilities=np.array([0.3, 0.7]),
        initial=np.array([0.5, 0.5]),
        num_sensors=20,
    )
    runs = hidden_markov.simulate(chain, num_runs=4000, num_steps=50, seed=0)
    return Parts(*runs.split((0.7, 0.1, 0.2), by="run"))


def _road() -> Parts:
    """The traffic of `dpfuse demo`."""
    traffic = freeway.simulate(num_runs=8, seed=0).sample_sensors(0.3, 0)
    return Parts(*traffic.split((0.5, 0.125, 0.375), by="run"))


SYSTEMS = {
    "random walk": System(_random_walk, 50, 400, "variance at the start = 1"),
    "hidden Markov chain": System(_chain, 50, 400, "states 0 and 1"),
    "freeway": System(_road, 100, 1000, "(veh/km)^2"),
}
