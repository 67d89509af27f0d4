"""Linear systems with Gaussian noise, for which the Kalman filter is optimal.

x_1 ~ N(initial_mean, initial_covariance),  x_{k+1} = A x_k + w_k,  w_k ~ N(0, Q), and sensor i measures
y_k(i) = H_i x_k + v_k(i),  v_k(i) ~ N(0, R_i), all noises independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.trajectories import Trajectories


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearGaussian:
    """A linear system with m sensors. Arrays are stored as float64 in full shape.

    Attributes:
        transition: A, shape (n_x, n_x).
        process_noise: Q, covariance of shape (n_x, n_x).
        measurement: H, shape (m, n_y, n_x).
        measurement_noise: R, covariances of shape (m, n_y, n_y), or (n_y, n_y) if it is the same for all sensors.
        initial_mean: shape (n_x,).
        initial_covariance: shape (n_x, n_x).
    """

    transition: Floats
    process_noise: Floats
    measurement: Floats
    measurement_noise: Floats
    initial_mean: Floats
    initial_covariance: Floats

    def __post_init__(self) -> None:
        given = {name: _as_finite(name, getattr(self, name)) for name in self.__dataclass_fields__}
        if given["measurement"].ndim != 3 or 0 in given["measurement"].shape:
            raise ValueError(f"measurement must have shape (m, n_y, n_x), got {given['measurement'].shape}")
        m, n_y, n_x = given["measurement"].shape
        if given["measurement_noise"].shape == (n_y, n_y):
            given["measurement_noise"] = np.tile(given["measurement_noise"], (m, 1, 1))
        shapes = {
            "transition": (n_x, n_x),
            "process_noise": (n_x, n_x),
            "measurement_noise": (m, n_y, n_y),
            "initial_mean": (n_x,),
            "initial_covariance": (n_x, n_x),
        }
        for name, shape in shapes.items():
            if given[name].shape != shape:
                raise ValueError(f"{name} must have shape {shape} to go with measurement, got {given[name].shape}")
        for name in ("process_noise", "measurement_noise", "initial_covariance"):
            _check_covariance(name, given[name])
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @classmethod
    def random_walk(
        cls,
        *,
        process_noise: float = 0.005,
        initial_variance: float = 1.0,
        num_sensors: int = 20,
        measurement_noise: float = 1.0,
    ) -> LinearGaussian:
        """A random walk x_{k+1} = x_k + w_k, measured by sensors of equal accuracy. The noises are variances."""
        return cls(
            transition=np.eye(1),
            process_noise=np.array([[process_noise]]),
            measurement=np.ones((_check.is_count("num_sensors", num_sensors), 1, 1)),
            measurement_noise=np.array([[measurement_noise]]),
            initial_mean=np.zeros(1),
            initial_covariance=np.array([[initial_variance]]),
        )


def simulate(system: LinearGaussian, *, num_runs: int, num_steps: int, seed: int) -> Trajectories:
    """Independent runs. `state` is x of shape (N, K, n_x), `measurements` are y of shape (N, K, m, n_y)."""
    _check.is_count("num_runs", num_runs)
    _check.is_count("num_steps", num_steps)
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    m, n_y, n_x = system.measurement.shape
    x = rng.standard_normal((num_runs, num_steps, n_x))
    x[:, 0] = system.initial_mean + x[:, 0] @ _root(system.initial_covariance).T
    x[:, 1:] = x[:, 1:] @ _root(system.process_noise).T
    for k in range(1, num_steps):
        x[:, k] += x[:, k - 1] @ system.transition.T
    v = rng.standard_normal((num_runs, num_steps, m, n_y))
    y = np.einsum("iyx,nkx->nkiy", system.measurement, x)
    y += np.einsum("iyz,nkiz->nkiy", _root(system.measurement_noise), v)
    return Trajectories(state=x.astype(np.float32), measurements=y.astype(np.float32))


def _as_finite(name: str, value: ArrayLike) -> Floats:
    try:
        array = np.array(value, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers") from error
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    return array


def _check_covariance(name: str, value: Floats) -> None:
    transposed = np.swapaxes(value, -1, -2)
    if not np.allclose(value, transposed, rtol=1e-9, atol=0):
        raise ValueError(f"{name} must be symmetric; pass (S + S.T) / 2 if it differs by rounding only")
    smallest = np.linalg.eigvalsh(value).min()
    if smallest < -1e-9 * np.abs(value).max():
        raise ValueError(f"{name} must have no negative eigenvalue, got {smallest:.3g}; it is a covariance")


def _root(covariance: Floats) -> Floats:
    """A matrix L with L L^T the covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    root: Floats = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
    return root
