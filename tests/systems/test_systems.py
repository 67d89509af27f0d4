"""Linear-Gaussian, hidden Markov, tracking and growth systems: their recordings follow their equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpfuse.systems
from dpfuse.systems import Growth, Tracking, growth, hidden_markov, linear_gaussian, tracking
from dpfuse.systems.hidden_markov import HiddenMarkov
from dpfuse.systems.linear_gaussian import LinearGaussian

# Tolerances below are five standard errors: a false alarm once in two million for each number.
FIVE = 5.0


def oscillator(**changes: Any) -> LinearGaussian:
    """A turning plane, with a sensor on each axis and one on both."""
    settings = {
        "transition": 0.9 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]]),
        "process_noise": [[0.5, 0.2], [0.2, 0.3]],
        "measurement": [[[1, 0]], [[0, 1]], [[2, -1]]],
        "measurement_noise": [[[0.1]], [[0.2]], [[0.4]]],
        "initial_mean": [1.0, -2.0],
        "initial_covariance": [[1.0, -0.3], [-0.3, 0.5]],
    }
    return LinearGaussian(**{**settings, **changes})


def machine(**changes: Any) -> HiddenMarkov:
    settings = {
        "transition": [[0.9, 0.1, 0.0], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6]],
        "sensor_probabilities": [0.1, 0.5, 0.8],
        "initial": [0.2, 0.3, 0.5],
        "num_sensors": 4,
    }
    return HiddenMarkov(**{**settings, **changes})


def test_the_package_lists_its_public_names() -> None:
    public = {name for name in vars(dpfuse.systems) if not name.startswith("_")}
    assert set(dpfuse.systems.__all__) == public


def assert_covariance(samples: np.ndarray, covariance: np.ndarray) -> None:
    """Samples of shape (n, d) of a centred normal; the variance of x_i x_j is S_ii S_jj + S_ij^2."""
    diagonal = np.diag(covariance)
    error = np.sqrt((np.outer(diagonal, diagonal) + np.square(covariance)) / len(samples))
    assert (np.abs(samples.T @ samples / len(samples) - covariance) < FIVE * error).all()


def test_linear_gaussian_runs_follow_the_equations() -> None:
    system = oscillator()
    runs = linear_gaussian.simulate(system, num_runs=4000, num_steps=6, seed=0)
    x, y = runs.state.astype(np.float64), runs.measurements.astype(np.float64)
    assert x.shape == (4000, 6, 2) and y.shape == (4000, 6, 3, 1)
    assert_covariance(x[:, 0] - system.initial_mean, system.initial_covariance)
    assert_covariance((x[:, 1:] - x[:, :-1] @ system.transition.T).reshape(-1, 2), system.process_noise)
    noise = y[..., 0] - x @ system.measurement[:, 0].T
    assert_covariance(noise.reshape(-1, 3), np.diag(system.measurement_noise[:, 0, 0]))


def test_the_noise_of_a_sensor_with_two_channels_has_its_covariance() -> None:
    noise = np.array([[1.0, 0.8], [0.8, 1.0]])
    system = oscillator(measurement=np.stack([np.eye(2)] * 3), measurement_noise=noise)
    runs = linear_gaussian.simulate(system, num_runs=2000, num_steps=2, seed=1)
    assert_covariance((runs.measurements - runs.state[:, :, None]).reshape(-1, 2).astype(np.float64), noise)


def test_the_covariance_check_fails_for_a_wrong_scale() -> None:
    samples = np.random.default_rng(0).standard_normal((4000, 2))
    with pytest.raises(AssertionError):
        assert_covariance(samples, 1.33**2 * np.eye(2))


def test_the_variance_of_a_random_walk_grows_with_its_steps() -> None:
    system = LinearGaussian.random_walk(process_noise=0.5, initial_variance=2.0, num_sensors=3, measurement_noise=0.1)
    runs = linear_gaussian.simulate(system, num_runs=4000, num_steps=5, seed=2)
    assert runs.measurements.shape == (4000, 5, 3, 1)
    assert_covariance(runs.state[:, -1].astype(np.float64), np.array([[2.0 + 4 * 0.5]]))


def test_a_system_without_noise_is_allowed() -> None:
    system = oscillator(process_noise=np.zeros((2, 2)), initial_covariance=np.zeros((2, 2)))
    runs = linear_gaussian.simulate(system, num_runs=2, num_steps=3, seed=0)
    expected = system.transition @ system.transition @ system.initial_mean
    np.testing.assert_allclose(runs.state[:, 2], np.stack([expected] * 2), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transition": np.eye(3)}, r"transition must have shape \(2, 2\) to go with measurement, got \(3, 3\)"),
        ({"measurement": np.eye(2)}, r"measurement must have shape \(m, n_y, n_x\)"),
        ({"process_noise": [[1, 0.5], [0, 1]]}, "process_noise must be symmetric"),
        ({"process_noise": [[1, 2], [2, 1]]}, "process_noise must have no negative eigenvalue, got -1"),
        ({"initial_mean": [np.nan, 0]}, "initial_mean must be finite"),
    ],
)
def test_a_wrong_linear_gaussian_system_is_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oscillator(**changes)


def test_hidden_markov_runs_follow_the_probabilities() -> None:
    system = machine()
    runs = hidden_markov.simulate(system, num_runs=3000, num_steps=10, seed=0)
    x, y = runs.state[..., 0].astype(int), runs.measurements[..., 0]
    assert x.shape == (3000, 10) and y.shape == (3000, 10, 4)
    assert_frequencies(x[:, 0], system.initial)
    for state in range(3):
        assert_frequencies(x[:, 1:][x[:, :-1] == state], system.transition[state])
        measures_one = system.sensor_probabilities[state, 0]
        assert_frequencies(y[x == state].ravel().astype(int), np.array([1 - measures_one, measures_one]))


def assert_frequencies(draws: np.ndarray, probabilities: np.ndarray) -> None:
    share = np.bincount(draws, minlength=len(probabilities)) / len(draws)
    error = np.sqrt(probabilities * (1 - probabilities) / len(draws))
    assert (np.abs(share - probabilities) <= FIVE * error).all()


def test_each_sensor_may_have_probabilities_of_its_own() -> None:
    system = machine(sensor_probabilities=[[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]], num_sensors=None)
    runs = hidden_markov.simulate(system, num_runs=5, num_steps=20, seed=0)
    in_last = runs.state[..., 0] == 2
    np.testing.assert_array_equal(runs.measurements[..., 0, 0], in_last)
    np.testing.assert_array_equal(runs.measurements[..., 1, 0], ~in_last)


def test_sensors_of_several_outputs_follow_their_probabilities() -> None:
    chances = np.random.default_rng(0).dirichlet(np.ones(3), 3)
    system = machine(sensor_probabilities=chances[:, None])
    assert system.sensor_probabilities.shape == (3, 4, 3) and system.num_sensors == 4
    runs = hidden_markov.simulate(system, num_runs=2000, num_steps=10, seed=0)
    for state in range(3):
        y = runs.measurements[runs.state[..., 0] == state].ravel().astype(int)
        assert_frequencies(y, chances[state])
    np.testing.assert_allclose(machine().output_probabilities[:, 0], [[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])


def test_binary_sensors_measure_the_same_in_either_form() -> None:
    runs = hidden_markov.simulate(machine(), num_runs=50, num_steps=10, seed=0)
    full = machine(sensor_probabilities=machine().output_probabilities)
    same = hidden_markov.simulate(full, num_runs=50, num_steps=10, seed=0)
    np.testing.assert_array_equal(runs.measurements, same.measurements)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transition": np.full((3, 3), 0.3)}, "transition must add up to 1"),
        ({"transition": np.ones((2, 3))}, r"transition must have shape \(S, S\), got \(2, 3\)"),
        ({"initial": [0.5, 0.5]}, r"initial must have shape \(3,\), got \(2,\)"),
        ({"sensor_probabilities": [0.1, 1.2, 0.5]}, "sensor_probabilities must be probabilities"),
        ({"sensor_probabilities": [0.1, 0.2]}, "sensor_probabilities must have shape"),
        ({"sensor_probabilities": np.full((3, 2), 0.5)}, "num_sensors must be 2"),
        ({"sensor_probabilities": np.full((3, 1, 3), 0.3)}, "sensor_probabilities of shape .* must add up to 1"),
        ({"sensor_probabilities": np.ones((3, 1, 1))}, "sensor_probabilities must have shape"),
        ({"num_sensors": None}, "num_sensors must be given"),
    ],
)
def test_a_wrong_hidden_markov_system_is_refused_by_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        machine(**changes)


def test_tracking_runs_follow_the_equations() -> None:
    system = Tracking(num_stations=4, radius=5.0, range_noise=0.2, acceleration=0.1)
    np.testing.assert_allclose(system.stations, [[5, 0], [0, 5], [-5, 0], [0, -5]], atol=1e-12)
    runs = tracking.simulate(system, num_runs=4000, num_steps=5, seed=0)
    position, measured = runs.state.astype(np.float64), runs.measurements.astype(np.float64)
    assert position.shape == (4000, 5, 2) and measured.shape == (4000, 5, 4, 3)
    assert_covariance(position[:, 0], 6.0**2 * np.eye(2))
    velocity = np.diff(position, axis=1)
    assert_covariance(velocity[:, 0], 0.2**2 * np.eye(2))
    assert_covariance(np.diff(velocity, axis=1).reshape(-1, 2), 0.1**2 * np.eye(2))
    np.testing.assert_allclose(measured[..., 1:], np.broadcast_to(system.stations, (4000, 5, 4, 2)), atol=1e-6)
    away = np.linalg.norm(position[:, :, None] - system.stations, axis=-1)
    assert_covariance((measured[..., 0] - away).reshape(-1, 4), 0.2**2 * np.eye(4))


def test_growth_runs_follow_the_equations() -> None:
    system = Growth(num_sensors=3, process_noise=2.0, measurement_noise=0.5)
    runs = growth.simulate(system, num_runs=4000, num_steps=4, seed=0)
    x, y = runs.state[..., 0].astype(np.float64), runs.measurements[..., 0].astype(np.float64)
    assert x.shape == (4000, 4) and y.shape == (4000, 4, 3)
    assert_covariance(x[:, :1], np.array([[2.0]]))
    for k in (1, 2, 3):  # the step from x_k to x_{k+1} of the equation
        expected = x[:, k - 1] / 2 + 25 * x[:, k - 1] / (1 + x[:, k - 1] ** 2) + 8 * np.cos(1.2 * k)
        assert_covariance(x[:, k : k + 1] - expected[:, None], np.array([[2.0]]))
    assert_covariance((y - x[..., None] ** 2 / 20).reshape(-1, 3), 0.5 * np.eye(3))


@pytest.mark.parametrize(
    ("module", "make"),
    [(linear_gaussian, oscillator), (hidden_markov, machine), (tracking, Tracking), (growth, Growth)],
)
def test_equal_seeds_give_equal_runs(module: Any, make: Any) -> None:
    def run(seed: int) -> np.ndarray:
        return module.simulate(make(), num_runs=2, num_steps=30, seed=seed).measurements

    np.testing.assert_array_equal(run(0), run(0))
    assert not np.array_equal(run(0), run(1))
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        module.simulate(make(), num_runs=2, num_steps=0, seed=0)
