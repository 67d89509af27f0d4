"""Baselines: the loss of one sensor's data, the estimator and the maps against textbooks, and the report."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

import dpfuse
from dpfuse.trajectories import Trajectories
from experiments.baselines import mechanisms
from experiments.baselines.mechanisms import BASELINES, Features, squared_sensitivity
from experiments.baselines.mechanisms.estimator import LinearModel, best_estimator, recorded_moments
from experiments.baselines.mechanisms.features import basis_sums
from experiments.baselines.mechanisms.matrix import best_strategy, matrix_mechanism, toeplitz_strategy
from experiments.baselines.mechanisms.mechanism import ReleaseProblem
from experiments.baselines.mechanisms.two_stage import two_stage
from support.designs import ADJACENCIES, busy_data, make_design, make_guarantee
from support.worst_case import worst_trajectory

# Baselines in which the release of a step reads that step alone: their bound is attained.
MEMORYLESS = ("local", "input", "two-stage", "matrix")
BUDGET = 0.7


@pytest.fixture(scope="module")
def crowds():
    """Two channels, sensors that come and go, and a state that depends on their sums."""

    def make(seed):
        data = busy_data(num_runs=200, seed=seed)
        sums = basis_sums(data, np.full(2, -1.0), np.full(2, 1.0))
        noise = np.random.default_rng(seed).normal(size=data.state.shape)
        return replace(data, state=np.cumsum(sums[..., 1:2] + 0.5 * sums[..., :1] + noise, axis=1))

    return make(0), make(1), make(2)


@pytest.fixture(scope="module")
def fitted(crowds):
    """Every baseline under both adjacencies."""
    return {
        (name, adjacency): mechanisms.fit(
            name, *crowds[:2], make_guarantee(adjacency=adjacency, budget=BUDGET), outside=(0.1,)
        )
        for name, adjacency in itertools.product(BASELINES, ADJACENCIES)
    }


def neighbours(mechanism, adjacency, seed=0):
    """Two data sets that differ in one sensor, as far apart for this mechanism as a search finds, in real measurements.

    That sensor is absent, or sends values far outside the range, which the clip brings to the corners.
    """
    features = mechanism.features
    path = worst_trajectory(mechanism.release, features.moves(adjacency), seed=seed)
    absent = len(features.corners)
    ends = np.vstack([features.corners, np.zeros_like(features.corners[:1])])
    signs = np.array([*itertools.product((-1, 1), repeat=len(features.low)), (0,) * len(features.low)])
    seconds = [absent] if adjacency == "remove-one" else range(absent + 1)
    options = [(i, j) for i in range(absent + 1) for j in seconds]
    gaps = np.array([[np.abs(ends[i] - ends[j] - move).sum() for i, j in options] for move in path])
    assert gaps.min(axis=1).max() < 1e-9
    corners = np.array(options)[gaps.argmin(axis=1)]
    others = busy_data(num_runs=1, num_steps=mechanism.horizon, num_slots=4, seed=seed)
    return [
        Trajectories(
            state=others.state,
            measurements=np.concatenate([1e6 * signs[side][None, :, None], others.measurements], axis=2),
            present=np.concatenate([(side != absent)[None, :, None], others.present], axis=2),
            sensors=np.concatenate([np.full_like(others.sensors[:, :, :1], 7), others.sensors], axis=2),
        )
        for side in corners.T
    ]


def loss_between(mechanism, first, second):
    """The Rényi divergence between the releases of two data sets: Gaussians with noise of standard deviation 1."""
    move = np.subtract(*(mechanism.noiseless(mechanism.features.sums(data)) for data in (first, second)))
    return mechanism.guarantee.order * float(np.square(move).sum()) / 2


class TestGuarantee:
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    @pytest.mark.parametrize("name", BASELINES)
    def test_the_loss_between_neighbours_is_at_most_the_budget_and_nearly_reaches_it(self, fitted, name, adjacency):
        mechanism = fitted[name, adjacency]
        found = loss_between(mechanism, *neighbours(mechanism, adjacency))
        assert found <= mechanism.loss * (1 + 1e-9)
        assert mechanism.loss <= BUDGET
        assert found >= (0.999 if name in MEMORYLESS else 0.6) * BUDGET

    @pytest.mark.parametrize("name", BASELINES)
    def test_without_the_clip_the_loss_exceeds_the_budget(self, fitted, name):
        """Negative control: the same search and map, but a range a hundred times as wide as the one charged."""
        mechanism = fitted[name, "remove-one"]
        pair = neighbours(mechanism, "remove-one")
        features = mechanism.features
        centre, half = (features.low + features.high) / 2, (features.high - features.low) / 2
        # Scaled as before, clipped a hundred times later.
        wide = replace(features, low=centre - 100 * half, high=centre + 100 * half)
        wide = replace(wide, projection=features.projection * np.array([1.0, 100, 100]))
        leaky = object.__new__(type(mechanism))
        leaky.__dict__.update(mechanism.__dict__ | {"features": wide})
        assert loss_between(leaky, *pair) > 100 * BUDGET

    @pytest.mark.parametrize("name", BASELINES)
    def test_a_map_that_costs_more_than_the_budget_is_refused(self, fitted, name):
        mechanism = fitted[name, "replace-one"]
        with pytest.raises(ValueError, match="release must cost at most the budget 0.7, got 0.70"):
            replace(mechanism, release=1.0001 * mechanism.release)

    def test_a_remove_one_guarantee_does_not_hold_for_replace_one(self, fitted):
        """Negative control: replacing a sensor with signed features changes the sum by twice as much."""
        mechanism = fitted["input", "remove-one"]
        assert loss_between(mechanism, *neighbours(mechanism, "replace-one")) > 1.5 * BUDGET

    def test_a_release_that_reads_later_steps_is_refused(self, fitted):
        mechanism = fitted["output", "remove-one"]
        with pytest.raises(ValueError, match="release must be causal"):
            replace(mechanism, release=mechanism.release[::-1, :, ::-1])

    def test_local_noise_does_not_depend_on_which_sensors_are_present(self, crowds, fitted):
        mechanism = fitted["local", "remove-one"]
        assert mechanism.num_noises == crowds[0].num_slots
        zeros = np.zeros((20_000, mechanism.horizon, mechanism.dimension))
        drawn = mechanism.run(zeros, np.random.default_rng(0))
        # The variance of n normal numbers is within 6 sqrt(2 / n) of 1 but for one time in 1e8.
        assert abs(drawn.var() / mechanism.num_noises - 1) < 6 * np.sqrt(2 / drawn.size)


class TestSensitivity:
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_the_bound_covers_every_trajectory_and_the_search_finds_the_worst(self, adjacency):
        rng = np.random.default_rng(0)
        features = Features(-np.ones(1), np.ones(1), rng.normal(size=(2, 2)))
        moves = features.moves(adjacency)
        release = rng.normal(size=(4, 2, 4, 2)) * np.tri(4)[:, None, :, None]
        paths = np.array(list(itertools.product(moves, repeat=4))).reshape(-1, 8)
        largest = np.square(paths @ release.reshape(8, 8).T).sum(1).max()
        assert largest <= squared_sensitivity(release, moves) * (1 + 1e-12)
        found = worst_trajectory(release, moves).ravel()
        assert np.square(release.reshape(8, 8) @ found).sum() == pytest.approx(largest)
        diagonal = release * np.eye(4)[:, None, :, None]
        largest = np.square(paths @ diagonal.reshape(8, 8).T).sum(1).max()
        assert squared_sensitivity(diagonal, moves) == pytest.approx(largest)

    def test_the_sensitivity_for_one_participation_is_too_small(self):
        """Negative control: the largest column norm is the sensitivity for one step; a sensor that stays exceeds it."""
        release = np.eye(6)[:, None, :, None]
        path = worst_trajectory(release, np.array([[0.0], [1.0]]))
        assert np.square(path).sum() > 5 * np.square(release[:, 0, :, 0]).sum(0).max()

    def test_the_bound_equals_that_of_jax_privacy_for_sensors_in_every_step(self):
        from jax_privacy.matrix_factorization import sensitivity

        strategy = np.tril(np.random.default_rng(0).uniform(size=(12, 12)))
        ours = squared_sensitivity(strategy[:, None, :, None], np.array([[-1.0], [0.0], [1.0]]))
        with jax.enable_x64(True):
            theirs = sensitivity.fixed_epoch_sensitivity(strategy, epochs=12)
        assert ours == pytest.approx(theirs**2, rel=1e-10)

    def test_features_of_any_input_stay_in_the_hull_of_the_moves(self):
        """In no direction do the features of a sensor exceed the corners and 0."""
        rng = np.random.default_rng(0)
        features = Features(np.array([-2.0, 0.0]), np.array([1.0, 5.0]), rng.normal(size=(3, 3)))
        sent = rng.choice([0.0, -7.0, 1e30, -1e30, 3.0, np.nan, np.inf, 1e-30], size=(1, 500, 1, 2))
        data = Trajectories(state=np.zeros((1, 500, 1)), measurements=sent)
        directions = rng.normal(size=(3, 100))
        reach = (features.moves("remove-one") @ directions).max(0)
        assert ((features.sums(data)[0] @ directions) <= reach + 1e-9).all()


def make_problem(num_steps=6, num_sensors=5, squared_radius=0.7):
    """A random walk of variance 0.1 a step, the sum of whose sensors has noise; exact moments."""
    walk, noise = 0.1, num_sensors * 0.5
    gains = np.array([[1.0, 0.0], [num_sensors, 0.0]])
    measured = np.array([[0.0, 0.0], [0.0, noise]])
    spread = np.array([[1.0, num_sensors], [num_sensors, num_sensors**2]])
    model = LinearModel(gains, np.zeros(2), walk * spread + measured, np.array([0.5, 2.5]), spread + measured, 1)
    return ReleaseProblem(model.moments(num_steps), model, np.array([[-1.0], [0.0], [1.0]]), squared_radius)


def mean_variance(problem, shape):
    return np.square(best_estimator(problem.moments, problem.scaled(shape), 1.0).std).mean()


class TestEstimator:
    def test_the_best_estimator_is_the_kalman_filter(self):
        problem = make_problem()
        release = problem.scaled(problem.plain)
        estimator = best_estimator(problem.moments, release, 1.0)
        released = np.random.default_rng(0).normal(size=(1, problem.num_steps, 1))
        # The textbook: x wanders, and z = weight (5 x + v) + noise.
        weight = release[0, 0, 0, 0]
        x, variance = 0.5, 1.0
        for k in range(problem.num_steps):
            gain = variance * 5 * weight / (variance * (5 * weight) ** 2 + weight**2 * 2.5 + 1)
            x, variance = x + gain * (released[0, k, 0] - 5 * weight * x), (1 - gain * 5 * weight) * variance
            assert estimator(released)[0, k, 0] == pytest.approx(x, abs=1e-10)
            assert estimator.std[k, 0] ** 2 == pytest.approx(variance, abs=1e-10)
            variance += 0.1

    def test_recorded_moments_are_those_of_numpy(self):
        rng = np.random.default_rng(0)
        state, sums = rng.normal(size=(50, 3, 1)), rng.normal(size=(50, 3, 2))
        moments = recorded_moments(state, sums)
        together = np.cov(np.concatenate([state.reshape(50, -1), sums.reshape(50, -1)], axis=1).T, bias=True)
        np.testing.assert_allclose(moments.cross, together[:3, 3:])
        np.testing.assert_allclose(moments.covariance, together[3:, 3:])

    def test_the_fitted_model_is_the_one_that_made_the_data(self):
        problem = make_problem()
        rng = np.random.default_rng(0)
        model = problem.model
        now = rng.multivariate_normal(model.initial_mean, model.initial_covariance, size=20_000)
        path = [now]
        for _ in range(5):
            now = now @ model.transition.T + rng.multivariate_normal(np.zeros(2), model.noise, size=20_000)
            path.append(now)
        joint = np.stack(path, axis=1)
        found = LinearModel.fit(joint[..., :1], joint[..., 1:])
        np.testing.assert_allclose(found.transition, model.transition, atol=0.1)
        np.testing.assert_allclose(found.noise, model.noise, rtol=0.1)

    def test_a_curve_helps_where_the_state_is_bounded(self):
        rng = np.random.default_rng(0)
        state = rng.choice([-1.0, 1.0], size=(4000, 1, 1))
        released = state + 0.5 * rng.normal(size=state.shape)
        moments = recorded_moments(state, released)
        straight = best_estimator(
            moments._replace(covariance=moments.covariance - 0.25), np.eye(1)[:, None, :, None], 0.25
        )
        bent = straight.bend(released, state)
        error = [np.square(estimator(released) - state).mean() for estimator in (straight, bent)]
        assert error[1] < 0.85 * error[0]
        assert bent.std[0, 0] ** 2 == pytest.approx(error[1])


class TestMaps:
    def test_no_strategy_beats_the_diagonal_one(self):
        rng = np.random.default_rng(0)
        work = np.tril(rng.uniform(size=(8, 8)))

        def error(strategy):
            gram = strategy.T @ strategy
            return np.trace(work.T @ work @ np.linalg.inv(gram)) * np.abs(gram).sum()

        best = error(best_strategy(work))
        drawn = [np.tril(np.eye(8) + 0.3 * rng.normal(size=(8, 8))) for _ in range(200)]
        assert best < min(error(each) for each in [*drawn, np.eye(8), toeplitz_strategy(8)])
        # The columns' own norms, not their roots, would be another diagonal, and a worse one.
        assert best < error(np.diag(np.linalg.norm(work, axis=0)))

    def test_correlated_noise_helps_to_read_differences_of_counts(self):
        """The sum moves by u in {0, 1}^2; negative entries of X = C^T C are free, and help to read a difference."""
        work = np.array([[1.0, -1.0]])
        moves = np.array(list(itertools.product([0, 1], repeat=2)))

        def error(gram):
            return np.trace(work.T @ work @ np.linalg.inv(gram)) * max(move @ gram @ move for move in moves)

        correlated, strategy = np.array([[0.5, -0.4], [-0.4, 0.5]]), best_strategy(work)
        assert error(correlated) < 0.6 * error(strategy.T @ strategy)

    @pytest.mark.slow
    def test_jax_privacy_finds_the_same_strategy(self):
        from jax_privacy.matrix_factorization import dense

        work = np.tril(np.random.default_rng(0).uniform(size=(12, 12)))
        with jax.enable_x64(True):
            found = np.asarray(dense.optimize(12, epochs=12, A=work))
        ours = best_strategy(work)
        np.testing.assert_allclose(found / found[0, 0], ours / ours[0, 0], atol=1e-2)

    def test_the_aggregator_finds_the_best_schedule_of_a_grid(self):
        """With one feature and three steps the only choice is how to divide the budget, which a grid covers."""
        problem = make_problem(num_steps=3)
        ((_, solved),) = two_stage(problem)
        shares = [
            np.sqrt([a, b, 1 - a - b]) for a, b in itertools.product(np.linspace(0.01, 0.97, 41), repeat=2) if a + b < 1
        ]
        grid = min(mean_variance(problem, problem.plain * share[:, None, None, None]) for share in shares)
        assert mean_variance(problem, solved) == pytest.approx(grid, rel=2e-3)
        assert mean_variance(problem, solved) < 0.97 * mean_variance(problem, problem.plain)

    def test_the_aggregator_leaves_out_a_channel_without_information(self):
        model = make_problem().model
        idle = np.diag([0.0, 0.0, 4.0])
        padded = LinearModel(
            transition=np.pad(model.transition, (0, 1)),
            drift=np.zeros(3),
            noise=np.pad(model.noise, (0, 1)) + idle,
            initial_mean=np.zeros(3),
            initial_covariance=np.pad(model.initial_covariance, (0, 1)) + idle,
            num_states=1,
        )
        moves = Features(-np.ones(2), np.ones(2), np.eye(3)[1:]).moves("remove-one")
        problem = ReleaseProblem(padded.moments(4), padded, moves, 0.7)
        ((_, solved),) = two_stage(problem)
        by_feature = np.square(solved).sum(axis=(0, 1, 2))
        assert by_feature[1] < 1e-3 * by_feature[0]

    def test_the_diagonal_strategy_is_better_than_equal_noise_and_toeplitz(self):
        problem = make_problem()
        strategies = {settings["strategy"]: shape for settings, shape in matrix_mechanism(problem)}
        errors = {name: mean_variance(problem, shape) for name, shape in strategies.items()}
        assert errors["diagonal"] < mean_variance(problem, problem.plain) < errors["toeplitz"]


class TestReport:
    @pytest.mark.parametrize("name", BASELINES)
    def test_every_baseline_beats_the_prior_within_the_budget(self, crowds, fitted, name):
        report = mechanisms.evaluate(fitted[name, "remove-one"], crowds[2])
        assert report.mse < (1 if name == "local" else 0.9) * report.prior_mse
        assert report.within_budget
        assert report.budget_spent_max == pytest.approx(BUDGET)
        assert report.ci95[0] < report.mse < report.ci95[1]
        assert 0.9 < report.coverage <= 1
        assert report.epsilon["zcdp"] > 0

    def test_the_measured_error_is_the_expected_one(self, crowds, fitted):
        mechanism = fitted["input", "remove-one"]
        mechanism = replace(mechanism, estimator=mechanism.estimator._replace(curve=None))
        report = mechanisms.evaluate(mechanism, crowds[2], num_draws=50)
        expected = mechanism.expected_error(crowds[2].state, mechanism.features.sums(crowds[2]))
        assert report.mse == pytest.approx(expected, rel=0.02)

    @pytest.mark.slow
    def test_a_baseline_and_a_design_are_compared_window_by_window(self, walks):
        mechanism = mechanisms.fit("two-stage", *walks[:2], make_guarantee(), outside=(0.0,))
        report = mechanisms.evaluate(mechanism, walks[2])
        untrained = make_design(num_channels=1, horizon=8)
        comparison = dpfuse.compare(report, dpfuse.evaluate(untrained, walks[2], num_draws=1))
        assert comparison.ci95[0] < comparison.ratio < comparison.ci95[1] < 0.5

    def test_a_larger_budget_gives_a_smaller_error(self, walks):
        errors = [
            mechanisms.fit("matrix", *walks[:2], make_guarantee(budget=budget)).settings["validation_mse"]
            for budget in (0.05, 0.5, 5.0)
        ]
        assert errors[0] > errors[1] > errors[2]


class TestRefusals:
    def test_wrong_arguments_are_refused_by_name(self, walks):
        with pytest.raises(ValueError, match="name must be one of local, input"):
            mechanisms.fit("kalman", *walks[:2], make_guarantee())
        with pytest.raises(ValueError, match="guarantee must have total accounting, got 'individual'"):
            mechanisms.fit("input", *walks[:2], make_guarantee("individual"))
        with pytest.raises(ValueError, match="horizon must be at most the 8 steps recorded, got 9"):
            mechanisms.fit("input", *walks[:2], make_guarantee(), horizon=9)
        with pytest.raises(ValueError, match="outside must be shares from 0 to below 0.5, at least one, got"):
            mechanisms.fit("input", *walks[:2], make_guarantee(), outside=(0.5,))
        with pytest.raises(ValueError, match="training and validation must have the same channels and states"):
            mechanisms.fit("input", walks[0], busy_data(), make_guarantee())

    def test_measurements_that_never_change_are_refused(self, walks):
        still = replace(walks[0], measurements=np.ones_like(walks[0].measurements))
        with pytest.raises(ValueError, match="training must have measurements that change"):
            mechanisms.fit("input", still, walks[1], make_guarantee())

    def test_data_with_other_channels_is_refused(self, walks, fitted):
        with pytest.raises(ValueError, match=r"the \(states, channels\) of the baseline, \(1, 2\), got \(1, 1\)"):
            mechanisms.evaluate(fitted["input", "remove-one"], walks[2])

    def test_data_with_more_slots_than_noises_is_refused(self, crowds, fitted):
        many = busy_data(num_slots=9)
        with pytest.raises(ValueError, match="test must have at most the 5 slots of training, got 9"):
            mechanisms.evaluate(fitted["local", "remove-one"], many)

    @pytest.mark.parametrize(("name", "module"), [("two-stage", "cvxpy"), ("matrix", "jax_privacy")])
    def test_a_missing_package_is_named_with_its_pip_line(self, walks, monkeypatch, name, module):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(sys.modules, f"{module}.matrix_factorization", None)
        with pytest.raises(dpfuse.MissingExtra, match=r"pip install 'dpfuse\[theory\]'"):
            mechanisms.fit(name, *walks[:2], make_guarantee())
