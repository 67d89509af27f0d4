"""Algorithm 2: PPO for a cost, the loop it plays, and its alternation with f and E."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfuse
from dpfuse.policy import Policy
from dpfuse.policy.rollout import close_loop as close_loop_now
from dpfuse.policy.rollout import cut, draw_noise, encode_sensors, rollout, sum_by_window
from dpfuse.policy.step import usable_budget
from dpfuse.training import alternating, pathwise, ppo
from dpfuse.training.settings import PPO
from support.designs import BRIEF, SMALL, busy_data, make_design, make_guarantee

# Two rounds, so that each half of Algorithm 2 follows the other at least once.
SHORT = PPO(num_rounds=2, num_iterations=2, num_episodes=32, num_epochs=2)


def play_everything(accounting="total", seed=0, **options):
    """A design with weights drawn at random, all of some busy windows, and noise for them."""
    design = make_design(accounting=accounting, spread=0.5, expected_stay=1.0, seed=seed, **options)
    data = busy_data(num_runs=4)
    windows = cut(data, np.arange(4), np.zeros(4, int), data.num_steps)
    return design, windows, draw_noise(design.structure, windows, jax.random.key(seed))


close_loop = eqx.filter_jit(close_loop_now)


class TestLoop:
    @pytest.mark.slow
    def test_in_total_accounting_the_sum_of_the_features_is_enough(self):
        """Sums are taken before the loop: they must be the sums of what each sensor adds."""
        design, windows, noise = play_everything(recurrent_filter="gru")
        whole = eqx.filter_jit(rollout)(design.policy, windows, noise)
        summed = close_loop(design.policy, sum_by_window(encode_sensors(design.policy, windows), 4), noise)
        by_window = np.zeros(noise.shape)
        for row, window in enumerate(windows.window):
            by_window[:, window] += whole.contributions[:, row]
        np.testing.assert_allclose(by_window, summed.contributions, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(whole.mean, summed.mean, rtol=1e-5, atol=1e-4)

    @settings(max_examples=15, deadline=None)
    @given(size=st.floats(0, 1e6), seed=st.integers(0, 99))
    def test_budget_is_never_exceeded_for_any_exploration(self, size, seed):
        design, windows, noise = play_everything(seed=seed % 3)
        exploration = size * jax.random.normal(jax.random.key(seed), noise.shape[:2])
        result = close_loop(design.policy, encode_sensors(design.policy, windows), noise, exploration)
        spent = design.structure.charge_factor * np.square(np.asarray(result.fusion_weight, np.float64)).sum(0)
        assert np.isfinite(spent).all()
        assert (spent <= float(usable_budget(design.policy)) * (1 + 1e-5)).all()

    @pytest.mark.slow
    def test_the_largest_exploration_spends_the_budget_at_once(self):
        design, windows, noise = play_everything()
        result = close_loop(
            design.policy, encode_sensors(design.policy, windows), noise, jnp.full(noise.shape[:2], 1e6)
        )
        first = design.structure.charge_factor * np.square(np.asarray(result.fusion_weight[0], np.float64))
        np.testing.assert_allclose(first, float(usable_budget(design.policy)), rtol=1e-3)

    @pytest.mark.slow
    def test_no_account_is_overdrawn_by_exploration(self):
        design, windows, noise = play_everything("individual")
        result = close_loop(
            design.policy, encode_sensors(design.policy, windows), noise, jnp.full(noise.shape[:2], 9.0)
        )
        costs = np.square(np.asarray(result.contributions, np.float64)).sum(-1) * design.structure.charge_factor
        stay = np.cumsum(windows.arrived, axis=0)
        for row in range(costs.shape[1]):
            spent = np.bincount(stay[:, row], weights=costs[:, row])
            assert (spent <= float(design.policy.constants.squared_radius)).all()

    def test_departures_recomputed_from_observations_are_those_that_were_played(self):
        """The means of the actions are recomputed from what was observed; they must be those that were played."""
        design, windows, noise = play_everything()
        exploration = jax.random.normal(jax.random.key(5), noise.shape[:2])
        played = close_loop(design.policy, encode_sensors(design.policy, windows), noise, exploration)
        said = design.policy.networks.spending.over_time(played.observed)
        odds = np.exp(np.clip(said + exploration, -12, 12))
        left = float(usable_budget(design.policy))
        budget_left = np.full(odds.shape[1], left)
        for k in range(len(odds)):
            share = odds[k] / (odds[k] + len(odds) - k - 1)
            cost = share * budget_left
            np.testing.assert_allclose(
                played.fusion_weight[k], np.sqrt(cost / design.structure.charge_factor), rtol=2e-3
            )
            budget_left = budget_left - cost


class TestSurrogate:
    def test_advantages_are_sums_of_surprises(self):
        rng = np.random.default_rng(0)
        cost, expected = rng.normal(size=(2, 5, 3)).astype(np.float32)
        after = np.vstack([expected[1:], np.zeros((1, 3), np.float32)])
        for gae in (0.1, 0.7, 1.0):
            by_hand = np.zeros_like(cost)
            for k in range(5):
                for j in range(k, 5):
                    by_hand[k] += gae ** (j - k) * (cost[j] + after[j] - expected[j])
            np.testing.assert_allclose(ppo.advantages(cost, expected, gae), by_hand, rtol=1e-5, atol=1e-5)
        # Looking all the way ahead, it is the cost that came minus the cost that was expected.
        whole = cost[::-1].cumsum(0)[::-1] - expected
        np.testing.assert_allclose(ppo.advantages(cost, expected, 1.0), whole, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("ratio", "advantage", "slope"),
        [
            (0.5, 1.0, 0.0),  # dear and already unlikely: enough
            (1.5, 1.0, 1.0),  # dear and likely: make it unlikely, however far it has gone
            (1.5, -1.0, 0.0),  # cheap and already likely: enough
            (0.5, -1.0, -1.0),  # cheap and unlikely: make it likely
        ],
    )
    def test_the_clip_is_on_the_safe_side_for_a_cost(self, ratio, advantage, slope):
        found = jax.grad(ppo.clipped_cost)(ratio, advantage, 0.2)
        assert found == slope
        # The minimum, as printed in the paper, is the other side.
        printed = jax.grad(lambda r: jnp.minimum(r * advantage, jnp.clip(r, 0.8, 1.2) * advantage))(ratio)
        assert printed != slope

    @pytest.mark.slow
    def test_at_the_old_policy_its_gradient_is_that_of_the_cost(self):
        """The score function's gradient, E[G d log p], written out."""
        agent, experience = self.experience()

        def by_hand(agent):
            mean = agent.spending.over_time(experience.observed)
            log_p = -0.5 * ((experience.action - mean) / jnp.exp(agent.log_spread)) ** 2 - agent.log_spread
            advantage = experience.advantage - jnp.mean(experience.advantage)
            return jnp.mean(advantage * log_p) / jnp.sqrt(jnp.mean(experience.advantage**2))

        found = jax.jit(jax.grad(lambda a: ppo.surrogate(a, experience, PPO())))(agent)
        expected = jax.jit(jax.grad(by_hand))(agent)
        for name in ("spending", "log_spread"):
            pairs = jax.tree.leaves(getattr(found, name)), jax.tree.leaves(getattr(expected, name))
            for one, other in zip(*pairs, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)

    @pytest.mark.slow
    def test_subtracting_the_cost_without_exploration_reduces_the_variance(self):
        """The control variate is what makes PPO work: it must take away most of the variance."""
        (_, paired), (_, plain) = self.experience(), self.experience(paired=False)
        assert np.var(paired.advantage) < 0.3 * np.var(plain.advantage)

    def experience(self, **options):
        design, windows, _ = play_everything()
        pool = ppo.Pool(encode_sensors(design.policy, windows), jnp.asarray(windows.state))
        agent = ppo.make_agent(design.structure, design.policy.networks.spending, PPO(), jax.random.key(3))
        agent = eqx.tree_at(lambda a: a.log_spread, agent, jnp.log(0.3))
        return agent, eqx.filter_jit(ppo.play)(design.policy, agent, pool, PPO(**options), jax.random.key(4))


def train(walks, optimisation=BRIEF, ppo=SHORT, guarantee=None, **options):
    return dpfuse.train(
        walks[0],
        walks[1],
        guarantee or make_guarantee(),
        method="ppo",
        architecture=SMALL,
        optimisation=optimisation,
        ppo=ppo,
        **options,
    )


@pytest.mark.slow
def test_the_joint_loss_has_no_gradient_for_the_spending_rule():
    design, windows, noise = play_everything()
    exploration = jax.random.normal(jax.random.key(5), noise.shape[:2])

    def slopes(objective):
        policy = design.policy
        grads = jax.jit(jax.grad(lambda n: objective(Policy(n, policy.constants, policy.structure))))(policy.networks)
        return {
            name: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(getattr(grads, name)))
            for name in ("recurrent_filter", "spending", "estimator")
        }

    held = slopes(lambda policy: alternating.joint_loss(policy, windows, (noise, exploration)))
    assert held["spending"] == 0 and min(held["recurrent_filter"], held["estimator"]) > 0
    assert slopes(lambda policy: pathwise.loss(policy, windows, noise, exploration))["spending"] > 0


class TestAlgorithm2:
    @pytest.mark.slow
    def test_it_gives_a_design_that_learns_and_keeps_the_budget(self, walks):
        design = train(walks)
        assert design.structure.spending == "adaptive" and design.training["method"] == "ppo"
        assert design.training["ppo"]["num_rounds"] == SHORT.num_rounds
        report = dpfuse.evaluate(design, walks[2])
        assert report.within_budget
        assert report.mse < 0.7 * float(walks[2].state.var())

    @pytest.mark.slow
    def test_equal_seeds_give_equal_designs(self, walks):
        one, two = (train(walks, optimisation=replace(BRIEF, num_updates=4)) for _ in range(2))
        assert one.fingerprint == two.fingerprint

    @pytest.mark.slow
    def test_each_half_of_a_round_leaves_the_other_part_unchanged(self, walks):
        """With no iterations of PPO g stays at even spending; with no updates of f and E they stay as they were."""
        frozen_g = train(walks, ppo=replace(SHORT, learning_rate=1e-30), optimisation=replace(BRIEF, num_updates=8))
        weights = frozen_g.policy.networks.spending
        assert float(jnp.abs(weights.by_step).max()) < 1e-20 and float(jnp.abs(weights.head.weight).max()) < 1e-20
        still = replace(BRIEF, num_updates=2, learning_rate=1e-30)
        one, two = train(walks, optimisation=still), train(walks, optimisation=still, ppo=replace(SHORT, clip=0.1))
        for name in ("recurrent_filter", "estimator"):
            pairs = (jax.tree.leaves(getattr(design.policy.networks, name)) for design in (one, two))
            for a, b in zip(*pairs, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-6)
        assert float(jnp.abs(one.policy.networks.spending.by_step).max()) > 1e-3

    @pytest.mark.slow
    def test_individual_accounts_stay_within_the_budget(self, walks):
        design = train(walks, guarantee=make_guarantee("individual"), optimisation=replace(BRIEF, num_updates=8))
        assert dpfuse.evaluate(design, walks[2]).within_budget

    @pytest.mark.parametrize(
        "options", [{"spending": "constant"}, {"stationary": True, "guarantee": make_guarantee("individual")}]
    )
    def test_constant_and_stationary_designs_are_refused(self, walks, options):
        with pytest.raises(ValueError, match="method='ppo' must have a budget, a horizon and spending"):
            train(walks, **options)

    @pytest.mark.parametrize(
        ("setting", "value"), [("num_rounds", 0), ("clip", -0.2), ("spread", 0.0), ("num_epochs", 1.5)]
    )
    def test_settings_are_checked(self, setting, value):
        with pytest.raises((TypeError, ValueError), match=setting):
            PPO(**{setting: value})

    @pytest.mark.slow
    def test_a_state_that_never_changes_is_measured_at_once(self):
        """A state that never changes is best measured at once; PPO must find out, close to what pathwise finds.

        Both have one start and the paper's f: a guided one says more, and whoever has it errs less.
        """
        rng = np.random.default_rng(0)

        def still(num_runs):
            state = np.repeat(rng.normal(size=(num_runs, 1, 1)), 10, axis=1)
            return dpfuse.Trajectories(state, np.repeat(state[:, :, None], 4, axis=2))

        training, validation, test = still(2048), still(256), still(512)
        optimisation = dpfuse.Optimisation(
            num_starts=1, num_updates=600, batch_size=64, learning_rate=1e-2, patience=99
        )
        architecture = replace(SMALL, recurrent_filter="gru")
        errors = {}
        for name, options in {
            "classical": {"spending": "constant"},
            "pathwise": {},
            "ppo": {"method": "ppo", "ppo": PPO(num_rounds=15)},
        }.items():
            guarantee = make_guarantee(budget=0.2)
            design = dpfuse.train(
                training, validation, guarantee, architecture=architecture, optimisation=optimisation, **options
            )
            report = dpfuse.evaluate(design, test)
            errors[name] = report.mse
        assert report.budget_per_step[:3].sum() > 0.6 * 0.2
        assert errors["ppo"] < 0.9 * errors["classical"]
        assert errors["ppo"] < 1.1 * errors["pathwise"]
