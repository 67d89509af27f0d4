"""The remote estimator: the centre's own numbers from E's file and the releases alone, whatever comes in."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import equinox as eqx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfuse
from conftest import CASES, make_design, with_networks
from dpfuse.errors import FileRefused, ReleaseRefused
from dpfuse.privacy.release import Release
from dpfuse.runtime.ledger.rows import Row, to_bytes
from dpfuse.runtime.messages import release_message

NUM_STEPS = 6


def releases_of(design, num_steps=NUM_STEPS, skipped=(), seed=0):
    """What a centre with a ledger in memory publishes, as messages, and the estimates that it makes itself."""
    rng = np.random.default_rng(seed)
    step = dpfuse.ExactStep(design, num_rows=4)
    carry, last = step.init(), bytes(32)
    messages, estimates = [], []
    for number in range(1, num_steps + 1):
        if number in skipped:
            nothing = Release(np.zeros(design.structure.dimension, np.int64), 0, None)
            carry, _ = step.estimate(carry, nothing)
            continue
        carry, charged = step.contribute(carry, np.arange(4), rng.uniform(-1, 1, (4, design.structure.num_channels)))
        released = step.release(charged)
        carry, (mean, std) = step.estimate(carry, released)
        left, cost = released.budget_left, None if released.budget_left is None else 7
        row = Row.after(last, "main", number, to_bytes(released), int(released.weight), cost, left)
        last = row.hash
        messages.append(json.loads(release_message(row)))
        estimates.append((np.asarray(mean)[0], np.asarray(std)[0]))
    return messages, estimates


@pytest.fixture
def exported(tmp_path):
    def export(design):
        design.export_estimator(tmp_path / "e.estimator")
        return dpfuse.RemoteEstimator.load(tmp_path / "e.estimator")

    return export


def arrays_in(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


class TestFile:
    @pytest.mark.parametrize("options", [{}, {"accounting": "individual", "horizon": None}, {"policy": "constant"}])
    def test_nothing_of_f_and_g_is_in_it(self, tmp_path, options):
        design = make_design(spread=0.3, **options)
        design.export_estimator(tmp_path / "a")
        names = {name.removesuffix(".npy") for name in arrays_in(tmp_path / "a")} - {"metadata.json"}
        assert {name.split(".")[0] for name in names} == {"estimator", "squared_radius", "state_mean", "state_std"}
        text = arrays_in(tmp_path / "a")["metadata.json"].decode()
        assert "filter" not in text and "fusion" not in text and "stay" not in text

    def test_other_f_and_g_change_no_byte(self, tmp_path):
        design = make_design(spread=0.3)
        other = with_networks(design.policy, lambda leaf, rng: leaf + rng.normal(size=leaf.shape), seed=1)
        same_e = eqx.tree_at(lambda p: p.networks.estimator, other, design.policy.networks.estimator)
        wider = eqx.tree_at(
            lambda p: p.constants.measurement_high, same_e, 5 * design.policy.constants.measurement_high
        )
        for name, policy in [("a", design.policy), ("b", same_e), ("c", wider), ("d", other)]:
            replace(design, policy=policy).export_estimator(tmp_path / name)
        a, b, c, d = ((tmp_path / name).read_bytes() for name in "abcd")
        assert a == b == c
        assert a != d  # negative control: another E is another file

    def test_a_design_is_no_estimator_and_an_estimator_no_design(self, tmp_path):
        design = make_design()
        design.save(tmp_path / "design")
        design.export_estimator(tmp_path / "estimator")
        with pytest.raises(FileRefused, match="must hold a estimator"):
            dpfuse.RemoteEstimator.load(tmp_path / "design")
        with pytest.raises(FileRefused, match="must hold a design"):
            dpfuse.load(tmp_path / "estimator")

    def test_the_floor_has_none(self, tmp_path):
        with pytest.raises(ValueError, match="must have a guarantee to be released"):
            make_design(features="unbounded", policy="constant").export_estimator(tmp_path / "a")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"version": 2}, "has estimator version 2, this is 1; export it again"),
            ({"structure": {}}, "is not an estimator that this version can read"),
            ({"fingerprint": "0" * 64}, "its fingerprint does not match"),
        ],
    )
    def test_a_file_that_was_edited(self, tmp_path, change, message):
        make_design().export_estimator(tmp_path / "a")
        entries = arrays_in(tmp_path / "a")
        entries["metadata.json"] = json.dumps(json.loads(entries["metadata.json"]) | change)
        with zipfile.ZipFile(tmp_path / "a", "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content)
        with pytest.raises(FileRefused, match=message):
            dpfuse.RemoteEstimator.load(tmp_path / "a")


class TestNumbers:
    @pytest.mark.parametrize("case", CASES, ids="-".join)
    def test_they_are_the_centres_own(self, designs, exported, case):
        messages, estimates = releases_of(designs[case])
        remote = exported(designs[case])
        for message, (mean, std) in zip(messages, estimates, strict=True):
            estimate = remote.update(message)
            assert (estimate.stream, estimate.step) == ("main", message["step"])
            np.testing.assert_allclose(estimate.mean, mean, rtol=1e-5)
            np.testing.assert_allclose(estimate.std, std, rtol=1e-5)

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_a_skipped_step_counts_as_no_news(self, exported, accounting):
        design = make_design(accounting, spread=0.5)
        messages, estimates = releases_of(design, skipped=(1, 3, 4))
        assert [message["step"] for message in messages] == [2, 5, 6]
        remote = exported(design)
        for message, (mean, std) in zip(messages, estimates, strict=True):
            estimate = remote.update(message)
            np.testing.assert_allclose(estimate.mean, mean, rtol=1e-5)
            np.testing.assert_allclose(estimate.std, std, rtol=1e-5)
            assert estimate.is_chained == (message["step"] != 2)
        # Negative control: had nothing been skipped, the estimate would be another.
        assert abs(exported(design).update(messages[0] | {"step": 1}).mean[0] - estimates[0][0][0]) > 1e-3

    def test_streams_do_not_meet(self, exported):
        design = make_design(spread=0.5)
        messages, _ = releases_of(design)
        alone, mixed = exported(design), exported(design)
        for message in messages:
            other = message | {"stream": "north"}
            assert mixed.update(message)[1:] == alone.update(message)[1:]
            if message["step"] == 1:
                assert mixed.update(other).stream == "north"
        assert (mixed.last_step("main"), mixed.last_step("north"), mixed.last_step("south")) == (NUM_STEPS, 1, 0)

    def test_nothing_is_compiled_anew_after_the_first_releases(self, exported, num_traces):
        messages, _ = releases_of(make_design(), skipped=(2,))
        remote = exported(make_design())
        for message in messages[:2]:
            remote.update(message)
        before = num_traces()
        for message in messages[2:]:
            remote.update(message)
        assert num_traces() == before


class TestWhatComesIn:
    def test_duplicates_are_ignored(self, exported):
        messages, _ = releases_of(make_design())
        remote, once = exported(make_design()), exported(make_design())
        twice = [remote.update(message) for message in [*messages[:3], *messages[:3], *messages[3:]]]
        assert twice[3:6] == [None] * 3
        assert [one for one in twice if one] == [once.update(message) for message in messages]

    def test_a_step_released_twice_with_other_noise_is_reported(self, exported):
        (messages, _), (others, _) = (releases_of(make_design(), seed=seed) for seed in (0, 1))
        remote = exported(make_design())
        for message in messages[:3]:
            remote.update(message)
        with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' was released twice, with different contents"):
            remote.update(others[1])

    def test_a_changed_release_does_not_follow(self, exported):
        messages, _ = releases_of(make_design())
        remote = exported(make_design())
        remote.update(messages[0])
        first, *rest = messages[1]["release"]
        with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' does not follow from step 1"):
            remote.update(messages[1] | {"release": [first + 1, *rest]})
        assert remote.update(messages[1]).is_chained  # the refused one left no trace

    def test_missing_releases_are_told(self, exported):
        messages, _ = releases_of(make_design())
        remote = exported(make_design())
        assert [remote.update(messages[at]).is_chained for at in (0, 1, 4, 5)] == [False, True, False, True]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"stream": None}, "stream must be a name"),
            ({"stream": "x" * 2000}, "stream must be a name"),
            ({"step": 0}, "step must be a whole number from 1 to 6"),
            ({"step": 7}, "step must be a whole number from 1 to 6"),
            ({"step": True}, "step must be a whole number"),
            ({"step": "1"}, "step must be a whole number"),
            ({"release": [1]}, "release must be 2 whole numbers of 64 bits"),
            ({"release": [1, 2.5]}, "release must be 2 whole numbers"),
            ({"release": [1, 2**63]}, "release must be 2 whole numbers"),
            ({"release": "12"}, "release must be 2 whole numbers"),
            ({"fusion_weight": -1}, "fusion_weight must be a whole number"),
            ({"fusion_weight": float("nan")}, "fusion_weight must be a whole number"),
            ({"fusion_weight": 10**400}, "fusion_weight must be a whole number"),
            ({"grid": 1}, "grid must be 1048576"),
            ({"cost": -3}, "cost and budget_left must be whole numbers"),
            ({"budget_left": "much"}, "cost and budget_left must be whole numbers"),
            ({"hash": "ab"}, "hash must be 64 hexadecimal digits"),
            ({"hash": 5}, "hash must be 64 hexadecimal digits"),
        ],
    )
    def test_what_is_no_release_is_refused(self, exported, change, message):
        messages, _ = releases_of(make_design(), num_steps=1)
        remote = exported(make_design())
        with pytest.raises(ReleaseRefused, match=message):
            remote.update(messages[0] | change)
        assert remote.last_step("main") == 0
        assert remote.update(messages[0]) is not None

    def test_a_step_out_of_all_reach_is_refused_at_once(self, exported):
        design = make_design("individual", horizon=None)
        messages, _ = releases_of(design, num_steps=1)
        remote = exported(design)
        with pytest.raises(ReleaseRefused, match="more than 1,000,000 steps after the last one"):
            remote.update(messages[0] | {"step": 2**62})

    def test_anything_else_is_refused_too(self, exported):
        messages, _ = releases_of(make_design(), num_steps=1)
        remote = exported(make_design())

        @given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9), st.lists))
        def refuses(value):
            for release in [
                value,
                *(messages[0] | {name: value} for name in ("step", "release", "fusion_weight", "hash")),
            ]:
                with pytest.raises(ReleaseRefused):
                    remote.update(release)

        refuses()
