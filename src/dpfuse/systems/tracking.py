"""A target in the plane, seen by fixed stations that measure how far away it is.

The target has position p and velocity v, p_{k+1} = p_k + v_k, v_{k+1} = v_k + a_k, with normal accelerations a_k, and
station i at s_i measures |p_k - s_i| plus noise. No single station can locate the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Stations evenly spaced on a circle around the origin, near which the target starts.

    Attributes:
        num_stations: m.
        radius: of the circle.
        range_noise: standard deviation of a measured range.
        initial_position: standard deviation of each coordinate at the first step.
        initial_velocity: standard deviation of each coordinate at the first step, a step.
        acceleration: standard deviation of each coordinate of a_k.
    """

    num_stations: int = 6
    radius: float = 10.0
    range_noise: float = 0.3
    initial_position: float = 6.0
    initial_velocity: float = 0.2
    acceleration: float = 0.03

    def __post_init__(self) -> None:
        _check.is_count("num_stations", self.num_stations)
        for name in ("radius", "range_noise", "initial_position", "initial_velocity", "acceleration"):
            _check.is_positive(name, getattr(self, name))

    @property
    def stations(self) -> Floats:
        """Where the stations are, shape (m, 2)."""
        angle = 2 * np.pi * np.arange(self.num_stations) / self.num_stations
        return self.radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def simulate(system: Tracking, *, num_runs: int, num_steps: int, seed: int) -> Trajectories:
    """Independent runs.

    `state` (N, K, 2) is the target's position. `measurements` (N, K, m, 3) are a station's range and, the same at every
    step, its own coordinates: f is one network for all stations, so each must say where it stands.
    """
    _check.is_count("num_runs", num_runs)
    _check.is_count("num_steps", num_steps)
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    start = system.initial_position * rng.standard_normal((num_runs, 1, 2))
    steps = system.acceleration * rng.standard_normal((num_runs, num_steps, 2))
    steps[:, 0] = system.initial_velocity * rng.standard_normal((num_runs, 2))
    velocity = np.cumsum(steps, axis=1)
    position = start + np.cumsum(velocity, axis=1) - velocity  # the first velocity moves the second position
    away = np.linalg.norm(position[:, :, None] - system.stations, axis=-1)
    measured = away + system.range_noise * rng.standard_normal(away.shape)
    place = np.broadcast_to(system.stations, (*away.shape, 2))
    measurements = np.concatenate([measured[..., None], place], axis=-1)
    return Trajectories(state=position.astype(np.float32), measurements=measurements.astype(np.float32))
