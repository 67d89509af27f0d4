"""The step in integers: each sensor alone and inside its bound whatever is sent, and never more than the budget."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpfuse.policy import ExactStep, rollout
from dpfuse.policy.exact import Proposal, join_proposals
from dpfuse.policy.filters import GuidedFilter
from dpfuse.policy.rollout import cut
from dpfuse.privacy import FEATURE_SETS, GRID, IndividualFilter, Release, from_grid, release
from dpfuse.trajectories import NOBODY
from support.designs import CASES, SOME_CASES, busy_data, departing, make_design, with_networks

NUM_ROWS, NUM_STEPS, DIMENSION = 64, 4, 2
EXTREMES = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 3.4e38, 1e-45, 0.0, -0.0, 1.0, -1.0, 0.3])


class Feed(NamedTuple):
    """What is sent to the centre, step by step: ids of shape (K, rows), measurements of shape (K, rows, n_y)."""

    ids: np.ndarray
    measurements: np.ndarray


class Outcome(NamedTuple):
    """Each sensor's integer row (K, rows, d), what was charged in all to each, and what became public."""

    rows: np.ndarray
    spent: list[int]
    public: list


def make_feed(seed=0, num_steps=NUM_STEPS, num_rows=NUM_ROWS):
    """A full house: some fall silent, some send nonsense, a few rows change hands."""
    rng = np.random.default_rng(seed)
    ids = np.tile(10 * np.arange(num_rows), (num_steps, 1))
    ids[2:, ::7] += 1
    measurements = rng.normal(size=(num_steps, num_rows, 2))
    measurements[rng.random((num_steps, num_rows)) < 0.1] = np.nan
    ids[rng.random((num_steps, num_rows)) < 0.05] = NOBODY
    return Feed(ids, measurements)


FEED = make_feed()


def run(step, feed, releases=None, accounts=None):
    """The real path, the releases held: what a sensor adds may depend on them, and they on everybody."""
    seen, public = [], []

    def spy(rows, stream, num_streams):
        seen.append(rows.copy())
        return rows.sum(0, dtype=np.int64)[None]

    carry = step.init(accounts)
    if releases is None:
        releases = np.random.default_rng(9).integers(-2 * GRID, 2 * GRID, size=(len(feed.ids), DIMENSION))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "sum_by_stream", spy)
        for ids, measurements, value in zip(*feed, releases, strict=True):
            carry, charged = step.contribute(carry, ids, measurements)
            carry, estimate = step.estimate(carry, Release(value, charged.fusion_weight, charged.budget_left))
            public.append(
                (charged.fusion_weight, charged.budget_left, np.asarray(estimate.mean), np.asarray(estimate.std))
            )
    is_total = not isinstance(carry.accounts, IndividualFilter)
    spent = [account.spent for account in carry.accounts] if is_total else carry.accounts.accounts()
    return Outcome(np.stack(seen), spent, public)


def same_public(one, two):
    pairs = zip(jax.tree.leaves(one.public), jax.tree.leaves(two.public), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def is_inside(step, outcome, feed):
    """Exact releases, in Python integers: every row in its set, and every sensor within its budget over all steps."""
    mechanism, totals = step.mechanism, {}
    for k, (weight, *_) in enumerate(outcome.public):
        for sensor, row in zip(feed.ids[k].tolist(), outcome.rows[k].tolist(), strict=True):
            squared = sum(entry * entry for entry in row)
            totals[sensor] = totals.get(sensor, 0) + mechanism.factor * squared
            if mechanism.features != "ball" and min(row) < 0:
                return False
            is_total = mechanism.guarantee.accounting == "total"
            if is_total and (max(row) > weight if mechanism.features == "box" else squared > weight**2):
                return False
    if mechanism.guarantee.accounting == "total":
        charged = sum(mechanism.factor * weight**2 for weight, *_ in outcome.public)
        return outcome.spent == [charged] and charged <= mechanism.budget
    paid = {sensor: cost for sensor, cost in totals.items() if cost}
    return outcome.spent == paid and max(paid.values(), default=0) <= mechanism.budget


@pytest.fixture(scope="module")
def steps(designs):
    """A step of 64 rows for each case, made when first asked for, and what it does with the full house."""
    made = {}

    def step_for(case):
        if case not in made:
            step = ExactStep(designs[case], NUM_ROWS)
            made[case] = step, run(step, FEED)
        return made[case]

    return step_for


@st.composite
def interferences(draw):
    """Which rows stay as they were, and what the others send instead: the same feed with any of its rows changed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 1 / NUM_ROWS, 0.5, 1 - 1 / NUM_ROWS]))
    keep = rng.random(NUM_ROWS) < share
    keep[draw(st.integers(0, NUM_ROWS - 1))] = share < 0.9
    kind = draw(st.sampled_from(["nobody", "extremes", "extremes some of the time", "ordinary", "others", "all equal"]))
    ids, measurements = FEED.ids.copy(), FEED.measurements.copy()
    changed = np.broadcast_to(~keep, ids.shape)
    if kind == "nobody":
        ids[changed] = NOBODY
    elif kind == "ordinary":
        measurements[changed] = rng.normal(size=measurements.shape)[changed]
    elif kind == "others":
        ids[changed] += 5
    elif kind == "all equal":
        measurements[changed] = rng.choice(EXTREMES)
    else:
        if kind != "extremes":
            changed = changed & (rng.random(changed.shape) < 0.3)
        measurements[changed] = rng.choice(EXTREMES, size=measurements.shape)[changed]
    return keep, Feed(ids, measurements)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in SOME_CASES else pytest.mark.slow) for case in CASES]
)
class TestIndependence:
    """Independence, bit for bit, over several steps of history."""

    @settings(max_examples=20)
    @given(interference=interferences())
    def test_no_sensor_changes_what_another_adds(self, steps, case, interference):
        step, before = steps(case)
        keep, feed = interference
        after = run(step, feed)
        assert (after.rows[:, keep] == before.rows[:, keep]).all()
        assert is_inside(step, after, feed)
        assert same_public(after, before)
        if case[0] == "individual":
            kept = np.unique(FEED.ids[:, keep])
            assert all(after.spent.get(sensor) == before.spent.get(sensor) for sensor in kept[kept >= 0].tolist())

    @settings(max_examples=10)
    @given(seed=st.integers(0, 2**32))
    def test_what_a_sensor_adds_does_not_depend_on_its_row(self, steps, case, seed):
        """A sensor may be in another row at every step, and takes its memory along."""
        step, before = steps(case)
        order = np.random.default_rng(seed).permuted(np.tile(np.arange(NUM_ROWS), (NUM_STEPS, 1)), axis=1)
        after = run(step, Feed(*(np.stack([x[o] for x, o in zip(part, order, strict=True)]) for part in FEED)))
        for k in range(NUM_STEPS):
            assert (after.rows[k] == before.rows[k][order[k]]).all()
        assert after.spent == before.spent

    def test_every_sensor_that_reports_adds_something(self, steps, case):
        """Negative control: rows of zeros would pass all the others."""
        step, before = steps(case)
        assert is_inside(step, before, FEED)
        there = (FEED.ids >= 0) & np.isfinite(FEED.measurements).all(-1)
        assert (before.rows[~there] == 0).all()
        assert (before.rows[0][there[0]] != 0).any(-1).all()
        other = run(step, FEED._replace(measurements=-FEED.measurements))
        assert (other.rows[0][there[0]] != before.rows[0][there[0]]).any(-1).mean() > 0.9

    def test_a_sensor_alone_adds_what_it_adds_among_others(self, steps, case):
        step, before = steps(case)
        for row in (0, 7, 63):
            ids = np.full_like(FEED.ids, NOBODY)
            ids[:, row] = FEED.ids[:, row]
            assert (run(step, FEED._replace(ids=ids)).rows[:, row] == before.rows[:, row]).all()

    def test_a_step_without_reports_is_released_like_any_other(self, steps, case):
        step, before = steps(case)
        empty = run(step, FEED._replace(ids=np.full_like(FEED.ids, NOBODY)))
        assert (empty.rows == 0).all()
        assert same_public(empty, before)


class TestEdges:
    @pytest.mark.parametrize("kind", ["gru", "guided"])
    @pytest.mark.parametrize("features", FEATURE_SETS)
    def test_features_on_the_edge_of_their_set_still_count(self, features, kind):
        """A filter with huge weights saturates; rounding must not carry its features out of the set, to count as 0."""
        design = make_design(features=features, spread=1.0, recurrent_filter=kind)
        loud = with_networks(design.policy, lambda leaf, rng: 1e6 * leaf).networks.recurrent_filter
        policy = eqx.tree_at(lambda p: p.networks.recurrent_filter, design.policy, loud)
        step = ExactStep(replace(design, policy=policy), NUM_ROWS)
        outcome = run(step, feed := make_feed())
        assert is_inside(step, outcome, feed)
        for k in range(len(feed.ids)):
            there = (feed.ids[k] >= 0) & np.isfinite(feed.measurements[k]).all(-1)
            longest = np.linalg.norm(outcome.rows[k][there], axis=-1) / outcome.public[k][0]
            assert (longest.min() if features == "ball" else longest.max()) > 0.999

    def test_an_affine_filter_fills_its_box(self):
        design = make_design(features="box", recurrent_filter="affine")
        step = ExactStep(design, 5)
        sent = np.array([[-1.0, 1.0], [-5.0, 1e308], [0.0, 0.5], [1.0, np.nan], [-1.0, 1.0]])
        outcome = run(step, Feed(np.array([[1, 2, 3, 4, NOBODY]]), sent[None]))
        weight = outcome.public[0][0]
        assert outcome.rows[0].tolist() == [[0, weight], [0, weight], [weight // 2, 3 * weight // 4], [0, 0], [0, 0]]


class TestNegativeControls:
    def test_a_mean_over_sensors_would_be_detected(self, designs, monkeypatch):
        """The test of independence fails for a filter whose rows are not independent."""
        own = GuidedFilter.read

        def centred(self, encoded, present, readout):
            features = own(self, encoded, present, readout)
            return 0.5 * (features - features.mean(-2, keepdims=True))

        monkeypatch.setattr(GuidedFilter, "read", centred)
        step = ExactStep(designs["total", "remove-one", "ball"], NUM_ROWS)
        before = run(step, FEED)
        ids = FEED.ids.copy()
        ids[:, 5] = NOBODY
        after = run(step, FEED._replace(ids=ids))
        assert (np.delete(after.rows, 5, axis=1) != np.delete(before.rows, 5, axis=1)).any()


class TestRefusals:
    CASE = ("individual", "remove-one", "ball")

    @pytest.mark.parametrize(
        ("ids", "measurements"),
        [
            (np.arange(NUM_ROWS), np.zeros((1, 2))),
            (np.arange(NUM_ROWS), 0.125),
            (np.arange(NUM_ROWS - 1), np.zeros((NUM_ROWS, 2))),
            (np.arange(NUM_ROWS), np.zeros((NUM_ROWS - 1, 2))),
            (np.zeros(1, int), np.zeros((NUM_ROWS, 2))),
            (np.arange(NUM_ROWS)[:, None], np.zeros((NUM_ROWS, 2))),
            (np.arange(NUM_ROWS) + 0.5, np.zeros((NUM_ROWS, 2))),
            (["car-17"] * NUM_ROWS, np.zeros((NUM_ROWS, 2))),
            (np.arange(NUM_ROWS), [["secret", 0.125]] * 3),
            (np.arange(NUM_ROWS), [[0.125]] * 3 + [[0.125, 0.125]]),
            (np.arange(NUM_ROWS), None),
        ],
    )
    def test_wrong_shapes_and_types_are_refused_without_showing_a_value(self, steps, ids, measurements):
        step, _ = steps(self.CASE)
        carry = step.init()
        with pytest.raises((TypeError, ValueError), match="must") as caught:
            step.contribute(carry, ids, measurements)
        assert not any(shown in str(caught.value) for shown in ("secret", "0.125", "car-17"))
        assert carry.accounts.accounts() == {}
        carry, charged = step.contribute(carry, FEED.ids[0], FEED.measurements[0])
        assert charged.debits.any()

    @pytest.mark.parametrize(
        "nonsense",
        ["secret", None, [], [0.3], [0.3, 0.3, 0.3], [[0.3, 0.3]], ["a", "b"], {}, 10**400, [1j, 0.3], object()],
    )
    def test_a_malformed_report_is_absent_and_changes_no_other(self, steps, nonsense):
        step, before = steps(self.CASE)
        reported = [*FEED.measurements[0].tolist()]
        reported[3] = nonsense
        after = run(step, Feed(FEED.ids[:1], [reported]))
        assert (after.rows[0][3] == 0).all()
        assert (np.delete(after.rows[0], 3, axis=0) == np.delete(before.rows[0], 3, axis=0)).all()

    @pytest.mark.parametrize("shape", [(NUM_ROWS, 1), (NUM_ROWS, 3), (NUM_ROWS,), (NUM_ROWS, 2, 1)])
    def test_reports_of_the_wrong_width_are_absent(self, steps, shape):
        step, _ = steps(self.CASE)
        assert (run(step, Feed(FEED.ids[:1], np.full((1, *shape), 0.3))).rows == 0).all()

    def test_a_sensor_that_is_not_present_adds_nothing_and_keeps_its_memory(self, steps):
        step, _ = steps(self.CASE)
        present = np.arange(NUM_ROWS) % 2 == 0
        silent = np.where(present[:, None], FEED.measurements[0], np.nan)
        told, sent = (
            step.contribute(step.init(), FEED.ids[0], *report)
            for report in [(FEED.measurements[0], present), (silent,)]
        )
        assert np.array_equal(told[1].exact_sum, sent[1].exact_sum)
        memories = [carry.memory.read(carry.memory.find(0 * FEED.ids[0], FEED.ids[0])) for carry, _ in (told, sent)]
        assert np.array_equal(*memories) and memories[0].any()

    def test_the_non_private_floor_is_never_released(self):
        with pytest.raises(ValueError, match="the non-private floor may not be released"):
            ExactStep(make_design(features="unbounded", spending="constant"), 4)

    def test_a_design_ends_after_its_horizon(self):
        step = ExactStep(make_design(horizon=2), 3)
        carry = step.init()
        for _ in range(2):
            carry, charged = step.contribute(carry, [1, 2, 3], np.zeros((3, 2)))
            carry, _ = step.estimate(carry, step.release(charged))
        with pytest.raises(ValueError, match="ends after 2 releases; it never starts again on these sensors"):
            step.contribute(carry, [4, 5, 6], np.zeros((3, 2)))

    def test_a_step_counts_when_it_is_charged(self):
        """A caller that never reads the estimate gets no more releases than one that does."""
        step = ExactStep(make_design(horizon=2), 3)
        carry = step.init()
        for _ in range(2):
            carry, _ = step.contribute(carry, [1, 2, 3], np.zeros((3, 2)))
        with pytest.raises(ValueError, match="ends after 2 releases"):
            step.contribute(carry, [1, 2, 3], np.zeros((3, 2)))

    def test_an_id_sent_twice_counts_once(self, steps):
        step, before = steps(self.CASE)
        ids = FEED.ids.copy()
        ids[:, 1] = ids[:, 0]
        after = run(step, FEED._replace(ids=ids))
        assert (after.rows[:, 1] == 0).all()
        assert (np.delete(after.rows, 1, axis=1) == np.delete(before.rows, 1, axis=1)).all()


class TestBudgets:
    @pytest.mark.parametrize("departure", [0.0, 3.0, 100.0])
    @pytest.mark.parametrize("case", [("total", "replace-one", "box"), ("individual", "remove-one", "ball")])
    def test_a_whole_horizon_of_real_releases_stays_within_the_budget(self, case, departure):
        design = make_design(*case, spread=0.5, horizon=12, expected_stay=2.0)
        design = replace(design, policy=departing(design.policy, departure))
        step, rng = ExactStep(design, 8), np.random.default_rng(0)
        carry, left = step.init(), []
        for _ in range(12):
            carry, charged = step.contribute(carry, np.arange(8), rng.normal(size=(8, 2)))
            carry, estimate = step.estimate(carry, released := step.release(charged))
            left.append(released.budget_left)
            assert released.value.shape == (DIMENSION,) and released.value.dtype == np.int64
            assert np.isfinite(estimate.mean).all() and (np.asarray(estimate.std) > 0).all()
        budget = step.mechanism.budget
        if case[0] == "total":
            assert 0 <= carry.accounts[0].left == left[-1] < 0.01 * budget
            assert left == sorted(left, reverse=True)
        else:
            assert left == [None] * 12  # what is left to a sensor is its own secret
            assert 0.3 * budget < max(carry.accounts.accounts().values()) <= budget

    def test_an_account_belongs_to_the_id_and_not_to_the_row(self):
        design = make_design("individual", expected_stay=1.0, spread=0.5, horizon=None)
        step = ExactStep(design, 4)
        rng = np.random.default_rng(0)
        hello = rng.normal(size=(40, 4, 2))
        at_home = np.tile([7, NOBODY, NOBODY, NOBODY], (30, 1))
        moved = np.tile([NOBODY, NOBODY, 7, 8], (10, 1))
        outcome = run(step, Feed(np.concatenate([at_home, moved]), hello))
        assert 0.99 * step.mechanism.budget < outcome.spent[7] <= step.mechanism.budget
        most = step.mechanism.factor * (outcome.rows**2).sum(-1)
        assert most[30:, 2].sum() < 0.01 * step.mechanism.budget < most[30:, 3].sum()

    def test_a_row_given_to_another_sensor_starts_without_memory(self, steps):
        step, _ = steps(("individual", "remove-one", "ball"))
        later = slice(2, NUM_STEPS)
        releases = np.zeros((NUM_STEPS, DIMENSION), np.int64)
        strangers = FEED._replace(ids=np.where(FEED.ids >= 0, FEED.ids + 5000, NOBODY))
        before = strangers._replace(ids=np.concatenate([FEED.ids[:2], strangers.ids[later]]))
        empty = strangers._replace(ids=np.concatenate([np.full_like(FEED.ids[:2], NOBODY), strangers.ids[later]]))
        assert (run(step, before, releases).rows[later] == run(step, empty, releases).rows[later]).all()

    def test_a_silent_sensor_keeps_its_memory(self, steps):
        step, before = steps(("total", "remove-one", "ball"))
        measurements = FEED.measurements.copy()
        measurements[1] = np.nan
        silent = run(step, FEED._replace(measurements=measurements))
        ids = FEED.ids.copy()
        ids[1] = NOBODY
        gone = run(step, FEED._replace(ids=ids))
        assert (silent.rows[1] == 0).all() and (gone.rows[1] == 0).all()
        stayed = (FEED.ids[:3] == FEED.ids[0]).all(0) & np.isfinite(FEED.measurements[2]).all(-1)
        assert (silent.rows[2][stayed] != gone.rows[2][stayed]).any(-1).mean() > 0.9


class TestAgainstTheRollout:
    @pytest.mark.parametrize("case", SOME_CASES)
    def test_integers_agree_with_floats_up_to_the_grid(self, case, monkeypatch):
        """The same noise on both paths gives the same weights, sums and estimates, also when accounts run dry."""
        design, data = (
            make_design(*case, spread=0.5, expected_stay=1.0),
            busy_data(num_runs=1, num_steps=6, num_slots=8, seed=3),
        )
        noise = np.random.default_rng(1).integers(-GRID, GRID, size=(6, DIMENSION))
        windows = cut(data, np.zeros(1, int), np.zeros(1, int), 6)
        result = eqx.filter_jit(rollout)(design.policy, windows, from_grid(noise)[:, None].astype(np.float32))
        step = ExactStep(design, data.num_slots)
        carry = step.init()
        for k in range(6):
            monkeypatch.setattr(release, "add_noise", lambda exact_sum, _, k=k: exact_sum + noise[k])
            measurements = np.where(data.present[0, k, :, None], data.measurements[0, k], np.nan)
            carry, charged = step.contribute(carry, data.sensors[0, k], measurements)
            carry, estimate = step.estimate(carry, released := step.release(charged))
            np.testing.assert_allclose(released.fusion_weight / GRID, result.fusion_weight[k, 0], atol=1e-3)
            total = np.asarray(result.contributions[k]).sum(0)
            # What is left of an account is off by a grid step or so, and the last contribution is its root.
            np.testing.assert_allclose(from_grid(released.value - noise[k]), total, atol=5e-3)
            np.testing.assert_allclose(estimate.mean, result.mean[k], atol=5e-3)
            np.testing.assert_allclose(estimate.std, result.std[k], atol=5e-3)
        if case[0] == "individual":
            spent = np.array(list(carry.accounts.accounts().values()))
            assert (spent > 0.999 * step.mechanism.budget).sum() >= 2  # accounts did run dry

    def test_the_estimator_reads_what_was_released_and_nothing_else(self, steps):
        step, _ = steps(("total", "remove-one", "ball"))
        carry, charged = step.contribute(step.init(), FEED.ids[0], FEED.measurements[0])
        other, _ = step.contribute(step.init(), FEED.ids[1], -FEED.measurements[0])
        released = Release(np.array([GRID, -3]), charged.fusion_weight, charged.budget_left)
        first, second = (step.estimate(c, released)[1] for c in (carry, other))
        assert jax.tree.all(jax.tree.map(np.array_equal, first, second))
        moved = step.estimate(carry, Release(np.array([2 * GRID, -3]), charged.fusion_weight, charged.budget_left))[1]
        assert not np.array_equal(first.mean, moved.mean)


@settings(max_examples=15)
@given(spent=st.integers(0, 10**13))
@example(spent=0)
def test_what_was_spent_elsewhere_is_not_spent_again(spent):
    """Accounts come from a ledger, and may be as good as empty."""
    step = STEP_OF_TWO
    spent = min(spent, step.mechanism.budget)
    accounts = IndividualFilter(step.mechanism.budget, step.mechanism.factor, {3: spent})
    feed = Feed(np.tile([3, 4], (5, 1)), np.random.default_rng(0).normal(size=(5, 2, 2)))
    outcome = run(step, feed, accounts=accounts)
    assert outcome.spent.get(3, 0) <= step.mechanism.budget
    assert (outcome.rows[:, 1] == run(step, feed).rows[:, 1]).all()


STEP_OF_TWO = ExactStep(make_design("individual", expected_stay=2.0, spread=0.5), 2)


def test_a_caller_may_fill_the_same_arrays_at_every_step():
    step = ExactStep(make_design(spread=0.5, num_channels=1), 2)
    ids, measurements = np.array([1, 2]), np.zeros((2, 1), np.float32)

    def second_sum(reused):
        carry, _ = step.contribute(step.init(), np.array([1, 2]) if not reused else ids, measurements)
        if reused:
            ids[:] = [3, 2]
        carry, charged = step.contribute(carry, ids if reused else np.array([3, 2]), measurements)
        return charged.take().tolist()

    assert second_sum(reused=True) == second_sum(reused=False)


def test_proposals_are_joined_by_stream_and_the_first_of_a_sensor_stays_first():
    def part(stream, sensors):
        rows = np.array(sensors, np.float32)[:, None]
        return Proposal(np.array(stream), np.array(sensors), np.array(sensors), rows, -rows)

    whole = join_proposals([part([0, 1, 1], [5, 6, 7]), part([0, 0, 1], [6, 5, 8])])
    assert whole.stream.tolist() == [0, 0, 0, 1, 1, 1]
    assert whole.sensors.tolist() == whole.places.tolist() == [5, 6, 5, 6, 7, 8]
    assert whole.hidden[:, 0].tolist() == (-whole.values[:, 0]).tolist() == whole.sensors.tolist()


@pytest.mark.parametrize("share", [8 * 4, 8 * 10 * 4, 8 * 300 * 2, 8 * 1000 * 16])
def test_what_is_lent_for_one_step_is_used_almost_whole_however_small_it_is(share):
    """Of a slice of budget / 8, for two of them with 300 steps in an epoch and two centres, say."""
    step = ExactStep(make_design("individual", spread=0.5, horizon=None), NUM_ROWS)
    ids, factor = np.arange(NUM_ROWS), step.mechanism.factor
    amounts = np.full(NUM_ROWS, step.mechanism.budget // share)
    feed = Feed(ids[None], np.random.default_rng(3).normal(size=(1, NUM_ROWS, 2)))
    rows = run(step, feed, accounts=IndividualFilter.lending(step.mechanism.budget, factor, ids, amounts)).rows[0]
    costs = factor * np.vecdot(rows, rows)
    assert (costs <= amounts).all() and np.median(costs / amounts) > 0.999
