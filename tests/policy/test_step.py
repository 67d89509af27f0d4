"""The one step: batch and stream agree, nobody overspends, weights see releases only, gradients stay finite."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfuse.policy import ExactStep, Reports, rollout
from dpfuse.policy.rollout import cut, draw_noise, pad_rows
from dpfuse.policy.step import (
    choose_weight,
    contribute,
    estimate,
    init_private,
    init_public,
    make_query,
    open_accounts,
    release,
    to_inputs,
)
from dpfuse.privacy import squared_steps, to_grid
from support.designs import SOME_CASES, busy_data, departing, make_design, with_networks

HORIZON = 6
run_windows = eqx.filter_jit(rollout)


def origins(data):
    """Every run as a window, with as many rows as there are slots: one shape for all."""
    windows = cut(data, np.arange(data.num_runs), np.zeros(data.num_runs, np.int64), data.num_steps)
    return pad_rows(windows, data.num_runs * data.num_slots)


def noise_for(windows, seed=0, dimension=2, scale=1.0):
    shape = (*windows.state.shape[:2], dimension)
    return (scale * np.random.default_rng(seed).normal(size=shape)).astype(np.float32)


@eqx.filter_jit
def one_step(policy, private, public, reports, noise):
    public, query = make_query(policy, public)
    private = private._replace(account=open_accounts(policy, private.account, reports.arrived, reports.arrived))
    private, contributions, _ = contribute(policy, private, reports, query)
    public, (mean, std) = estimate(policy, public, query.fusion_weight, release(contributions, reports.stream, noise))
    return private, public, (mean, std, query.fusion_weight, contributions)


def stream(policy, data, noise):
    """Every run step by step, each slot a row whether anybody is there or not; outputs stacked over the steps."""
    num_rows = data.num_runs * data.num_slots
    private, public = init_private(policy, num_rows), init_public(policy, data.num_runs)
    run_of_row = np.repeat(np.arange(data.num_runs, dtype=np.int32), data.num_slots)
    outputs = []
    for k in range(data.num_steps):
        reports = Reports(
            data.measurements[:, k].reshape(num_rows, -1),
            data.present[:, k].ravel(),
            data.arrived[:, k].ravel(),
            run_of_row,
        )
        private, public, output = one_step(policy, private, public, reports, noise[k])
        outputs.append(output)
    return [np.stack(values) for values in zip(*outputs, strict=True)]


class TestBatchEqualsStreaming:
    @pytest.mark.parametrize("case", SOME_CASES)
    def test_a_rollout_equals_the_repeated_step(self, designs, case):
        policy, data = designs[case].policy, busy_data(num_steps=HORIZON)
        windows = origins(data)
        result = run_windows(policy, windows, noise := noise_for(windows))
        mean, std, weight, contributions = stream(policy, data, noise)
        np.testing.assert_allclose(result.mean, mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result.std, std, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result.fusion_weight, weight, rtol=1e-4)
        run, slot = np.nonzero(data.present.any(axis=1))
        dense, packed = contributions[:, run * data.num_slots + slot], np.asarray(result.contributions)
        np.testing.assert_allclose(packed[:, : len(run)], dense, rtol=1e-4, atol=1e-5)
        assert np.abs(dense).max() > 0.05
        assert (packed[:, len(run) :] == 0).all()
        left_out = np.delete(contributions, run * data.num_slots + slot, axis=1)
        assert (left_out == 0).all()

    @pytest.mark.parametrize("case", [("total", "replace-one", "box"), ("total", "remove-one", "ball")])
    def test_a_window_gives_the_same_alone_and_among_others(self, designs, case):
        policy, data = designs[case].policy, busy_data(num_steps=HORIZON)
        noise = noise_for(origins(data))
        together = run_windows(policy, origins(data), noise)
        alone = run_windows(policy, origins(data.runs([1])), noise[:, 1:2])
        np.testing.assert_allclose(together.mean[:, 1:2], alone.mean, rtol=1e-4, atol=1e-5)

    def test_designs_may_have_several_states_and_one_channel(self):
        design = make_design(num_states=3, num_channels=1, dimension=4, spread=0.3)
        data = busy_data(num_states=3, num_channels=1, num_steps=HORIZON)
        windows = origins(data)
        result = run_windows(design.policy, windows, noise_for(windows, dimension=4))
        assert result.mean.shape == result.std.shape == (HORIZON, data.num_runs, 3)
        assert np.isfinite(result.mean).all() and (np.asarray(result.std) > 0).all()


def spent_by_sensor(design, windows, result):
    """What each stay of a sensor cost in all, in squared grid steps, as Python integers."""
    totals = {}
    stay = np.cumsum(windows.arrived, axis=0)
    for k, row in np.ndindex(windows.present.shape):
        entries = to_grid(np.asarray(result.contributions[k, row])).tolist()
        cost = design.structure.charge_factor * sum(entry * entry for entry in entries)
        totals[row, stay[k, row]] = totals.get((row, stay[k, row]), 0) + cost
    return list(totals.values())


def fall_silent(data, skipped):
    """The recording without the reports of skipped steps, shape (steps, runs), as a centre drops them."""
    return replace(data, present=data.present & ~skipped.T[..., None])


class TestSkippedSteps:
    SKIPPED = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 0, 1], [0, 1, 0], [0, 1, 0]], bool)

    @pytest.mark.parametrize("case", SOME_CASES)
    def test_a_rollout_with_skipped_steps_equals_the_exact_step_that_is_told_of_them(self, designs, case):
        """Estimates of the exact step from the rollout's releases, rounded to the grid."""
        design, data = designs[case], fall_silent(busy_data(num_steps=HORIZON), self.SKIPPED)
        windows = origins(data)._replace(skipped=self.SKIPPED)
        result = run_windows(design.policy, windows, noise := noise_for(windows))
        assert (np.asarray(result.fusion_weight)[self.SKIPPED] == 0).all()
        assert (np.asarray(result.contributions)[~windows.present] == 0).all()
        released = np.where(self.SKIPPED[..., None], 0, noise)
        np.add.at(released, (slice(None), windows.window[windows.window < 3]),
                  np.asarray(result.contributions)[:, windows.window < 3])  # fmt: skip
        step = ExactStep(design, num_rows=4, num_streams=3)
        carry = step.init()
        for k in range(HORIZON):
            weights = to_grid(np.asarray(result.fusion_weight)[k])
            carry, (mean, std) = step.follow(carry, weights, to_grid(released[k]), self.SKIPPED[k])
            np.testing.assert_allclose(mean, result.mean[k], rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(std, result.std[k], rtol=1e-3, atol=1e-4)

    def test_g_and_e_read_that_a_step_was_skipped(self, designs):
        """Nothing of weight and value 0 differs from a skipped step but for the flag."""
        policy = designs["individual", "remove-one", "orthant"].policy
        public, nothing = init_public(policy, 2), jnp.zeros((2, 2))
        public, _ = estimate(policy, public, nothing[:, 0], nothing + 1)
        public, (mean, _) = estimate(policy, public, nothing[:, 0], nothing, jnp.array([True, False]))
        assert mean[0] != mean[1]
        assert public.last[0, -1] == 1 and public.last[1, -1] == 0

    def test_e_begins_with_the_first_release(self, designs):
        policy = designs["individual", "remove-one", "orthant"].policy
        public, nothing = init_public(policy, 1), jnp.zeros((1, 2))
        for _ in range(3):
            public, _ = estimate(policy, public, nothing[:, 0], nothing, True)
        assert not np.any(public.estimator_hidden)
        assert public.step_index == 3

    @pytest.mark.slow
    @pytest.mark.parametrize("case", [("total", "remove-one", "ball"), ("individual", "remove-one", "orthant")])
    def test_a_reader_who_joins_late_gets_other_estimates_of_the_same_releases(self, designs, case):
        policy, windows = designs[case].policy, origins(busy_data(num_steps=HORIZON))
        noise = noise_for(windows)
        whole = run_windows(policy, windows, noise)
        joined = run_windows(policy, windows._replace(joined=np.array([0, 3, HORIZON])), noise)
        for one, other in zip(whole[2:], joined[2:], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
        np.testing.assert_allclose(joined.mean[:, [0, 2]], whole.mean[:, [0, 2]], rtol=1e-5)
        np.testing.assert_allclose(joined.mean[:3, 1], whole.mean[:3, 1], rtol=1e-5)
        assert (np.abs(np.asarray(joined.mean[3:, 1] - whole.mean[3:, 1])) > 1e-3).all()


class TestSpending:
    @pytest.mark.parametrize("case", SOME_CASES)
    @settings(max_examples=20)
    @given(st.sampled_from([1, 10, 100]), st.integers(0, 10**6), st.sampled_from([0.0, 1.0, 1e3, 1e6]))
    def test_budget_is_never_exceeded_for_any_weights_and_releases(self, designs, case, size, seed, loudness):
        design = designs[case]
        policy = with_networks(design.policy, lambda leaf, rng: size * rng.normal(size=leaf.shape), seed)
        windows = origins(busy_data(num_steps=HORIZON, seed=seed))
        result = jax.device_get(run_windows(policy, windows, noise_for(windows, seed, scale=loudness)))
        assert np.isfinite(result.fusion_weight).all() and (result.fusion_weight >= 0).all()
        assert np.isfinite(result.contributions).all()
        budget = squared_steps(design.guarantee)
        if case[0] == "individual":
            spent = spent_by_sensor(design, windows, result)
        else:
            whole = to_grid(result.fusion_weight[..., None])[..., 0]
            spent = [design.structure.charge_factor * sum(int(entry) ** 2 for entry in column) for column in whole.T]
        assert max(spent) <= budget
        assert case[0] == "individual" or min(spent) > 0.99 * budget

    @pytest.mark.parametrize("case", SOME_CASES[:2])
    def test_a_constant_design_spends_the_same_at_every_step(self, case):
        design = make_design(*case, spending="constant")
        windows = origins(busy_data(num_steps=HORIZON))
        weight = run_windows(design.policy, windows, noise_for(windows)).fusion_weight
        loss = design.guarantee.order * design.structure.charge_factor * np.asarray(weight) ** 2 / 2
        np.testing.assert_allclose(loss, design.guarantee.budget / HORIZON, rtol=1e-3)
        assert loss.sum(0).max() <= design.guarantee.budget

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    @pytest.mark.parametrize("policy", ["schedule", "adaptive"])
    def test_an_untrained_design_spends_like_the_constant_one(self, accounting, policy):
        windows = origins(busy_data(num_steps=HORIZON))
        noise = noise_for(windows, scale=10)
        constant, fresh = (
            run_windows(make_design(accounting, spending=kind).policy, windows, noise).fusion_weight
            for kind in ("constant", policy)
        )
        np.testing.assert_allclose(fresh, constant, rtol=1e-4)

    def test_a_schedule_spends_by_step_whatever_was_released(self):
        design = make_design(spending="schedule", spread=1.0)
        windows = origins(busy_data(num_steps=HORIZON))
        first, second = (run_windows(design.policy, windows, noise_for(windows, s)).fusion_weight for s in (0, 1))
        assert (np.asarray(first) == np.asarray(second)).all()
        assert np.ptp(first, axis=0).min() > 0.01

    def test_an_adaptive_design_reads_what_was_released(self, designs):
        windows = origins(busy_data(num_steps=HORIZON))
        policy = designs["total", "remove-one", "ball"].policy
        first, second = (run_windows(policy, windows, noise_for(windows, s)).fusion_weight for s in (0, 1))
        assert (np.asarray(first)[0] == np.asarray(second)[0]).all()
        assert (np.asarray(first)[1:] != np.asarray(second)[1:]).all()

    def test_a_partly_spent_account_limits_the_first_sensor_and_not_the_next(self):
        design = make_design("individual", expected_stay=1.0, horizon=HORIZON)
        windows = origins(busy_data(num_steps=HORIZON))
        windows = windows._replace(account_share=np.full_like(windows.account_share, 0.25))
        result = jax.device_get(run_windows(design.policy, windows, noise_for(windows)))
        stay = np.cumsum(windows.arrived, axis=0)
        costs = (result.contributions**2).sum(-1)
        first_stay = np.where(stay == 0, costs, 0.0).sum(0)
        assert first_stay.max() <= 0.25 * float(design.guarantee.squared_radius)
        assert np.where(stay == 1, costs, 0.0).sum(0).max() > 0.25 * float(design.guarantee.squared_radius)

    def test_the_non_private_floor_has_no_noise_and_no_bound(self):
        floor = make_design(features="unbounded", spending="constant", spread=3.0).policy
        windows = origins(busy_data(num_steps=HORIZON))
        noise = draw_noise(floor.structure, windows, jax.random.key(0))
        assert (np.asarray(noise) == 0).all()
        result = run_windows(floor, windows, noise)
        assert (np.asarray(result.fusion_weight) == 1).all()
        assert np.isfinite(result.mean).all()
        assert np.abs(result.contributions).max() > 2


@eqx.filter_jit
def public_part(policy, data, releases, account_share):
    """Everything public of a stream in which these releases came out, whatever was measured, step by step."""
    measurements, present, arrived = data
    private, public = init_private(policy, present.shape[1]), init_public(policy, 1)
    private = private._replace(account=private.account * account_share)
    seen = []
    for k, released in enumerate(releases):
        public, query = make_query(policy, public)
        reports = Reports(measurements[k], present[k], arrived[k], jnp.zeros(present.shape[1], int))
        private, _, _ = contribute(policy, private, reports, query)
        public, estimated = estimate(policy, public, query.fusion_weight, released[None])
        seen.append((query, estimated, public))
    return seen


class TestGuidance:
    """What sensors say follows the releases, if f is guided, and only then."""

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    @pytest.mark.parametrize("kind", ["gru", "guided"])
    def test_features_follow_the_releases_if_f_is_guided_and_only_then(self, accounting, kind):
        # With a weight that is the same whatever was released, contributions differ by what f says alone.
        design = make_design(accounting, spread=0.5, spending="schedule", recurrent_filter=kind, expected_stay=100.0)
        windows = origins(busy_data(num_steps=HORIZON))
        one, other = (
            np.asarray(run_windows(design.policy, windows, noise_for(windows, seed)).contributions) for seed in (0, 1)
        )
        np.testing.assert_array_equal(one[0], other[0])
        heard = (one[1:] != 0).any(-1)
        assert heard.any() and (one[1:] != other[1:]).any(-1)[heard].all() == (kind == "guided")
        assert kind == "guided" or (one == other).all()

    def test_an_untrained_guided_filter_is_not_guided_yet(self):
        windows = origins(busy_data(num_steps=HORIZON))
        noise = noise_for(windows)
        guided, own = (
            run_windows(make_design(recurrent_filter=kind).policy, windows, noise) for kind in ("guided", "gru")
        )
        np.testing.assert_allclose(guided.contributions, own.contributions, rtol=1e-4, atol=1e-6)
        assert np.abs(own.contributions).max() > 0.05


class TestWhatMayBeRead:
    """Rules 1 and 2: what is public reads what was released, and nothing else."""

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_spending_and_estimates_depend_on_releases_alone(self, designs, accounting):
        policy = designs[accounting, "remove-one", "ball"].policy
        releases = np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)

        def see(seed, releases, account_share):
            """With other measurements, others present, and accounts of another size."""
            data = busy_data(num_steps=3, seed=seed, num_runs=1)
            parts = data.measurements[0], data.present[0], data.arrived[0]
            return jax.tree.leaves(jax.device_get(public_part(policy, parts, releases, account_share)))

        before, after = see(1, releases, 1.0), see(2, releases, 0.01)
        assert all((one == two).all() for one, two in zip(before, after, strict=True))
        assert any((one != two).any() for one, two in zip(before, see(1, releases + 0.1, 1.0), strict=True))

    def test_individual_designs_never_read_the_budget_left(self, designs):
        policy = designs["individual", "remove-one", "ball"].policy
        public = init_public(policy, 2)._replace(budget_left=jnp.array([1.0, 0.1]))
        public, weight = choose_weight(policy, public)
        _, result = estimate(policy, public, weight, jnp.ones((2, 2)))
        assert weight[0] == weight[1]
        assert result.mean[0] == result.mean[1] and result.std[0] == result.std[1]

    def test_total_designs_read_the_budget_left(self, designs):
        policy = designs["total", "remove-one", "ball"].policy
        _, weight = choose_weight(policy, init_public(policy, 2)._replace(budget_left=jnp.array([1.0, 0.1])))
        assert weight[0] > weight[1] > 0

    @pytest.mark.parametrize("reads_step", [False, True])
    @pytest.mark.parametrize("features", ["ball", "unbounded"])
    def test_the_estimator_of_a_constant_design_reads_the_step_if_the_structure_says_so(self, features, reads_step):
        policy = make_design(features=features, spending="constant", spread=0.5, reads_step=reads_step).policy
        first = init_public(policy, 1)

        def mean(public):
            return float(estimate(policy, public, jnp.ones(1), jnp.ones((1, 2)))[1].mean[0, 0])

        assert np.isfinite(mean(first))
        assert (mean(first) == mean(first._replace(step_index=jnp.int32(3)))) != reads_step

    def test_stationary_designs_read_no_clock(self):
        design = make_design("individual", horizon=None, spread=0.5)
        public = init_public(design.policy, 1)
        later = public._replace(step_index=jnp.int32(10**6))
        assert choose_weight(design.policy, public)[1] == choose_weight(design.policy, later)[1]

    @given(
        st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38, 0.0, 0.5]), min_size=2, max_size=2),
        st.booleans(),
    )
    def test_what_the_filter_reads_is_in_range_or_absent(self, designs, values, is_there):
        reports = Reports(np.array([values], np.float32), np.array([is_there]), np.array([True]), np.zeros(1, np.int32))
        inputs, present = to_inputs(designs["total", "remove-one", "ball"].policy, reports)
        assert bool(present[0]) == (is_there and bool(np.isfinite(values).all()))
        assert (np.abs(inputs) <= 1).all()
        if present[0]:
            np.testing.assert_allclose(inputs[0], np.clip(values, -1, 1))


class TestGradients:
    @pytest.mark.slow
    @pytest.mark.parametrize("case", SOME_CASES[1:3])
    @pytest.mark.parametrize("departure", [0.0, 100.0, -100.0])
    def test_gradients_stay_finite_when_budgets_are_used_up(self, designs, case, departure):
        """Everything is spent at once, or nothing until the end; accounts are empty, full or all but empty."""
        policy = departing(designs[case].policy, departure)
        windows = origins(busy_data(num_steps=HORIZON))
        share = np.resize(np.float32([0.0, 1.0, 1e-30, 1e-3]), windows.account_share.shape)
        windows = windows._replace(account_share=share)
        loss, grads = slopes(policy, windows, noise_for(windows))
        assert np.isfinite(loss)
        leaves = jax.tree.leaves(grads)
        assert all(np.isfinite(leaf).all() for leaf in leaves)
        assert any((np.asarray(leaf) != 0).any() for leaf in leaves)

    @pytest.mark.parametrize("features", ["box", "orthant", "ball"])
    @pytest.mark.parametrize("size", [1e-4, 1e-8, 1e-10, 1e-14, 1e-18, 0.0])
    @pytest.mark.slow
    def test_gradients_stay_finite_when_features_are_next_to_zero(self, features, size):
        policy = make_design("individual", "remove-one", features, spread=0.3, recurrent_filter="gru").policy
        raw = np.log(size + 1e-30) if features != "ball" else size  # what the head gives for features of that size
        head = policy.networks.recurrent_filter.head
        quiet = eqx.tree_at(lambda h: (h.weight, h.bias), head, (0 * head.weight, raw + 0 * head.bias))
        policy = eqx.tree_at(lambda p: p.networks.recurrent_filter.head, policy, quiet)
        windows = origins(busy_data(num_steps=HORIZON))
        share = np.resize(np.float32([0.0, 1.0, 1e-30, 1e-20, 1e-9, 1e-3]), windows.account_share.shape)
        _, grads = slopes(policy, windows._replace(account_share=share), noise_for(windows))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@eqx.filter_jit
@eqx.filter_value_and_grad
def slopes(policy, windows, noise):
    result = rollout(policy, windows, noise)
    return jnp.mean((result.mean - windows.state) ** 2) + jnp.mean(jnp.log(result.std))


class TestTracing:
    def test_the_live_step_is_traced_once(self, designs, num_traces):
        step = ExactStep(designs["individual", "remove-one", "ball"], num_rows=16)
        rng = np.random.default_rng(0)

        def go(carry, ids):
            carry, charged = step.contribute(carry, ids, rng.normal(size=(16, 2)))
            return step.estimate(carry, step.release(charged))[0]

        carry = go(go(step.init(), np.arange(16)), np.full(16, -1))
        before = num_traces()
        go(go(step.init(), np.arange(16, 32)), np.where(rng.random(16) < 0.5, -1, np.arange(16)))
        go(carry, np.arange(16)[::-1])
        assert num_traces() == before
        jax.jit(lambda x: x + 1)(np.zeros(3))  # the count can move
        assert num_traces() > before

    @pytest.mark.parametrize("case", SOME_CASES)
    def test_the_step_promotes_no_types_and_no_ranks(self, designs, case):
        windows = origins(busy_data(num_steps=HORIZON))
        with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
            eqx.filter_eval_shape(rollout, designs[case].policy, windows, noise_for(windows))
