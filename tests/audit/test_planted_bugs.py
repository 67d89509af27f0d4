"""Bugs planted in the exact step: the audit reports each of them.

The noise is OpenDP's and has no seed. A bug that is found by statistics is missed less than once in a million runs;
the other checks are exact.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dpfuse.audit import Claim, attack, scenarios
from dpfuse.audit.worlds import NUM_ROWS, World, make_worlds, with_worst_filter, worst_pair
from dpfuse.policy import ExactStep
from dpfuse.privacy import GRID, IndividualFilter, Mechanism, Release, budget, release
from dpfuse.trajectories import NOBODY
from support.attacks import INDIVIDUAL, SURE, TOTAL, attack_worst, failed, small


@pytest.fixture(autouse=True)
def few_live_runs(request, monkeypatch):
    """Less noise from live runs, except in the test that needs it."""
    if "live_runs_alone" not in request.node.name:
        monkeypatch.setattr(scenarios, "_NUM_LIVE", 100)


def caught_by(design, make_step=ExactStep, **options):
    return failed(attack_worst(design, make_step, **options)[0].checks)


def plant(change):
    """Makes a step with a bug: `change` alters it after it is made."""

    def make_step(design, num_rows):
        step = ExactStep(design, num_rows)
        change(step)
        return step

    return make_step


def with_mechanism(kind):
    def change(step):
        own = step.mechanism
        step.mechanism = kind(own.guarantee, own.features, own.dimension)

    return plant(change)


class SmallNoise(Mechanism):
    """Noise too small by a tenth."""

    def draw_many(self, many):
        sums = [charged.exact_sum for charged in many]
        return [
            drawn._replace(value=exact_sum + np.round(0.9 * (drawn.value - exact_sum)).astype(np.int64))
            for drawn, exact_sum in zip(super().draw_many(many), sums, strict=True)
        ]


class Float32Noise(Mechanism):
    """Releases with simulated noise."""

    def draw_many(self, many):
        keys = jax.random.split(jax.random.key(0), len(many))
        noise = np.asarray(jax.vmap(lambda key: jax.random.normal(key, (self.dimension,)))(keys))
        sums = [charged.take() / np.float32(GRID) for charged in many]
        return [
            Release(GRID * (exact_sum.astype(np.float32) + own), charged.fusion_weight, charged.budget_left)
            for charged, exact_sum, own in zip(many, sums, noise, strict=True)
        ]


class NoClip(Mechanism):
    """Theorem 2 without its clip: the weight may cost more than the budget left."""

    def charge_many(self, accounts, weights, stream, ids, values):
        [own], whole = accounts, release.weight_to_grid(weights[0])
        rows = release.within_set(release.to_grid(values, whole), self.features, whole)
        cost = self.factor * whole**2
        own.spend(min(cost, own.left))
        rows = release.clear_rows(rows, release.counts_once(ids))
        return [release.Charged(whole, own.left, np.array([cost]), release.sum_by_stream(rows, stream, 1)[0])]


class Refilling(IndividualFilter):
    """The account of an id that was absent is full again."""

    here = frozenset()

    def left(self, ids):
        self.update({sensor: 0 for sensor in set(ids[ids >= 0].tolist()) - self.here})
        return super().left(ids)

    def spend(self, ids, contributions, stream):
        self.here = frozenset(ids.tolist())
        return super().spend(ids, contributions, stream)


class RefilledAccounts(Mechanism):
    def open_accounts(self):
        return Refilling(self.budget, self.factor)


def changed_part(change):
    """Makes a step whose private part returns `change(block, proposed)`."""

    def alter(step):
        own = step.private_part

        def private_part(query, hidden, block):
            hidden, proposed = own(query, hidden, block)
            return hidden, change(block, proposed)

        step.private_part = private_part

    return plant(alter)


class DataDependentWeight(Mechanism):
    """A weight that depends slightly on the features."""

    def charge_many(self, accounts, weights, stream, ids, values):
        return super().charge_many(accounts, [w * (1 + 1e-4 * values.sum()) for w in weights], stream, ids, values)


@pytest.mark.slow
class TestPlantedBugs:
    """Each bug fails the checks that are about it; it may fail others too."""

    def test_noise_too_small_by_a_tenth_is_found(self):
        """The worlds are 10/3 standard deviations apart instead of 3; the bound misses this about once in a million."""
        found, claim = attack_worst(small(horizon=1), with_mechanism(SmallNoise), 7000, confidence=0.99)
        assert found.attack.epsilon_bound > claim
        assert {"leakage", "spread"} <= failed(found.checks)

    def test_a_weight_that_is_not_clipped_is_found(self):
        def make_step(design, num_rows):
            step = with_mechanism(NoClip)(design, num_rows)
            own = step.query_part

            def query_part(estimated):
                public, query, estimate = own(estimated)
                return public, query._replace(fusion_weight=1.5 * query.fusion_weight), estimate

            step.query_part = query_part
            return step

        assert {"accounts", "distance", "every run"} <= caught_by(small(), make_step)

    @pytest.mark.parametrize("counts", [False, True])
    def test_a_public_input_that_counts_sensors_is_found_and_a_right_one_passes(self, counts, monkeypatch):
        """Such an input differs between the worlds, so g, which reads it, gives the world away."""

        def with_count(world, k):
            present = world.present[k] & (world.ids[k] != NOBODY)
            return np.array([present.sum(), 0.0], np.float32)

        if counts:
            monkeypatch.setattr(World, "inputs_at", with_count)
        design = small(spending="adaptive", spread=1.0, num_public=1, public_range=(0.0, 5.0))
        found = caught_by(design)
        assert {"public spending", "every run"} <= found if counts else not found

    def test_features_that_are_not_bounded_are_found(self, monkeypatch):
        monkeypatch.setattr(release, "within_set", lambda rows, features, weight: rows)
        twice = changed_part(lambda block, proposed: 2 * proposed)
        assert {"accounts", "distance", "every run"} <= caught_by(small(), twice)

    def test_an_account_without_a_limit_is_found(self, monkeypatch):
        monkeypatch.setattr(ExactStep, "accounts_left", lambda self, accounts, sensors: np.full(len(sensors), 1e6))
        monkeypatch.setattr(
            IndividualFilter, "spend", lambda self, ids, rows, _: budget.Admitted(rows, (rows**2).sum(-1))
        )
        assert {"accounts", "distance", "every run"} <= caught_by(small(INDIVIDUAL, expected_stay=1.0))

    @pytest.mark.parametrize("case", [TOTAL, INDIVIDUAL])
    def test_a_weight_that_depends_on_measurements_is_found(self, case):
        found = caught_by(small(case, budget=1.0), with_mechanism(DataDependentWeight), num_runs=100)
        assert {"public spending", "every run", "leakage"} <= found

    @pytest.mark.slow
    @pytest.mark.parametrize("case", [TOTAL, INDIVIDUAL])
    def test_a_readout_that_depends_on_measurements_is_found(self, case):
        """The readout of a guided f must depend on releases alone. The worst f has no readout, so f is the design's."""

        def alter(step):
            own = step.private_part

            def private_part(query, hidden, block):
                reported = (block[:, 0] * block[:, -3]).mean()  # over the sensors that are present
                return own(query._replace(readout=query.readout + 0.05 * reported), hidden, block)

            step.private_part = private_part

        def caught(make_step):
            worlds = make_worlds(design, *worst_pair(with_worst_filter(design), 4), seed=0)
            claim = Claim(1e-5, SURE, 100.0)
            return failed(attack("own", make_step(design, NUM_ROWS), worlds, 20, claim).checks)

        design = small(case)
        assert "independence" in caught(plant(alter)) and "independence" not in caught(ExactStep)

    @pytest.mark.parametrize("case", [TOTAL, INDIVIDUAL])
    def test_a_report_that_counts_twice_is_found(self, case, monkeypatch):
        for module in (release, budget):
            monkeypatch.setattr(module, "counts_once", lambda ids, stream: np.asarray(ids) >= 0)
        assert caught_by(small(case)) & {"distance", "accounts"}

    def test_a_sensor_that_is_added_twice_is_found(self, monkeypatch):
        monkeypatch.setattr(release, "sum_by_stream", lambda rows, *_: rows.sum(0, keepdims=True) + rows[0])
        assert {"distance", "independence", "every run"} <= caught_by(small())

    @pytest.mark.parametrize(
        ("name", "caught"),
        [("release", {"live noise"}), ("release_many", {"live noise", "spread", "leakage"})],
    )
    def test_a_release_without_noise_is_found(self, name, caught):
        """In live runs, which draw one step at a time and which the other runs do not show; or in all runs."""

        def bare(charged):
            return Release(charged.take(), charged.fusion_weight, charged.budget_left)

        own = bare if name == "release" else lambda many: [bare(charged) for charged in many]
        found = caught_by(small(budget=1.0), plant(lambda step: setattr(step, name, own)), num_runs=100)
        assert caught <= found
        assert name == "release_many" or "leakage" not in found

    def test_too_little_noise_in_live_runs_alone_is_found(self):
        def change(step):
            def release(charged):
                exact_sum = charged.undrawn()
                drawn = step.mechanism.draw(charged)
                return drawn._replace(value=exact_sum + 3 * (drawn.value - exact_sum) // 4)

            step.release = release

        assert "live noise" in caught_by(small(), plant(change))

    def test_a_release_with_another_weight_than_charged_is_found(self):
        def change(step):
            step.release = lambda charged: step.mechanism.draw(charged)._replace(
                fusion_weight=charged.fusion_weight + 1
            )

        assert "public spending" in caught_by(small(), plant(change))

    def test_float32_noise_is_found(self):
        assert "grid" in caught_by(small(), with_mechanism(Float32Noise))

    def test_contributions_that_depend_on_the_slot_are_found(self):
        slots = np.arange(NUM_ROWS)[:, None]
        by_slot = changed_part(lambda block, proposed: proposed * (1 - 0.01 * slots))
        assert "independence" in caught_by(small(), by_slot)

    def test_an_account_that_is_refilled_on_return_is_found(self):
        caught = caught_by(small(INDIVIDUAL), with_mechanism(RefilledAccounts))
        assert {"accounts", "distance"} <= caught
        assert "every run" not in caught  # it needs a canary that leaves and returns

    def test_a_live_step_that_differs_from_the_runs_is_found(self, monkeypatch):
        own = ExactStep.contribute

        def contribute(self, carry, ids, measurements, present=True):
            return own(self, carry, ids, -np.asarray(measurements), present)

        monkeypatch.setattr(ExactStep, "contribute", contribute)
        assert "live step" in caught_by(small())
