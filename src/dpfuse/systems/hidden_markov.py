"""Finite hidden Markov systems.

x_1 ~ initial, x_{k+1} ~ transition[x_k], and sensor i measures 1 with probability sensor_probabilities[x_k, i]; if it
has more than two outputs, it measures y with probability sensor_probabilities[x_k, i, y]. Given the states, sensors and
steps are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenMarkov:
    """A Markov chain on states 0 to S - 1, measured by sensors. Arrays are stored as float64 in full shape.

    Attributes:
        transition: shape (S, S); row x holds the probabilities of the state after x.
        sensor_probabilities: the probability that a sensor measures 1 in each state, shape (S, m), or shape (S,) if it
            is the same for all sensors. For sensors that measure 0 to Y - 1, the probability of each, shape (S, m, Y),
            or shape (S, 1, Y) with `num_sensors` if it is the same for all sensors.
        initial: probabilities of the first state, shape (S,).
        num_sensors: m, required if `sensor_probabilities` has shape (S,).
    """

    transition: Floats
    sensor_probabilities: Floats
    initial: Floats
    num_sensors: int | None = None

    def __post_init__(self) -> None:
        transition = _as_probabilities("transition", self.transition)
        if transition.ndim != 2 or transition.shape[0] != transition.shape[1] or transition.size == 0:
            raise ValueError(f"transition must have shape (S, S), got {transition.shape}")
        num_states = len(transition)
        initial = _as_probabilities("initial", self.initial)
        if initial.shape != (num_states,):
            raise ValueError(f"initial must have shape ({num_states},), got {initial.shape}")
        for name, value in [("transition", transition), ("initial", initial)]:
            if np.abs(value.sum(-1) - 1).max() > 1e-9:
                raise ValueError(f"{name} must add up to 1 over the last axis, got sums {value.sum(-1)}")
        sensors = _as_probabilities("sensor_probabilities", self.sensor_probabilities)
        if sensors.ndim == 1 and self.num_sensors is None:
            raise ValueError("num_sensors must be given where sensor_probabilities has shape (S,)")
        if (
            sensors.ndim not in (1, 2, 3)
            or len(sensors) != num_states
            or 0 in sensors.shape
            or sensors.shape[2:] == (1,)
        ):
            raise ValueError(
                f"sensor_probabilities must have shape (S,), (S, m) or (S, m, Y) with S = {num_states} and Y > 1, got "
                f"{np.shape(self.sensor_probabilities)}"
            )
        if sensors.ndim == 3 and np.abs(sensors.sum(-1) - 1).max() > 1e-9:
            raise ValueError("sensor_probabilities of shape (S, m, Y) must add up to 1 over the last axis")
        if self.num_sensors is not None and (sensors.ndim == 1 or (sensors.ndim == 3 and sensors.shape[1] == 1)):
            one = sensors if sensors.ndim == 3 else sensors[:, None]
            sensors = np.repeat(one, _check.is_count("num_sensors", self.num_sensors), axis=1)
        if self.num_sensors not in (None, sensors.shape[1]):
            raise ValueError(f"num_sensors must be {sensors.shape[1]}, as in sensor_probabilities; leave it out")
        for name, entry in [
            ("transition", transition),
            ("initial", initial),
            ("sensor_probabilities", sensors),
            ("num_sensors", sensors.shape[1]),
        ]:
            object.__setattr__(self, name, entry)

    @property
    def output_probabilities(self) -> Floats:
        """The probability of each measurement, shape (S, m, Y); Y is 2 for binary sensors."""
        own = self.sensor_probabilities
        return own if own.ndim == 3 else np.stack([1 - own, own], axis=-1)


def simulate(system: HiddenMarkov, *, num_runs: int, num_steps: int, seed: int) -> Trajectories:
    """Independent runs. `state` (N, K, 1) is the number of the state, `measurements` (N, K, m, 1) are 0 to Y - 1."""
    _check.is_count("num_runs", num_runs)
    _check.is_count("num_steps", num_steps)
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    uniform = rng.random((num_steps, num_runs, 1))
    # The number of cumulative probabilities that a uniform number passes is a draw. The last one is 1: it is left out.
    initial, transition = np.cumsum(system.initial)[:-1], np.cumsum(system.transition, axis=1)[:, :-1]
    x = np.empty((num_runs, num_steps), np.int64)
    x[:, 0] = (uniform[0] >= initial).sum(1)
    for k in range(1, num_steps):
        x[:, k] = (uniform[k] >= transition[x[:, k - 1]]).sum(1)
    # A measurement is the number of those levels j = 1 to Y - 1 whose p(y >= j) is above a uniform number.
    at_least = np.cumsum(system.output_probabilities[..., ::-1], axis=-1)[..., -2::-1]
    uniform = rng.random((num_runs, num_steps, at_least.shape[1]))
    y = np.zeros(uniform.shape, np.float32)
    for j in range(at_least.shape[2]):
        y += uniform < at_least[x, :, j]
    return Trajectories(state=x[..., None].astype(np.float32), measurements=y[..., None])


def _as_probabilities(name: str, value: Any) -> Floats:
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of probabilities") from error
    if not ((array >= 0) & (array <= 1)).all():
        raise ValueError(f"{name} must be probabilities, from 0 to 1")
    return array
