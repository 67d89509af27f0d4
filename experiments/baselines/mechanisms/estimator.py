"""The causal linear estimator with the smallest squared error, from first and second moments.

If the system is linear and Gaussian, this is the Kalman filter. It is written for a whole horizon at once, so that it
also covers releases that mix steps. The moments are those of the recorded windows, or those of a linear model

    j_{k+1} = A j_k + a + w_k,  w_k ~ N(0, W),     j_k = (X_k, S_k),

of state and feature sums, fitted to the windows by least squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Floats

_DEGREE = 3


class Moments(NamedTuple):
    """Mean and covariance of state and feature sums over a horizon.

    Attributes:
        state_mean: shape (K, n_x); `sums_mean`: shape (K, q).
        state_variance: shape (K, n_x).
        cross: covariance of state and sums, shape (K n_x, K q).
        covariance: of the sums, shape (K q, K q).
    """

    state_mean: Floats
    sums_mean: Floats
    state_variance: Floats
    cross: Floats
    covariance: Floats


class LinearEstimator(NamedTuple):
    """x_k = curve(offset_k + gain_k (z_1, ..., z_k)) with standard deviation std_k.

    Attributes:
        offset: shape (K, n_x); `std`: shape (K, n_x).
        gain: shape (K n_x, K d), zero for later releases.
        curve: coefficients of a polynomial for each coordinate, shape (powers, n_x). None means no curve.
    """

    offset: Floats
    gain: Floats
    std: Floats
    curve: Floats | None = None

    def __call__(self, released: Floats) -> Floats:
        """The estimates from releases of shape (N, K, d), shape (N, K, n_x)."""
        linear = self.offset + (released.reshape(len(released), -1) @ self.gain.T).reshape(-1, *self.offset.shape)
        if self.curve is None:
            return linear
        return np.asarray(np.polynomial.polynomial.polyval(linear, self.curve[:, None, None], tensor=False))

    def bend(self, released: Floats, state: Floats) -> LinearEstimator:
        """The estimator followed by a cubic that is fitted to releases and states. It helps if states are bounded."""
        linear = self._replace(curve=None)(released)
        fits = [
            np.polynomial.Polynomial.fit(linear[..., i].ravel(), state[..., i].ravel(), _DEGREE).convert().coef
            for i in range(state.shape[-1])
        ]
        # `convert` leaves out leading zeros.
        curve = np.stack([np.pad(fit, (0, 1 + _DEGREE - len(fit))) for fit in fits], axis=1).astype(float)
        bent = self._replace(curve=curve)
        return bent._replace(std=np.sqrt(np.square(bent(released) - state).mean(0)))


def best_estimator(moments: Moments, release: Floats, noise_variance: float) -> LinearEstimator:
    """The causal linear estimator of the state from Z = M S + noise with the smallest squared error.

    Args:
        moments: of the state and the feature sums.
        release: M, shape (K, d, K, q).
        noise_variance: the variance of each coordinate of the noise.
    """
    num_steps, dimension = release.shape[:2]
    num_states = moments.state_mean.shape[1]
    flat = release.reshape(num_steps * dimension, -1)
    covariance = flat @ moments.covariance @ flat.T + noise_variance * np.eye(len(flat))
    # Z - E Z = L e with e white: e is the innovation of each release, and the estimate is a sum over innovations.
    root = np.linalg.cholesky(covariance)
    by_innovation = np.linalg.solve(root, flat @ moments.cross.T).T
    by_innovation *= np.kron(np.tri(num_steps), np.ones((num_states, dimension)))
    gain = np.linalg.solve(root.T, by_innovation.T).T
    variance = moments.state_variance - np.square(by_innovation).sum(1).reshape(-1, num_states)
    offset = moments.state_mean - (gain @ (flat @ moments.sums_mean.ravel())).reshape(-1, num_states)
    return LinearEstimator(offset, gain, np.sqrt(np.maximum(variance, 0)))


def recorded_moments(state: Floats, sums: Floats) -> Moments:
    """The moments of recorded windows, from state and sums of shape (N, K, n_x) and (N, K, q)."""
    x, s = ((values - values.mean(0)).reshape(len(values), -1) for values in (state, sums))
    return Moments(state.mean(0), sums.mean(0), state.var(0), x.T @ s / len(x), s.T @ s / len(x))


@dataclass(frozen=True, eq=False)
class LinearModel:
    """The linear model of (X_k, S_k), see the top of the module.

    Attributes:
        transition: A; `drift`: a; `noise`: W, covariance; `initial_mean` and `initial_covariance`: of j_1.
        num_states: n_x, the leading entries of j.
    """

    transition: Floats
    drift: Floats
    noise: Floats
    initial_mean: Floats
    initial_covariance: Floats
    num_states: int

    @classmethod
    def fit(cls, state: Floats, sums: Floats) -> LinearModel:
        """The model with the smallest squared error one step ahead."""
        joint = np.concatenate([state, sums], axis=-1)
        before, after = (part.reshape(-1, joint.shape[-1]) for part in (joint[:, :-1], joint[:, 1:]))
        centred = before - before.mean(0)
        slopes = (np.linalg.pinv(centred.T @ centred, hermitian=True) @ (centred.T @ (after - after.mean(0)))).T
        drift = after.mean(0) - slopes @ before.mean(0)
        residual = after - before @ slopes.T - drift
        initial = joint[:, 0] - joint[:, 0].mean(0)
        return cls(
            transition=slopes,
            drift=drift,
            noise=residual.T @ residual / len(residual),
            initial_mean=joint[:, 0].mean(0),
            initial_covariance=initial.T @ initial / len(initial),
            num_states=state.shape[-1],
        )

    def moments(self, num_steps: int) -> Moments:
        """The moments of the model over a horizon."""
        size, n = len(self.drift), self.num_states
        means, covariance = np.zeros((num_steps, size)), np.zeros((num_steps, size, num_steps, size))
        mean, now = self.initial_mean, self.initial_covariance
        for k in range(num_steps):
            means[k], ahead = mean, now
            for later in range(k, num_steps):
                covariance[later, :, k], covariance[k, :, later] = ahead, ahead.T
                ahead = self.transition @ ahead
            mean = self.transition @ mean + self.drift
            now = self.transition @ now @ self.transition.T + self.noise
        return Moments(
            state_mean=means[:, :n],
            sums_mean=means[:, n:],
            state_variance=np.einsum("kiki->ki", covariance)[:, :n],
            cross=covariance[:, :n, :, n:].reshape(num_steps * n, -1),
            covariance=covariance[:, n:, :, n:].reshape(num_steps * (size - n), -1),
        )
