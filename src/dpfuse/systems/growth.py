"""The nonlinear growth model, a usual test of nonlinear filters (Gordon, Salmond and Smith 1993).

x_{k+1} = x_k / 2 + 25 x_k / (1 + x_k^2) + 8 cos(1.2 k) + w_k, and sensor i measures y_k(i) = x_k^2 / 20 + v_k(i), where
x_1 and w_k ~ N(0, process_noise) and v_k(i) ~ N(0, measurement_noise). The sign of x_k is not measured: it must be
found from the past.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The growth model with m sensors of equal accuracy. The noises are variances."""

    num_sensors: int = 10
    process_noise: float = 10.0
    measurement_noise: float = 1.0

    def __post_init__(self) -> None:
        _check.is_count("num_sensors", self.num_sensors)
        _check.is_positive("process_noise", self.process_noise)
        _check.is_positive("measurement_noise", self.measurement_noise)


def move(x: Floats, step_index: int) -> Floats:
    """The mean of x_{k+1} given x_k, where `step_index` is k, from 1."""
    result: Floats = x / 2 + 25 * x / (1 + x**2) + 8 * np.cos(1.2 * step_index)
    return result


def simulate(system: Growth, *, num_runs: int, num_steps: int, seed: int) -> Trajectories:
    """Independent runs. `state` is x of shape (N, K, 1), `measurements` are y of shape (N, K, m, 1)."""
    _check.is_count("num_runs", num_runs)
    _check.is_count("num_steps", num_steps)
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    x = np.sqrt(system.process_noise) * rng.standard_normal((num_runs, num_steps))
    for k in range(1, num_steps):
        x[:, k] += move(x[:, k - 1], k)
    noise = np.sqrt(system.measurement_noise) * rng.standard_normal((*x.shape, system.num_sensors))
    y = x[..., None] ** 2 / 20 + noise
    return Trajectories(state=x[..., None].astype(np.float32), measurements=y[..., None].astype(np.float32))
