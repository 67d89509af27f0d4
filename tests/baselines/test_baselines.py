"""Baselines: what one sensor can do to their releases, the estimator and the maps against textbooks, and the report."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

import dpfuse
from dpfuse import baselines
from dpfuse.baselines import BASELINES, Features, squared_sensitivity, worst_trajectory
from dpfuse.baselines.estimator import LinearModel, best_estimator, recorded_moments
from dpfuse.baselines.features import basis_sums
from dpfuse.baselines.matrix import best_strategy, matrix_mechanism, toeplitz_strategy
from dpfuse.baselines.mechanism import Problem
from dpfuse.baselines.two_stage import two_stage
from dpfuse.types import Trajectories
from support.designs import ADJACENCIES, busy_data, make_design, make_guarantee

# Baselines in which the release of a step reads that step alone: their bound is attained.
MEMORYLESS = ("local", "input", "two-stage", "matrix")
BUDGET = 0.7


@pytest.fixture(scope="module")
def crowds():
    """Two channels, sensors that come and go, and a state that their sums tell something about."""

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
        (name, adjacency): baselines.fit(
            name, *crowds[:2], make_guarantee(adjacency=adjacency, budget=BUDGET), outside=(0.0, 0.1)
        )
        for name, adjacency in itertools.product(BASELINES, ADJACENCIES)
    }


def neighbours(mechanism, adjacency, seed=0):
    """Two data sets that differ in one sensor, as far apart for this mechanism as a search finds, in real measurements.

    The sensor in question sends values far outside of the range, for the clip to bring to its corners, or is absent.
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
    def test_no_neighbours_are_further_apart_than_the_budget_and_some_are_as_far(self, fitted, name, adjacency):
        mechanism = fitted[name, adjacency]
        found = loss_between(mechanism, *neighbours(mechanism, adjacency))
        assert found <= mechanism.loss * (1 + 1e-9)
        assert mechanism.loss <= BUDGET
        assert found >= (0.999 if name in MEMORYLESS else 0.6) * BUDGET

    @pytest.mark.parametrize("name", BASELINES)
    def test_without_the_clip_neighbours_are_too_far_apart(self, fitted, name):
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

    def test_a_promise_for_removal_does_not_hold_for_replacement(self, fitted):
        """Negative control of the adjacency: signed features move twice as far when replaced."""
        mechanism = fitted["input", "remove-one"]
        assert loss_between(mechanism, *neighbours(mechanism, "replace-one")) > 1.5 * BUDGET

    def test_a_release_may_not_read_the_future(self, fitted):
        mechanism = fitted["output", "remove-one"]
        with pytest.raises(ValueError, match="release must be causal"):
            replace(mechanism, release=mechanism.release[::-1, :, ::-1])

    def test_local_noise_does_not_depend_on_who_is_there(self, crowds, fitted):
        mechanism = fitted["local", "remove-one"]
        assert mechanism.num_noises == crowds[0].num_slots
        zeros = np.zeros((20_000, mechanism.horizon, mechanism.dimension))
        drawn = mechanism.run(zeros, np.random.default_rng(0))
        # The variance of n normal numbers is within 6 sqrt(2 / n) of 1 but for one time in 1e8.
        assert abs(drawn.var() / mechanism.num_noises - 1) < 6 * np.sqrt(2 / drawn.size)


class TestSensitivity:
    @pytest.mark.parametrize("adjacency", ADJACENCIES)
    def test_against_all_trajectories_there_are(self, adjacency):
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

    def test_one_participation_would_be_too_little(self):
        """Negative control: the largest column, right where a sensor takes part once, is passed by one that stays."""
        release = np.eye(6)[:, None, :, None]
        path = worst_trajectory(release, np.array([[0.0], [1.0]]))
        assert np.square(path).sum() > 5 * np.square(release[:, 0, :, 0]).sum(0).max()

    def test_is_that_of_jax_privacy_where_everybody_takes_part_in_every_step(self):
        from jax_privacy.matrix_factorization import sensitivity

        strategy = np.tril(np.random.default_rng(0).uniform(size=(12, 12)))
        ours = squared_sensitivity(strategy[:, None, :, None], np.array([[-1.0], [0.0], [1.0]]))
        with jax.enable_x64(True):
            theirs = sensitivity.fixed_epoch_sensitivity(strategy, epochs=12)
        assert ours == pytest.approx(theirs**2, rel=1e-10)

    def test_whatever_is_sent_stays_among_the_moves(self):
        """No direction sees a sensor that sends anything at all beyond the corners and 0."""
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
    return Problem(model.moments(num_steps), model, np.array([[-1.0], [0.0], [1.0]]), squared_radius)


def mean_variance(problem, shape):
    return np.square(best_estimator(problem.moments, problem.scaled(shape), 1.0).std).mean()


class TestEstimator:
    def test_is_the_kalman_filter(self):
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

    def test_a_model_is_found_again(self):
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

    def test_who_can_only_add_is_the_exception_where_differences_are_read(self):
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

    def test_the_aggregator_is_the_best_schedule(self):
        """One feature, three steps: what is left to choose is how the budget is spread, which a grid covers."""
        problem = make_problem(num_steps=3)
        ((_, solved),) = two_stage(problem)
        shares = [
            np.sqrt([a, b, 1 - a - b]) for a, b in itertools.product(np.linspace(0.01, 0.97, 41), repeat=2) if a + b < 1
        ]
        grid = min(mean_variance(problem, problem.plain * share[:, None, None, None]) for share in shares)
        assert mean_variance(problem, solved) == pytest.approx(grid, rel=2e-3)
        assert mean_variance(problem, solved) < 0.97 * mean_variance(problem, problem.plain)

    def test_the_aggregator_leaves_out_a_channel_that_says_nothing(self):
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
        problem = Problem(padded.moments(4), padded, moves, 0.7)
        ((_, solved),) = two_stage(problem)
        by_feature = np.square(solved).sum(axis=(0, 1, 2))
        assert by_feature[1] < 1e-3 * by_feature[0]

    def test_matrix_strategies_are_for_the_filter(self):
        problem = make_problem()
        strategies = {settings["strategy"]: shape for settings, shape in matrix_mechanism(problem)}
        errors = {name: mean_variance(problem, shape) for name, shape in strategies.items()}
        assert errors["diagonal"] < mean_variance(problem, problem.plain) < errors["toeplitz"]


class TestReport:
    @pytest.mark.parametrize("name", BASELINES)
    def test_baselines_are_better_than_nothing_and_keep_to_the_budget(self, crowds, fitted, name):
        report = baselines.evaluate(fitted[name, "remove-one"], crowds[2])
        assert report.mse < (1 if name == "local" else 0.9) * report.prior_mse
        assert report.within_budget
        assert report.budget_spent_max == pytest.approx(BUDGET)
        assert report.ci95[0] < report.mse < report.ci95[1]
        assert 0.9 < report.coverage <= 1
        assert report.epsilon["zcdp"] > 0

    def test_the_error_is_the_one_expected(self, crowds, fitted):
        mechanism = fitted["input", "remove-one"]
        mechanism = replace(mechanism, estimator=mechanism.estimator._replace(curve=None))
        report = baselines.evaluate(mechanism, crowds[2], num_draws=50)
        expected = mechanism.expected_error(crowds[2].state, mechanism.features.sums(crowds[2]))
        assert report.mse == pytest.approx(expected, rel=0.02)

    def test_a_baseline_and_a_design_are_compared_window_by_window(self, walks):
        mechanism = baselines.fit("two-stage", *walks[:2], make_guarantee(), outside=(0.0,))
        report = baselines.evaluate(mechanism, walks[2])
        untrained = make_design(num_channels=1, horizon=8)
        comparison = dpfuse.compare(report, dpfuse.evaluate(untrained, walks[2], num_draws=1))
        assert comparison.ci95[0] < comparison.ratio < comparison.ci95[1] < 0.5

    def test_a_larger_budget_gives_a_smaller_error(self, walks):
        errors = [
            baselines.fit("matrix", *walks[:2], make_guarantee(budget=budget)).settings["validation_mse"]
            for budget in (0.05, 0.5, 5.0)
        ]
        assert errors[0] > errors[1] > errors[2]


class TestRefusals:
    def test_of_what_makes_no_sense(self, walks):
        with pytest.raises(ValueError, match="name must be one of local, input"):
            baselines.fit("kalman", *walks[:2], make_guarantee())
        with pytest.raises(ValueError, match="guarantee must have total accounting, got 'individual'"):
            baselines.fit("input", *walks[:2], make_guarantee("individual"))
        with pytest.raises(ValueError, match="horizon must be at most the 8 steps recorded, got 9"):
            baselines.fit("input", *walks[:2], make_guarantee(), horizon=9)
        with pytest.raises(ValueError, match="outside must be shares from 0 to below 0.5, at least one, got"):
            baselines.fit("input", *walks[:2], make_guarantee(), outside=(0.5,))
        with pytest.raises(ValueError, match="training and validation must have the same channels and states"):
            baselines.fit("input", walks[0], busy_data(), make_guarantee())

    def test_of_measurements_that_never_change(self, walks):
        still = replace(walks[0], measurements=np.ones_like(walks[0].measurements))
        with pytest.raises(ValueError, match="training must have measurements that change"):
            baselines.fit("input", still, walks[1], make_guarantee())

    def test_of_other_data_than_it_was_made_for(self, walks, fitted):
        with pytest.raises(ValueError, match=r"the \(states, channels\) of the baseline, \(1, 2\), got \(1, 1\)"):
            baselines.evaluate(fitted["input", "remove-one"], walks[2])

    def test_of_more_slots_than_noises(self, crowds, fitted):
        many = busy_data(num_slots=9)
        with pytest.raises(ValueError, match="test must have at most the 5 slots of training, got 9"):
            baselines.evaluate(fitted["local", "remove-one"], many)

    @pytest.mark.parametrize(("name", "module"), [("two-stage", "cvxpy"), ("matrix", "jax_privacy")])
    def test_a_missing_extra_says_which_line_to_run(self, walks, monkeypatch, name, module):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.setitem(sys.modules, f"{module}.matrix_factorization", None)
        with pytest.raises(dpfuse.MissingExtra, match=r"pip install 'dpfuse\[theory\]'"):
            baselines.fit(name, *walks[:2], make_guarantee())
