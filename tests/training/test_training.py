"""Training: tiny systems are learned, seeds repeat, many at once are the same as one by one, and errors say why."""

from __future__ import annotations

import logging
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpfuse
from dpfuse.errors import TrainingDiverged, TrainingWarning
from dpfuse.policy.gru import GRU
from dpfuse.systems import hidden_markov, linear_gaussian
from dpfuse.training import pathwise
from dpfuse.training.early_stopping import Best
from dpfuse.training.progress import ProgressBar
from dpfuse.training.train import _tell_errors, _usual_features, _warn_of_failures, usual_filter
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
        assert (design.structure.features, design.structure.charge_factor) == ("orthant", 2)

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
    @pytest.mark.slow
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

    @pytest.mark.slow
    def test_training_stops_when_validation_no_longer_improves(self, walks, looks):
        """A validation set with every sign turned gets worse as training gets better."""
        turned = replace(walks[1], state=-walks[1].state)
        design = train((walks[0], turned), optimisation=replace(BRIEF, validate_every=4, patience=2))
        numbers, best = zip(*looks, strict=True)
        assert numbers[-1] < 120
        assert best[-4:] != best[-1:] * 4 and best[-3:] == best[-1:] * 3
        assert np.isfinite(design.training["validation_mse"])

    def test_by_default_training_never_stops_early(self):
        best = Best(dpfuse.Optimisation(), lambda *_: None)
        weights = jnp.zeros((1, 1))
        assert not any(best.validate(number, weights, np.ones((1, 1))) for number in range(1, 101))
        limited = Best(dpfuse.Optimisation(patience=8), lambda *_: None)
        stops = [limited.validate(number, weights, np.ones((1, 1))) for number in range(1, 11)]
        assert stops.index(True) == 8


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

    @pytest.mark.slow
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
    @pytest.mark.slow
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

    @pytest.mark.slow
    def test_two_extreme_measurements_leave_a_design_that_estimates(self, walks):
        measurements = walks[0].measurements.copy()
        measurements[0, 0, 0], measurements[0, 0, 1] = 3e38, -3e38
        design = train((replace(walks[0], measurements=measurements), walks[1]))
        assert np.abs(design.policy.constants.measurement_high).max() < 100
        assert design.training["validation_mse"] < design.training["prior_mse"]

    def test_a_range_that_float32_cannot_hold_is_an_error(self, walks):
        with pytest.raises((TrainingDiverged, ValueError), match="extreme|measurement_range"):
            train(walks, architecture=replace(SMALL, measurement_range=(-3e38, 3e38)))


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

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("options", "reads_step"),
        [
            ({"spending": "constant"}, True),
            ({"guarantee": None}, True),
            ({"spending": "constant", "optimisation": replace(ONE_UPDATE, window=4)}, False),
            ({"guarantee": None, "stationary": True}, False),
            ({"spending": "adaptive"}, False),
        ],
    )
    def test_constant_designs_and_floors_read_the_step_where_windows_reach_the_horizon(
        self, walks, options, reads_step
    ):
        given = {"guarantee": make_guarantee(), "architecture": SMALL, "optimisation": ONE_UPDATE} | options
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrainingWarning)
            structure = dpfuse.train(*walks[:2], **given).structure
        assert structure.reads_step == reads_step
        assert structure.has_clock == (reads_step or structure.spending == "adaptive")

    def test_several_starts_are_refused_with_algorithm_2(self, walks):
        with pytest.raises(ValueError, match="num_starts must be 1 with method='ppo', got 3"):
            train(walks, method="ppo", optimisation=replace(ONE_UPDATE, num_starts=3))

    def test_a_schedule_needs_a_clock(self, walks):
        with pytest.raises(ValueError, match="a schedule needs a clock"):
            train(walks, make_guarantee("individual"), spending="schedule", stationary=True)

    def test_runs_of_different_length_need_a_horizon(self, walks):
        with pytest.raises(ValueError, match="horizon must be given .* got 8 and 4 steps; .* at most 4"):
            train((walks[0], walks[1].between(0, 4)))

    def test_validation_must_have_the_channels_and_states_of_training(self, walks):
        with pytest.raises(ValueError, match="training and validation must have the same channels, states"):
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
            ([make_guarantee(), make_guarantee("individual")], [0], "must share adjacency, accounting"),
            ([make_guarantee(), make_guarantee(adjacency="replace-one")], [0], "must share adjacency, accounting"),
            ([make_guarantee(), None], [0], "must share adjacency, accounting"),
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


@pytest.mark.slow
def test_many_designs_are_validated_a_few_at_a_time_with_the_same_errors(walks, monkeypatch):
    guarantees = [dpfuse.Guarantee(order=2.0, budget=budget, adjacency="remove-one") for budget in (0.5, 1.0, 1.5)]
    brief = replace(BRIEF, num_updates=2, validate_every=1)

    def errors():
        designs = dpfuse.train_many(*walks[:2], guarantees, architecture=SMALL, optimisation=brief)
        return [[design.training["validation_mse"], *design.policy.constants.std_scale] for design in designs]

    at_once = errors()
    monkeypatch.setattr(pathwise, "_FEW_DESIGNS", 2)
    np.testing.assert_allclose(errors(), at_once, rtol=1e-4)


class TestStarts:
    @pytest.mark.slow
    def test_the_best_start_goes_on_and_for_a_while_the_cautious_one_beside_it(self, walks):
        """The history of the one that is chosen at last is that of the design."""
        seen = []
        job_watch = ProgressBar.update
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProgressBar, "update", lambda bar, *told: (seen.append(told), job_watch(bar, *told))[1])
            design = train(walks, optimisation=replace(BRIEF, num_starts=3, num_updates=200))
        first = seen[0][1]
        assert [len(errors) for _, errors, _ in seen] == [3, 2, 2, 1, 1]
        variance = float(np.square(design.policy.constants.state_std)[0])
        number = int(seen[2][2][:, 0].argmin())
        expected = [first[:2].min(), first[2, 0]][number], *(errors[number, 0] for _, errors, _ in seen[1:3])
        np.testing.assert_allclose(design.training["validation_history"][:3], np.array(expected) * variance, rtol=1e-5)
        np.testing.assert_allclose(design.training["starts_mse"], first[:, 0] * variance, rtol=1e-5)

    def test_the_last_of_several_starts_is_cautious(self):
        assert pathwise.learning_rates(1).tolist() == [1.0]
        assert pathwise.learning_rates(4).tolist() == [1.0, 1.0, 1.0, 0.25]

    @pytest.mark.parametrize(("given", "is_live", "faults"), [(None, True, 0.25), (None, False, 0), (0.1, True, 0.1)])
    def test_designs_without_end_are_trained_with_faults_unless_told_otherwise(self, given, is_live, faults):
        assert dpfuse.Optimisation(faults=given).for_window(600, is_live=is_live).faults == faults

    def test_long_windows_take_smaller_steps_unless_told_otherwise(self):
        rates = [dpfuse.Optimisation().for_window(window).learning_rate for window in (100, 299, 300, 600)]
        assert rates == [2e-2, 2e-2, 1e-2, 1e-2]
        assert dpfuse.Optimisation(learning_rate=0.5).for_window(600).learning_rate == 0.5

    @pytest.mark.parametrize(
        ("adjacency", "accounting", "expected"),
        [
            ("remove-one", "total", [("ball", 2), ("ball", 3)]),
            ("replace-one", "total", [("box", 1), ("box", 3)]),
            ("replace-one", "individual", [("orthant", 2), ("orthant", 3)]),
        ],
    )
    def test_features_follow_adjacency_accounting_and_states(self, adjacency, accounting, expected):
        guarantee = dpfuse.Guarantee(order=2.0, budget=1.0, adjacency=adjacency, accounting=accounting)
        assert [_usual_features(guarantee, num_states) for num_states in (1, 3)] == expected

    def test_short_trainings_have_one_start_by_default(self):
        assert [dpfuse.Optimisation(num_updates=n).starts for n in (100, 2000)] == [1, 4]
        assert dpfuse.Optimisation(num_starts=2).starts == 2

    def test_a_start_that_diverges_is_left_behind(self):
        """With all of them it is an error."""
        best = Best(BRIEF, lambda *told: None)
        weights = jnp.arange(4.0)
        errors = np.array([[np.nan], [2.0], [3.0], [np.inf]])
        assert not best.validate(1, weights, errors, num_starts=2)
        assert best.best_starts(2).tolist() == [1, 2]
        assert best.best_starts(4, with_last=True).tolist() == [1, 3]
        with pytest.raises(TrainingDiverged, match="not finite after 2 updates"):
            best.validate(2, weights, errors[[0, 3, 1, 2]], num_starts=2)
        with pytest.raises(TrainingDiverged):
            best.validate(3, weights, np.ones((4, 1)), is_sound=np.array([True, True, False, False]), num_starts=2)

    @pytest.mark.slow
    def test_training_that_ends_before_the_choice_keeps_the_best_start(self, walks):
        design = train(walks, optimisation=replace(ONE_UPDATE, num_starts=2))
        assert len(design.training["validation_history"]) == 1


class TestHonesty:
    @pytest.mark.slow
    def test_a_design_that_learned_nothing_comes_with_a_warning(self, walks):
        with pytest.warns(
            dpfuse.TrainingWarning, match=r"seed 7 hardly estimates better than the prior.* larger budget"
        ):
            train(walks, optimisation=ONE_UPDATE, seed=7)

    def test_a_design_that_learned_comes_without(self, trained, walks, recwarn):
        assert trained.training["validation_mse"] < 0.9 * trained.training["prior_mse"]
        assert trained.training["prior_mse"] == pytest.approx(prior_error(walks[1]), rel=0.05)
        assert not recwarn

    def test_the_band_covers_what_it_claims(self, trained, walks):
        """With fresh noise on the runs that set its scale; on others as far as 64 runs of 8 steps can tell."""
        assert 0.93 < dpfuse.evaluate(trained, walks[1]).coverage < 0.985
        assert 0.87 < dpfuse.evaluate(trained, walks[2]).coverage < 0.99
        assert (np.asarray(trained.policy.constants.std_scale) != 1).all()

    def test_the_warning_of_a_floor_asks_for_no_larger_budget(self):
        pairs = [(None, 3), (make_guarantee(), 4)]
        with pytest.warns(TrainingWarning) as seen:
            _warn_of_failures(pairs, np.array([0.95, 0.95]))
        of_floor, of_design = (str(warning.message) for warning in seen)
        assert "the floor with seed 3" in of_floor and "budget" not in of_floor
        assert "or a larger budget" in of_design

    @pytest.mark.parametrize("shown", [False, True])
    def test_the_validation_error_is_compared_with_the_prior_and_every_start_is_named(self, caplog, capsys, shown):
        with caplog.at_level(logging.INFO, "dpfuse.training"):
            _tell_errors(make_guarantee(), 4, {"validation_mse": 0.5, "starts_mse": [0.7, 0.9]}, 2.0, shown=shown)
        line = "budget 1.5, seed 4: validation error 0.5, without releases (prior) 2"
        assert line in caplog.text and "after a fifth of the updates: 0.7, 0.9" in caplog.text
        assert (line in capsys.readouterr().err) == shown


class TestFirstWeights:
    def test_a_gru_for_scaled_inputs_gives_the_same_memory(self):
        gru = GRU(2, 4, key=jax.random.key(0))
        inputs = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
        mean, scale = np.array([3.0, -1.0], np.float32), np.array([0.1, 20.0], np.float32)
        hidden = jnp.zeros((5, 4))
        given = gru.with_inputs_scaled(mean, scale)(hidden, scale * inputs + mean)
        np.testing.assert_allclose(given, gru(hidden, inputs), atol=1e-5)

    def test_memories_reach_from_one_step_to_the_longest(self):
        gru = GRU(2, 5, key=jax.random.key(0)).with_memories(50.0)
        forgotten = 1 - jax.nn.sigmoid(gru.bias[5:10])
        np.testing.assert_allclose(1 / forgotten, np.geomspace(1.1, 50, 5), rtol=1e-4)
