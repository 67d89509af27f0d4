"""Filters that know the model and read every measurement, without noise and without a guarantee.

The Kalman filter and the forward filter are optimal. The particle filters come as close to the optimal filter as their
number of particles allows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from dpfuse import Trajectories
from dpfuse.systems import growth, hidden_markov, linear_gaussian, tracking

NUM_PARTICLES = 4000
# The first measurement of a target leaves a thousandth of its prior, so that so many more are drawn to choose from.
_FIRST_CHOICE = 25


def kalman_error(system: linear_gaussian.LinearGaussian, test: Trajectories) -> float:
    """The mean squared error of the Kalman filter."""
    measurement = system.measurement.reshape(-1, system.measurement.shape[-1])
    noise = np.zeros((len(measurement), len(measurement)))
    size = system.measurement.shape[1]
    for i, covariance in enumerate(system.measurement_noise):
        noise[i * size : (i + 1) * size, i * size : (i + 1) * size] = covariance
    y = test.measurements.astype(np.float64).reshape(*test.measurements.shape[:2], -1)
    mean, covariance = np.tile(system.initial_mean, (test.num_runs, 1)), system.initial_covariance
    errors = []
    for k in range(test.num_steps):
        gain = covariance @ measurement.T @ np.linalg.inv(measurement @ covariance @ measurement.T + noise)
        mean = mean + (y[:, k] - mean @ measurement.T) @ gain.T
        covariance = covariance - gain @ measurement @ covariance
        errors.append(((mean - test.state[:, k]) ** 2).mean())
        mean = mean @ system.transition.T
        covariance = system.transition @ covariance @ system.transition.T + system.process_noise
    return float(np.mean(errors))


def forward_error(system: hidden_markov.HiddenMarkov, test: Trajectories) -> float:
    """The mean squared error of the posterior mean of the state's number."""
    outputs = test.measurements[..., 0].astype(np.int64)
    log_likelihood = np.log(system.output_probabilities)
    sensors = np.arange(outputs.shape[2])
    states = np.arange(len(system.transition))
    belief, errors = np.tile(system.initial, (test.num_runs, 1)), []
    for k in range(test.num_steps):
        gain = log_likelihood[:, sensors, outputs[:, k]].sum(-1).T
        belief = belief * np.exp(gain - gain.max(1, keepdims=True))
        belief /= belief.sum(1, keepdims=True)
        errors.append(((belief @ states - test.state[:, k, 0]) ** 2).mean())
        belief = belief @ system.transition
    return float(np.mean(errors))


def growth_error(system: growth.Growth, test: Trajectories, *, seed: int = 0) -> float:
    """The mean squared error of a bootstrap particle filter."""
    process, noise = np.sqrt(system.process_noise), system.measurement_noise

    def weigh(particles: Array, y: Array) -> Array:
        return -0.5 * jnp.sum((y[:, 0] - particles**2 / 20) ** 2, axis=1) / noise

    def move(particles: Array, step: Array, key: Array) -> Array:
        mean = particles / 2 + 25 * particles / (1 + particles**2) + 8 * jnp.cos(1.2 * step)
        return mean + process * jax.random.normal(key, particles.shape)

    def begin(key: Array, y: Array) -> Array:
        return process * jax.random.normal(key, (NUM_PARTICLES, 1))

    return _filter_error(begin, weigh, move, test, seed)


def tracking_error(system: tracking.Tracking, test: Trajectories, *, seed: int = 0) -> float:
    """The mean squared error of a bootstrap particle filter for position and velocity."""
    stations = jnp.asarray(system.stations)

    def weigh(particles: Array, y: Array) -> Array:
        away = jnp.linalg.norm(particles[:, None, :2] - stations, axis=-1)
        return -0.5 * jnp.sum((y[:, 0] - away) ** 2, axis=1) / system.range_noise**2

    def move(particles: Array, step: Array, key: Array) -> Array:
        position, velocity = jnp.split(particles, 2, axis=1)
        pushed = velocity + system.acceleration * jax.random.normal(key, velocity.shape)
        # p_{k+1} = p_k + v_k, then v_{k+1} = v_k + a_k.
        return jnp.concatenate([position + velocity, pushed], axis=1)

    def begin(key: Array, y: Array) -> Array:
        """Positions given the first measurement; velocities, of which it says nothing, are drawn for each anew."""
        place, choice, speed = jax.random.split(key, 3)
        many = system.initial_position * jax.random.normal(place, (_FIRST_CHOICE * NUM_PARTICLES, 2))
        position = many[_resample(choice, weigh(many, y), NUM_PARTICLES)]
        velocity = system.initial_velocity * jax.random.normal(speed, position.shape)
        return jnp.concatenate([position, velocity], axis=1)

    return _filter_error(begin, weigh, move, test, seed, is_weighed=True)


def _resample(key: Array, log_weight: Array, count: int) -> Array:
    """Numbers of particles, chosen by systematic resampling."""
    points = (jax.random.uniform(key) + jnp.arange(count)) / count
    chosen = jnp.searchsorted(jnp.cumsum(jax.nn.softmax(log_weight)), points)
    return jnp.minimum(chosen, len(log_weight) - 1)


def _filter_error(
    begin: Callable[[Array, Array], Array],
    weigh: Callable[[Array, Array], Array],
    move: Callable[[Array, Array, Array], Array],
    test: Trajectories,
    seed: int,
    *,
    is_weighed: bool = False,
) -> float:
    """The mean squared error of the particles' weighted mean.

    Args:
        is_weighed: whether `begin` has used the first measurement.
    """
    num_states = test.state.shape[-1]

    def step(particles: Array, now: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        y, x, number, key = now
        choice, motion = jax.random.split(key)
        weight = jnp.where((number == 1) & is_weighed, 0.0, 1.0) * weigh(particles, y)
        estimate = jax.nn.softmax(weight) @ particles[:, :num_states]
        chosen = particles[_resample(choice, weight, len(particles))]
        return move(chosen, number, motion), jnp.mean((estimate - x) ** 2)

    def run(y: Array, x: Array, key: Array) -> Array:
        first, later = jax.random.split(key)
        steps = jnp.arange(1, len(x) + 1)
        _, errors = jax.lax.scan(step, begin(first, y[0]), (y, x, steps, jax.random.split(later, len(x))))
        return jnp.mean(errors)

    keys = jax.random.split(jax.random.key(seed), test.num_runs)
    given = jnp.asarray(test.measurements), jnp.asarray(test.state), keys
    return float(np.mean(jax.jit(partial(jax.lax.map, lambda one: run(*one)))(given)))
