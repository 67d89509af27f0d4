"""The spending problem as an environment: Gymnasium's rules, the hard budget, and the same errors as Algorithm 1."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache

import equinox as eqx
import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

import dpfuse.gym
from dpfuse.policy.rollout import close_loop
from dpfuse.policy.spending import SPENDING_RULES
from dpfuse.privacy.budget import squared_steps
from dpfuse.privacy.release import to_grid
from support.designs import busy_data, departing, make_design

HORIZON, NUM_ENVS, COUNT = 6, 16, 256
# Two-sided, for a false alarm once in a million.
Z = 4.9

unbounded = pytest.mark.filterwarnings("ignore:.*A Box observation space m(in|ax)imum value is -?infinity")


def make_vec(design=None, recording=None, num_envs=NUM_ENVS, **options):
    design = make_design(spread=0.5) if design is None else design
    recording = busy_data() if recording is None else recording
    return gymnasium.make_vec(dpfuse.gym.SPENDING, num_envs, design=design, recording=recording, **options)


def even(step_index):
    return np.full((NUM_ENVS, 1), 1 / (HORIZON - step_index), np.float32)


def without_g(policy):
    """The policy with a g that departs from nothing."""
    silent = jax.tree.map(np.zeros_like, policy.networks.spending)
    return eqx.tree_at(lambda p: p.networks.spending, policy, silent)


def play(envs, actions, seed=0):
    """Observations before and after every step, rewards and fusion weights of one episode."""
    observed, rewards, weights = [envs.reset(seed=seed)[0]], [], []
    for action in actions:
        now, reward, _, _, info = envs.step(action)
        info = info.get("final_info", info)
        observed.append(now)
        rewards.append(reward)
        weights.append(info["fusion_weight"])
    return np.stack(observed), np.stack(rewards), np.stack(weights)


class TestGymnasium:
    @pytest.mark.slow
    @unbounded
    def test_the_environment_passes_gymnasiums_checker(self):
        env = gymnasium.make(dpfuse.gym.SPENDING, design=make_design(spread=0.5), recording=busy_data())
        check_env(env.unwrapped)

    @pytest.mark.slow
    @pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
    def test_a_vector_environment_follows_gymnasiums_rules(self, mode):
        envs = make_vec(autoreset_mode=mode)
        assert envs.metadata["autoreset_mode"] == AutoresetMode(mode)
        observed, _ = envs.reset(seed=3)
        first = observed
        for number in range(2 * HORIZON):
            assert observed in envs.observation_space
            observed, reward, terminated, truncated, info = envs.step(envs.action_space.sample())
            assert (reward <= 0).all() and reward.dtype == np.float64 and reward.shape == (NUM_ENVS,)
            assert not truncated.any()
            lasts = number % (HORIZON + (mode == "NextStep")) == HORIZON - 1
            assert (terminated == lasts).all()
            assert ("final_obs" in info) == (lasts and mode == "SameStep")
            if "final_obs" in info:
                assert all(row[-2] == 1 for row in info["final_obs"])  # the clock has run out
                np.testing.assert_array_equal(observed, first)  # before any release there is nothing to see

    def test_a_single_environment_equals_one_of_many(self):
        design, recording = make_design(spread=0.5), busy_data()
        many = make_vec(design, recording, num_envs=1)
        one = gymnasium.make(dpfuse.gym.SPENDING, design=design, recording=recording)
        np.testing.assert_array_equal(many.reset(seed=5)[0][0], one.reset(seed=5)[0])
        for _ in range(HORIZON):
            action = many.action_space.sample()
            observed, reward, terminated, _, info = many.step(action)
            single = one.step(action[0])
            np.testing.assert_array_equal(observed[0], single[0])
            assert single[1:4] == (reward[0], terminated[0], False)
            assert single[4]["budget_left"] == info["budget_left"][0]

    def test_equal_seeds_give_equal_episodes(self):
        envs, actions = make_vec(), [even(k) for k in range(HORIZON)]
        runs = [play(envs, actions, seed) for seed in (1, 1, 2)]
        for again, other, first in zip(runs[1], runs[2], runs[0], strict=True):
            np.testing.assert_array_equal(first, again)
            assert first.shape == other.shape
        assert (runs[0][1] != runs[2][1]).any()
        # Without a seed the chance goes on.
        assert (play(envs, actions, None)[1] != runs[2][1]).any()

    def test_a_step_is_compiled_once(self, num_traces):
        envs = make_vec()
        play(envs, [even(k) for k in range(HORIZON)])
        before = num_traces()
        play(envs, [even(k) for k in range(HORIZON)], seed=1)
        assert num_traces() == before

    def test_registering_does_not_load_jax(self):
        code = (
            "import sys, gymnasium, dpfuse.gym; print('jax' in sys.modules, dpfuse.gym.SPENDING in gymnasium.registry)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["False", "True"]


@cache
def spenders(adjacency, features, kind):
    """A design and three environments of it, made once for all examples."""
    design = make_design("total", adjacency, features, spread=0.5)
    return design, make_vec(design, num_envs=3, action=kind)


class TestBudget:
    @given(
        st.lists(
            st.lists(
                st.floats(-(2.0**90), 2.0**90, width=32)
                | st.floats(0, 1, width=32)
                | st.sampled_from([0.0, 1.0, 1 - 2**-24]),
                min_size=3,
                max_size=3,
            ),
            min_size=HORIZON,
            max_size=HORIZON,
        ),
        st.sampled_from(["share", "departure"]),
    )
    def test_budget_is_never_exceeded_for_any_action(self, actions, kind):
        """As the live centre would debit it, in integers."""
        for features, adjacency in [("ball", "remove-one"), ("box", "replace-one")]:
            design, envs = spenders(adjacency, features, kind)
            _, _, weights = play(envs, np.array(actions, np.float32)[..., None])
            costs = design.structure.charge_factor * to_grid(weights[..., None])[..., 0].astype(object) ** 2
            assert max(costs.sum(0)) <= squared_steps(design.guarantee)

    def test_spending_everything_leaves_nothing(self):
        envs = make_vec()
        envs.reset(seed=0)
        for number in range(HORIZON):
            _, _, _, _, info = envs.step(np.ones((NUM_ENVS, 1), np.float32))
            assert (info["budget_left"] < 1e-6).all()
            assert (info["fusion_weight"] > 0.1).all() == (number == 0)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_an_action_that_is_not_finite_is_refused_and_nothing_is_released(self, bad):
        envs, other = make_vec(), make_vec()
        envs.reset(seed=0), other.reset(seed=0)
        actions = even(0)
        actions[3] = bad
        with pytest.raises(ValueError, match="actions must be finite"):
            envs.step(actions)
        np.testing.assert_array_equal(envs.step(even(0))[0], other.step(even(0))[0])

    def test_an_action_out_of_range_is_clipped(self):
        envs = make_vec()
        for far, bound in [(1.5, 1.0), (-2.0, 0.0)]:
            one, other = (play(envs, [np.full((NUM_ENVS, 1), v)] * HORIZON) for v in (far, bound))
            np.testing.assert_array_equal(one[0], other[0])


@pytest.mark.slow
class TestSameAsAlgorithm1:
    @pytest.mark.parametrize("kind", ["gru", "guided"])
    def test_even_shares_spend_like_the_classical_design(self, kind):
        """On the same windows and noise, the environment is the loop that training and evaluation use."""
        design = make_design(spread=0.5, recurrent_filter=kind)
        envs = make_vec(design)
        observed, rewards, weights = play(envs, [even(k) for k in range(HORIZON)])
        episodes = envs._game._episodes
        result = jax.jit(close_loop)(without_g(design.policy), episodes.sensors, episodes.noise)
        np.testing.assert_allclose(weights, result.fusion_weight, rtol=1e-5)
        np.testing.assert_allclose(observed[:-1], result.observed, rtol=1e-4, atol=1e-5)
        errors = np.mean(((result.mean - episodes.state) / design.policy.constants.state_std) ** 2, axis=-1)
        np.testing.assert_allclose(-rewards, errors, rtol=1e-4, atol=1e-5)

    def test_a_departure_spends_as_the_rule_of_a_design_does(self):
        """One number for all steps, by the environment and by g itself."""
        design = make_design(spread=0.5)
        envs = make_vec(design, action="departure")
        _, _, weights = play(envs, [np.full((NUM_ENVS, 1), 0.7, np.float32)] * HORIZON)
        episodes = envs._game._episodes
        result = jax.jit(close_loop)(departing(without_g(design.policy), 0.7), episodes.sensors, episodes.noise)
        np.testing.assert_allclose(weights, result.fusion_weight, rtol=1e-5)
        assert weights.std() > 0.01

    @pytest.mark.parametrize("kind", ["gru", "guided"])
    def test_rewards_are_the_errors_of_an_evaluation(self, kind):
        """Windows and noise drawn apart, so the means agree within Z standard errors; other spending is noticed."""
        design, test = make_design(spread=0.5, recurrent_filter=kind), busy_data(num_runs=COUNT)
        even_design = dpfuse.Design(without_g(design.policy), design.guarantee, design.interval_s)
        report = dpfuse.evaluate(even_design, test, num_draws=1)
        envs = make_vec(design, test, num_envs=COUNT)
        scale = float(np.mean(np.square(design.policy.constants.state_std)))
        errors, late = (
            -scale * play(envs, [np.full((COUNT, 1), share) for share in shares])[1].mean(0)
            for shares in ([1 / (HORIZON - k) for k in range(HORIZON)], [0.0] * HORIZON)
        )
        tolerance = Z * np.sqrt((errors.var() + report.window_errors.var()) / COUNT)
        assert abs(errors.mean() - report.mse) < tolerance
        assert abs(late.mean() - report.mse) > tolerance


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"design": make_design("individual")}, "design must have a guarantee with total accounting"),
            ({"design": make_design(spending="constant")}, "and spending that is not constant"),
            ({"design": make_design(features="unbounded")}, "design must have a guarantee"),
            (
                {"recording": busy_data(num_channels=1)},
                r"the \(states, channels\) of the design, \(1, 2\), got \(1, 1\)",
            ),
            ({"recording": busy_data(num_steps=5)}, "runs of at least the design's 6 steps, got 5"),
            ({"num_envs": 0}, "num_envs must be at least 1, got 0"),
            ({"action": "odds"}, "action must be one of share, departure, got 'odds'"),
            ({"autoreset_mode": "Disabled"}, "autoreset_mode must be NextStep or SameStep"),
        ],
    )
    def test_what_makes_no_spending_problem_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            make_vec(**options)

    def test_a_step_outside_an_episode_is_refused(self):
        envs = make_vec()
        with pytest.raises(RuntimeError, match="step must come within an episode"):
            envs.step(even(0))
        envs.reset(seed=0)
        with pytest.raises(ValueError, match="actions must be 16, one for each environment, got 15"):
            envs.step(even(0)[1:])


def agent_layers(num_observed, width=8, seed=0):
    """Weights and biases of a small agent, as a library of reinforcement learning keeps them."""
    rng = np.random.default_rng(seed)
    sizes = [num_observed, width, width, 1]
    return [(rng.normal(size=(b, a)) / np.sqrt(a), rng.normal(size=b)) for a, b in zip(sizes, sizes[1:], strict=False)]


def act(layers, observed):
    """The agent's action for each observation, shape (envs, 1), in NumPy."""
    first, second, last = layers
    inner = np.tanh(np.tanh(observed @ first[0].T + first[1]) @ second[0].T + second[1])
    return (inner @ last[0].T + last[1]).astype(np.float32)


@pytest.mark.slow
class TestAgentsBecomeDesigns:
    @pytest.mark.parametrize("kind", ["gru", "guided"])
    def test_a_design_spends_as_its_agent_did_in_the_environment(self, kind):
        design = make_design(spread=0.5, recurrent_filter=kind)
        layers = agent_layers(design.structure.num_observed)
        learned = design.with_spending(dpfuse.policy.AgentSpending.from_layers(design.structure, layers))
        envs = make_vec(design, action="departure")
        observed, weights = envs.reset(seed=0)[0], []
        for _ in range(HORIZON):
            observed, _, _, _, info = envs.step(act(layers, observed))
            weights.append(info["fusion_weight"])
        episodes = envs._game._episodes
        result = jax.jit(close_loop)(learned.policy, episodes.sensors, episodes.noise)
        np.testing.assert_allclose(np.stack(weights), result.fusion_weight, rtol=1e-4)
        # Negative control: the design's own g spends otherwise.
        own = jax.jit(close_loop)(design.policy, episodes.sensors, episodes.noise)
        assert np.abs(own.fusion_weight / result.fusion_weight - 1).max() > 0.1

    def test_it_is_saved_loaded_and_kept_within_the_budget(self, tmp_path):
        design = make_design(spread=0.5)
        rule = dpfuse.policy.AgentSpending.from_layers(
            design.structure, agent_layers(design.structure.num_observed, width=5)
        )
        learned = design.with_spending(rule)
        learned.save(tmp_path / "agent.dpfuse")
        loaded = dpfuse.load(tmp_path / "agent.dpfuse")
        assert (loaded.structure.spending, loaded.structure.fusion_size) == ("agent", 5)
        assert loaded.fingerprint == learned.fingerprint != design.fingerprint
        report = dpfuse.evaluate(loaded, busy_data(num_runs=20), num_draws=1)
        assert report.within_budget and report.budget_spent_max > 0.9 * design.guarantee.budget

    def test_errors_of_the_old_rule_are_not_kept(self):
        design = replace(make_design(), training={"validation_mse": 1.0, "data": {"training": {"runs": 3}}})
        rule = dpfuse.policy.AgentSpending(design.structure, key=jax.random.key(0))
        assert design.with_spending(rule).training == {
            "data": {"training": {"runs": 3}},
            "method": "g replaced after training",
        }

    def test_a_wrong_number_of_inputs_is_refused(self):
        design = make_design()
        with pytest.raises(ValueError, match="layers must have weights and biases of the shapes"):
            dpfuse.policy.AgentSpending.from_layers(design.structure, agent_layers(3))
        rule = dpfuse.policy.AgentSpending.from_layers(
            design.structure, agent_layers(design.structure.num_observed, width=8)
        )
        with pytest.raises(ValueError, match="its arrays do not fit its structure"):
            make_design(num_states=2).with_spending(rule)

    def test_a_constant_design_without_a_clock_keeps_its_rule(self):
        design = make_design(spending="constant")
        rule = dpfuse.policy.AgentSpending(design.structure, key=jax.random.key(0))
        with pytest.raises(ValueError, match="must not give a design without a clock a rule that reads one"):
            design.with_spending(rule)

    def test_e_reads_the_clock_as_before_when_a_rule_is_changed_for_a_constant_one_and_back(self):
        design = make_design()
        constant = design.with_spending(SPENDING_RULES["constant"](design.structure, key=jax.random.key(0)))
        assert constant.structure.reads_step and constant.structure.has_clock
        again = constant.with_spending(design.policy.networks.spending)
        assert again.structure == design.structure
