"""Training: tiny systems are learned, seeds repeat, many at once are the same as one by one, and errors say why."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpfuse
from dpfuse.errors import TrainingDiverged
from dpfuse.systems import hidden_markov, linear_gaussian
from dpfuse.training import pathwise
from dpfuse.training.progress import ProgressBar
from dpfuse.training.train import usual_filter
from support.designs import BRIEF, SMALL, busy_data, make_guarantee, make_structure, random_walks

ONE_UPDATE = replace(BRIEF, num_updates=1)


def train(walks, guarantee=None, optimisation=BRIEF, **options):
    """On the walks, quickly."""
    options = {
        "guarantee": guarantee or make_guarantee(),
        "architecture": SMALL,
        "optimisation": optimisation,
    } | options
    return dpfuse.train(walks[0], walks[1], **options)


def prior_error(data):
    return float(data.state.var(axis=(0, 1)).mean())


def distance(one, two):
    """The largest difference between the weights of two designs."""
    pairs = zip(jax.tree.leaves(one.policy.networks), jax.tree.leaves(two.policy.networks), strict=True)
    return max(float(jnp.abs(a - b).max()) for a, b in pairs)


@pytest.fixture
def looks(monkeypatch):
    """What the progress bar was told: the number of updates and the best errors so far, at each look."""
    seen = []
    monkeypatch.setattr(ProgressBar, "update", lambda self, number, errors, best: seen.append((number, best.mean())))
    return seen


class TestLearning:
    def test_a_random_walk_is_estimated(self, trained, walks):
        assert trained.training["validation_mse"] < 0.4 * prior_error(walks[1])
        assert trained.structure.spending == "adaptive" and trained.structure.features == "ball"

    @pytest.mark.slow
    def test_a_guided_filter_lowers_the_error(self, trained, walks):
        """Guidance is worth a third of the error at least (measured: 45%)."""
        own = train(walks, architecture=replace(SMALL, recurrent_filter="gru"))
        assert trained.structure.recurrent_filter == "guided" and own.structure.recurrent_filter == "gru"
        guided_error, own_error = (dpfuse.evaluate(design, walks[2]).mse for design in (trained, own))
        assert guided_error < own_error * 2 / 3

    @pytest.mark.slow
    def test_a_hidden_markov_chain_is_estimated_with_individual_accounts(self):
        system = hidden_markov.HiddenMarkov(
            transition=[[0.95, 0.05], [0.05, 0.95]], sensor_probabilities=[0.1, 0.9], initial=[0.5, 0.5], num_sensors=20
        )
        data, validation = (
            hidden_markov.simulate(system, num_runs=n, num_steps=8, seed=s) for n, s in [(256, 0), (64, 1)]
        )
        design = dpfuse.train(
            data, validation, make_guarantee("individual", "replace-one", 5.0), architecture=SMALL, optimisation=BRIEF
        )
        assert design.training["validation_mse"] < 0.4 * prior_error(validation)
        assert (design.structure.features, design.structure.charge_factor) == ("box", 2)

    @pytest.mark.slow
    def test_two_states_are_estimated_with_a_schedule(self):
        """Every sensor sees both."""
        system = linear_gaussian.LinearGaussian(
            transition=np.eye(2),
            process_noise=0.01 * np.eye(2),
            measurement=np.tile(np.eye(2), (20, 1, 1)),
            measurement_noise=0.1 * np.eye(2),
            initial_mean=np.zeros(2),
            initial_covariance=np.eye(2),
        )
        data, validation = (
            linear_gaussian.simulate(system, num_runs=n, num_steps=8, seed=s) for n, s in [(256, 0), (64, 1)]
        )
        architecture = replace(SMALL, dimension=2)
        design = dpfuse.train(
            data,
            validation,
            make_guarantee("individual", budget=5.0),
            spending="schedule",
            architecture=architecture,
            optimisation=BRIEF,
        )
        assert design.structure.num_states == 2
        assert design.training["validation_mse"] < 0.7 * prior_error(validation)


class TestWhoIsGuided:
    @pytest.mark.parametrize(
        ("guarantee", "policy", "method", "expected"),
        [
            (make_guarantee(), "adaptive", "pathwise", "guided"),
            (make_guarantee("individual"), "adaptive", "pathwise", "guided"),
            (make_guarantee(), "adaptive", "ppo", "gru"),
            (make_guarantee(), "schedule", "pathwise", "gru"),
            (make_guarantee(), "constant", "pathwise", "gru"),
            (None, "constant", "pathwise", "guided"),
        ],
    )
    def test_default_filter_depends_on_spending_and_method(self, guarantee, policy, method, expected):
        assert usual_filter([guarantee], policy, method) == expected

    @pytest.mark.slow
    def test_algorithm_2_can_train_a_guided_filter(self, walks):
        """Episodes then hold what each sensor remembers, and its features are made in play."""
        guided = replace(SMALL, recurrent_filter="guided")
        options = {"method": "ppo", "ppo": dpfuse.PPO(num_rounds=2, num_iterations=2, num_episodes=64)}
        design = train(walks, architecture=guided, optimisation=replace(BRIEF, num_updates=40), **options)
        assert design.structure.recurrent_filter == "guided"
        assert design.training["validation_mse"] < 0.4 * prior_error(walks[1])
        assert np.abs(design.policy.networks.recurrent_filter.guide).max() > 0
        assert np.abs(design.policy.networks.spending.by_step).max() > 0


@pytest.fixture(scope="module")
def many(walks):
    """Designs for two budgets and, within each, two seeds."""
    guarantees = [make_guarantee(), make_guarantee(budget=0.5)]
    return dpfuse.train_many(walks[0], walks[1], guarantees, seeds=[0, 1], architecture=SMALL, optimisation=BRIEF)


@pytest.mark.slow
class TestSeeds:
    """`TestProgress` shows that equal seeds give equal designs."""

    def test_another_seed_gives_another_design(self, many):
        assert len({design.fingerprint for design in many}) == 4
        assert distance(many[1], many[0]) > 0.1
        assert [design.training["seed"] for design in many] == [0, 1, 0, 1]

    def test_designs_trained_at_once_equal_those_trained_alone(self, many, trained, walks):
        assert [design.guarantee.budget for design in many] == [1.5, 1.5, 0.5, 0.5]
        for design, alone in [(many[0], trained), (many[3], train(walks, many[3].guarantee, seed=1))]:
            assert distance(design, alone) < 0.02
            assert design.training["validation_mse"] == pytest.approx(alone.training["validation_mse"], rel=0.02)


class TestProgress:
    def test_the_best_weights_are_kept_and_the_progress_bar_shows_their_error(self, walks, trained, looks, capsys):
        """An equal seed gives an equal design, also with a progress bar."""
        design = train(walks, progress=True)
        numbers, best = zip(*looks, strict=True)
        assert numbers == (40, 80, 120)
        assert best[2] <= best[1] <= best[0]
        unit = float(walks[0].state.var(axis=(0, 1)).mean())
        assert design.training["validation_mse"] == pytest.approx(best[-1] * unit)
        assert design.fingerprint == trained.fingerprint
        history = design.training["validation_history"]
        assert len(history) == 3 and min(history) == pytest.approx(design.training["validation_mse"])
        captured = capsys.readouterr()
        assert captured.out == "" and "validation error" in captured.err

    def test_training_stops_when_validation_no_longer_improves(self, walks, looks):
        """A validation set with every sign turned gets worse as training gets better."""
        turned = replace(walks[1], state=-walks[1].state)
        design = train((walks[0], turned), optimisation=replace(BRIEF, validate_every=4, patience=2))
        numbers, best = zip(*looks, strict=True)
        assert numbers[-1] < 120
        assert best[-4:] != best[-1:] * 4 and best[-3:] == best[-1:] * 3
        assert np.isfinite(design.training["validation_mse"])


class TestAverage:
    def averages(self, decay, num_updates=5):
        """The running average of the numbers 1, 2, 3, ... that weights might be."""
        mix = pathwise.make_average(dpfuse.Optimisation(num_updates=num_updates, decay=decay))
        average, seen = jnp.zeros(()), []
        for number in range(1, num_updates + 1):
            average = mix(average, jnp.float32(number), number)
            seen.append(float(average))
        return seen

    def test_the_average_is_over_as_many_updates_as_the_decay_says(self):
        assert self.averages(0.0) == [1, 2, 3, 4, 5]
        assert self.averages(0.9) == pytest.approx([1, 1.5, 2, 2.5, 3])
        assert self.averages(0.5) == pytest.approx([1, 1.5, 2.25, 3.125, 4.0625])

    def test_by_default_the_average_is_over_a_twentieth_of_all_updates(self):
        assert self.averages(None, 200) == pytest.approx(self.averages(0.9, 200))
        assert self.averages(None, 10) == self.averages(0.0, 10)

    @pytest.mark.parametrize("decay", [-0.1, 1.0])
    def test_decay_is_checked(self, decay):
        with pytest.raises(ValueError, match="decay must be at least 0 and below 1"):
            dpfuse.Optimisation(decay=decay)


class TestExploration:
    def test_exploration_falls_to_zero_and_is_zero_for_even_spending(self):
        optimisation = dpfuse.Optimisation(num_updates=10, exploration=0.5)
        at = [pathwise.exploration_at(optimisation, make_structure(), number) for number in (5, 10)]
        assert at == [0.25, 0.0]
        assert pathwise.exploration_at(optimisation, make_structure(spending="constant"), 5) == 0.0

    def test_exploration_changes_the_design_and_keeps_its_error(self, trained, walks):
        brief = replace(BRIEF, exploration=1.0)
        explored = train(walks, optimisation=brief)
        assert explored.fingerprint != trained.fingerprint
        assert explored.training["validation_mse"] == pytest.approx(trained.training["validation_mse"], rel=0.2)

    @pytest.mark.parametrize("exploration", [-0.1, float("nan")])
    def test_exploration_must_be_finite_and_not_negative(self, exploration):
        with pytest.raises(ValueError, match="exploration must be finite and at least 0"):
            dpfuse.Optimisation(exploration=exploration)


class TestDivergence:
    @pytest.mark.parametrize("broken", ["loss", "gradient"])
    def test_divergence_is_an_error(self, walks, monkeypatch, broken):
        """A gradient that is not finite shows in the loss one update later, which may never come."""

        def not_finite(policy, *_):
            total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(policy.networks))
            return total * jnp.nan if broken == "loss" else jnp.sqrt(0 * total)

        monkeypatch.setattr(pathwise, "loss", not_finite)
        with pytest.raises(TrainingDiverged, match=r"not finite after 1 updates?; lower learning_rate \(0.03\)"):
            train(walks, optimisation=ONE_UPDATE)

    def test_an_update_whose_gradient_overflows_is_left_out(self):
        optimiser = pathwise.make_optimiser(BRIEF)
        weights = jnp.ones(3)
        state = optimiser.init(weights)
        for gradient in (jnp.ones(3), jnp.full(3, jnp.inf), jnp.ones(3)):
            moves, state = optimiser.update(gradient, state, weights)
            assert jnp.isfinite(moves).all()
        assert state.total_notfinite == 1

    def test_extreme_measurements_give_a_design_or_an_error(self, walks):
        measurements = walks[0].measurements.copy()
        measurements[0, 0, 0], measurements[0, 0, 1] = 3e38, -3e38
        with pytest.raises((TrainingDiverged, ValueError), match="extreme|measurement_range"):
            train((replace(walks[0], measurements=measurements), walks[1]))


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"spending": "greedy"},
                "spending must be one of constant, .* class of your own, got 'greedy'",
            ),
            ({"method": "sarsa"}, "method must be one of pathwise, ppo, got 'sarsa'"),
            ({"horizon": 9}, "window must be at most the 8 steps of the shortest part, got 9"),
            ({"horizon": 0}, "horizon must be at least 1, got 0"),
            ({"horizon": 2.5}, "horizon must be a whole number, got float"),
            ({"stationary": True}, "a stationary design must have individual accounting"),
            (
                {"optimisation": replace(BRIEF, window=4)},
                "window must be the horizon, 8, or shorter where no clock is read, got 4",
            ),
            (
                {"spending": "constant", "optimisation": replace(BRIEF, window=9)},
                "window must be the horizon, 8, or shorter",
            ),
            ({"architecture": dpfuse.Architecture(features="cube")}, "features must be one of"),
            ({"architecture": dpfuse.Architecture(dimension=0)}, "dimension must be at least 1, got 0"),
            (
                {"architecture": dpfuse.Architecture(recurrent_filter="affine", dimension=2)},
                "recurrent_filter='affine'",
            ),
            ({"architecture": replace(SMALL, measurement_range=(1.0, 0.0))}, "measurement_range must be finite"),
            (
                {"architecture": replace(SMALL, measurement_range=(0.0, np.nan))},
                "measurement_range must be finite",
            ),
        ],
    )
    def test_wrong_arguments_are_refused_by_name(self, walks, options, message):
        with pytest.raises((TypeError, ValueError), match=message):
            dpfuse.train(walks[0], walks[1], make_guarantee(), **{"optimisation": BRIEF, **options})

    def test_a_schedule_needs_a_clock(self, walks):
        with pytest.raises(ValueError, match="a schedule needs a clock"):
            train(walks, make_guarantee("individual"), spending="schedule", stationary=True)

    def test_runs_of_different_length_need_a_horizon(self, walks):
        with pytest.raises(ValueError, match="horizon must be given .* got 8 and 4 steps"):
            train((walks[0], walks[1].between(0, 4)))

    def test_validation_must_have_the_channels_and_states_of_training(self, walks):
        with pytest.raises(ValueError, match="training and validation must have the same channels and states"):
            train((walks[0], busy_data(num_steps=8)))

    def test_training_data_without_a_present_sensor_is_refused(self, walks):
        nobody = replace(walks[0], present=np.zeros_like(walks[0].present))
        with pytest.raises(ValueError, match="training must have at least one present sensor"):
            train((nobody, walks[1]))

    @pytest.mark.parametrize(
        ("guarantees", "seeds", "message"),
        [
            ([], [0], "guarantees and seeds must each have at least one entry"),
            ([make_guarantee()], [], "guarantees and seeds must each have at least one entry"),
            ([make_guarantee(), make_guarantee("individual")], [0], "must share adjacency and accounting"),
            ([make_guarantee(), make_guarantee(adjacency="replace-one")], [0], "must share adjacency and accounting"),
            ([make_guarantee(), None], [0], "must share adjacency and accounting"),
        ],
    )
    def test_guarantees_trained_at_once_must_share_adjacency_and_accounting(self, walks, guarantees, seeds, message):
        with pytest.raises(ValueError, match=message):
            dpfuse.train_many(walks[0], walks[1], guarantees, seeds=seeds, optimisation=BRIEF)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"num_updates": 0}, "num_updates must be at least 1, got 0"),
            ({"batch_size": 2.5}, "batch_size must be a whole number"),
            ({"learning_rate": -1.0}, "learning_rate must be finite and > 0"),
            ({"window": 0}, "window must be at least 1"),
        ],
    )
    def test_optimisation_is_checked(self, changes, message):
        with pytest.raises((TypeError, ValueError), match=message):
            dpfuse.Optimisation(**changes)


def test_use_all_cores_changes_nothing_after_jax_has_started():
    """JAX has chosen its devices; a later call changes nothing and says how many there are."""
    assert dpfuse.use_all_cores() == jax.local_device_count() == 2


def test_the_data_of_these_tests_are_as_they_assume():
    """The tests above rest on it: the prior's error is about 1 and the sensors see through it."""
    data = random_walks(256, 0)
    assert prior_error(data) == pytest.approx(1.0, rel=0.3)
    assert np.mean((data.measurements.mean(2) - data.state) ** 2) < 0.05
