"""The remote estimator: the centre's own estimates from E's file and the releases alone, for any input."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfuse
from dpfuse.errors import ReleaseRefused
from dpfuse.public.rows import Row, release_message
from support.designs import SOME_CASES, make_design
from support.remote import NUM_STEPS, Run, assert_close


@pytest.mark.parametrize("case", SOME_CASES, ids="-".join)
def test_estimates_equal_those_of_the_centre(designs, tmp_path, case):
    run = Run(designs[case], tmp_path)
    remote = run.estimator()
    for message, expected in zip(run.messages, run.estimates, strict=True):
        estimate = remote.update(message)
        assert (estimate.stream, estimate.step) == ("main", message["step"])
        assert_close(estimate, expected)


def test_e_is_told_which_steps_were_skipped(gappy):
    assert [message["step"] for message in gappy.messages] == [2, 5, 6]
    remote = gappy.estimator()
    for message, expected in zip(gappy.messages, gappy.estimates, strict=True):
        estimate = remote.update(message)
        assert_close(estimate, expected)
        assert estimate.is_chained == (message["step"] != 2)
    # Negative control: an estimator that is not told differs.
    remote = gappy.estimator()
    remote.update(gappy.messages[0])
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(remote.update(gappy.messages[1] | {"step": 7}, may_skip=True), gappy.estimates[1])


def test_an_estimator_that_joins_late_starts_with_fresh_memory(usual):
    """It knows the step and the budget left from the first release that it reads."""
    late, message = usual.estimator(), usual.messages[3]
    carry = late._begin(usual.rows[3])
    assert not np.any(carry.estimator_hidden)
    assert int(carry.step_index) == 3
    whole = usual.estimator()
    for each in usual.messages[:3]:
        whole.update(each)
    np.testing.assert_allclose(carry.budget_left[0], whole._streams["main"].public.budget_left[0], rtol=1e-4)
    first, later = late.update(message), whole.update(message)
    assert first is not None and later is not None and first.mean != later.mean


def test_an_estimate_says_when_it_rests_on_little(usual):
    remote = usual.estimator()
    seen = []
    # Whether the band counts as wide is decided by the prior's; here it is changed between releases.
    for message, prior in zip(usual.messages, (1e-9, 1e9, 1e9, 1e-9, 1e9), strict=False):
        remote._prior_std = [prior] * len(remote._prior_std)
        seen.append(remote.update(message).status)
    assert seen[:4] == ["warming up", "settled", "settled", "no news"]
    assert usual.estimator().update(usual.messages[0]).to_dict()["status"] in ("settled", "warming up")


def test_estimates_equal_those_of_a_live_centre_through_skips_and_a_restart(gappy, tmp_path):
    """The releases go through a ledger."""
    design, remote, rng = (
        make_design("individual", horizon=None, spread=0.5),
        gappy.estimator(),
        np.random.default_rng(0),
    )
    for number in range(8):
        if number in (0, 5):
            centre = dpfuse.FusionCentre(design, tmp_path / "l.db", create=number == 0)
        if number in (2, 3, 6):
            centre.skip()
        else:
            row, mean, std = centre.step({sensor: rng.uniform(-1, 1, 2) for sensor in range(3)})
            assert_close(remote.update(json.loads(release_message(row).content)), (mean, std))
        if number in (4, 7):
            centre.close()
    assert remote.last_step("main") == 8


def test_a_row_and_its_message_give_the_same_estimate(usual):
    """The message holds the fields of `Row.to_dict()`, with the same names and units."""
    for message, row in zip(usual.messages, usual.rows, strict=True):
        assert message == row.to_dict()
    by_row, by_message = usual.estimator(), usual.estimator()
    for message, row in zip(usual.messages, usual.rows, strict=True):
        assert by_row.update(row.to_dict()) == by_message.update(message) is not None


def test_streams_do_not_affect_each_other(usual):
    alone, mixed = usual.estimator(), usual.estimator()
    for message in usual.messages:
        assert mixed.update(message) == alone.update(message)
        if message["step"] == 1:
            assert mixed.update(message | {"stream": "north"}).stream == "north"
    assert (mixed.last_step("main"), mixed.last_step("north"), mixed.last_step("south")) == (NUM_STEPS, 1, 0)


def test_nothing_is_compiled_again_after_the_first_releases(gappy, num_traces):
    for message in gappy.messages:
        gappy.estimator().update(message)
    remote, before = gappy.estimator(), num_traces()
    for message in gappy.messages:
        remote.update(message)
    assert num_traces() == before


def test_repeated_releases_are_ignored(usual):
    remote, once, messages = usual.estimator(), usual.estimator(), usual.messages
    twice = [remote.update(message) for message in [*messages[:3], *messages[:3], *messages[3:]]]
    assert twice[3:6] == [None] * 3
    assert [one for one in twice if one] == [once.update(message) for message in messages]


def test_a_second_release_of_a_step_with_other_contents_is_refused(usual):
    remote = usual.estimator()
    for message in usual.messages[:3]:
        remote.update(message)
    other = Row.after(bytes(32), "main", 2, bytes(16), 5, 7, 7)
    with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' was released twice, with different contents"):
        remote.update(json.loads(release_message(other).content))


def test_a_changed_release_is_refused_and_leaves_no_trace(usual):
    remote = usual.estimator()
    remote.update(usual.messages[0])
    second = usual.messages[1]
    with pytest.raises(ReleaseRefused, match="step 2 of stream 'main' does not follow from step 1"):
        remote.update(second | {"release": [second["release"][0] + 1, second["release"][1]]})
    assert remote.update(second).is_chained  # the refused release changed nothing


def test_an_estimate_shows_that_releases_before_it_were_missed(usual):
    remote = usual.estimator()
    steps = [remote.update(usual.messages[at], may_skip=True) for at in (0, 1, 4, 5)]
    assert [estimate.is_chained for estimate in steps] == [False, True, False, True]


def test_a_release_that_comes_too_early_is_refused_and_the_ones_before_it_are_read(usual):
    remote, in_order = usual.estimator(), usual.estimator()
    expected = [in_order.update(message) for message in usual.messages]
    assert remote.update(usual.messages[0]) == expected[0]
    with pytest.raises(ReleaseRefused, match="step 5 of stream 'main' does not follow from step 1: releases between"):
        remote.update(usual.messages[4])
    assert [remote.update(message) for message in usual.messages[1:]] == expected[1:]


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
def test_a_malformed_release_is_refused_and_changes_nothing(usual, change, message):
    remote = usual.estimator()
    with pytest.raises(ReleaseRefused, match=message):
        remote.update(usual.messages[0] | change)
    assert remote.last_step("main") == 0
    assert remote.update(usual.messages[0]) is not None


def test_a_step_very_far_ahead_takes_a_bounded_time(gappy):
    began = time.process_time()
    far = gappy.estimator().update(gappy.messages[0] | {"step": 2**62})
    assert time.process_time() - began < 30  # of processor time
    # After so many skipped steps E no longer changes.
    longer = gappy.estimator().update(gappy.messages[0] | {"step": 90_000})
    assert_close(longer, (far.mean, far.std))


def test_values_of_any_other_type_are_refused(usual):
    remote, names = usual.estimator(), ("step", "release", "fusion_weight", "hash")

    @given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=9), st.lists))
    def refuses(value):
        for release in [value, *(usual.messages[0] | {name: value} for name in names)]:
            with pytest.raises(ReleaseRefused):
                remote.update(release)

    refuses()
