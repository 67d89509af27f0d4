"""Reports that lack channels: f reads which, no other sensor and no charge is changed, and other designs stay as is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfuse
from dpfuse.policy import ExactStep
from dpfuse.policy.check_parts import check_filter
from dpfuse.policy.estimator_file import import_estimator
from dpfuse.policy.filters import AffineFilter, GRUFilter, GuidedFilter
from dpfuse.policy.step import Reports, to_inputs
from dpfuse.privacy import IndividualFilter
from support.designs import BRIEF, SMALL, busy_data, make_design, make_guarantee

NUM_ROWS = 6
PARTIAL = make_design(partial_reports=True).policy
SMALL_VALUES = st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -0.4, 0.9])


def as_reports(values, present=True):
    rows = len(values)
    absent = np.zeros(rows, bool)
    return Reports(np.array(values, np.float32), np.full(rows, present), absent, np.zeros(rows, np.int32))


@given(st.lists(SMALL_VALUES, min_size=2, max_size=2), st.booleans())
@settings(max_examples=20)
def test_f_reads_each_channel_or_its_fill_and_which_are_missing(values, is_there):
    inputs, present = to_inputs(PARTIAL, as_reports([values], is_there))
    known = np.isfinite(values)
    assert bool(present[0]) == (is_there and bool(known.any()))
    np.testing.assert_array_equal(inputs[0, 2:], ~known)
    np.testing.assert_allclose(inputs[0, :2], np.where(known, np.clip(values, -1, 1), 0.0), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GRUFilter, GuidedFilter, AffineFilter])
def test_filters_of_the_package_keep_their_contract(kind):
    check_filter(kind, partial_reports=True, **({"features": "box"} if kind is AffineFilter else {}))


@pytest.fixture(scope="module", params=["total", "individual"])
def step(request):
    return ExactStep(make_design(request.param, spread=0.5, partial_reports=True), NUM_ROWS)


@given(st.data())
@settings(max_examples=25)
def test_missing_channels_change_no_other_sensor_and_no_other_charge(step, data):
    """The rows of the others are equal bit for bit, and so are their debits and the debit of a stream."""
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    reported = rng.uniform(-1, 1, size=(3, NUM_ROWS, 2))
    # Others lack channels too: what stands for a missing channel may not depend on who else lacks one.
    reported[:, :, 0] = np.where(rng.random((3, NUM_ROWS)) < 0.5, np.nan, reported[:, :, 0])
    partial = reported.copy()
    own = data.draw(st.integers(0, NUM_ROWS - 1))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=6, max_size=6))).reshape(3, 2)
    partial[:, own] = np.where(mask, np.nan, partial[:, own])
    ids, others = 7 * np.arange(NUM_ROWS), np.arange(NUM_ROWS) != own
    carries, spent = [step.init(), step.init()], [[], []]
    for k in range(3):
        # One carry's releases drive both: what the others add may depend on past releases.
        rows = [
            step.propose(carry, np.zeros_like(ids), ids, sent[k])
            for carry, sent in zip(carries, (reported, partial), strict=True)
        ]
        assert rows[0].values[others].tobytes() == rows[1].values[others].tobytes()
        assert rows[0].hidden[others].tobytes() == rows[1].hidden[others].tobytes()
        if (mask[k] & np.isfinite(reported[k, own])).any():
            assert rows[0].values[own].tobytes() != rows[1].values[own].tobytes()
        for i, proposal in enumerate(rows):
            carries[i], [charged] = step.charge(carries[i], proposal)
            spent[i].append(charged.budget_left)
        followed, _ = step.estimate_many(carries[0], np.array([10**5]), np.full((1, 2), 10**5))
        carries = [carry._replace(public=followed.public, query=followed.query) for carry in carries]
    if isinstance(carries[0].accounts, IndividualFilter):
        left = [carry.accounts.left(ids)[others] for carry in carries]
        np.testing.assert_array_equal(*left)
    else:
        assert spent[0] == spent[1]


def test_a_design_without_partial_reports_is_what_it_was():
    design = make_design(spread=0.5)
    assert "partial" not in repr(design.structure) and "partial_reports" not in design.structure.to_dict()
    inputs, present = to_inputs(design.policy, as_reports([[0.5, np.nan], [0.5, 0.5]]))
    assert inputs.shape == (2, 2) and present.tolist() == [False, True]


@pytest.mark.slow
def test_training_reads_which_channels_are_missing_and_evaluation_too(tmp_path):
    data = busy_data(num_runs=30, num_steps=6).drop_channels(0.3, seed=0)
    parts = data.split(by="run")
    design = dpfuse.train(
        *parts[:2], make_guarantee("individual"), architecture=SMALL, optimisation=replace(BRIEF, num_updates=2)
    )
    assert design.structure.partial_reports and design.structure.num_filter_inputs == 4
    assert design.training["data"]["training"]["reports_with_missing_channels"] == parts[0].num_partial > 0
    report = dpfuse.evaluate(design, parts[2])
    assert report.within_budget and np.isfinite(report.mse)
    design.save(tmp_path / "partial.dpfuse")
    loaded = dpfuse.load(tmp_path / "partial.dpfuse")
    assert loaded.fingerprint == design.fingerprint
    assert dpfuse.evaluate(loaded, parts[2]).mse == pytest.approx(report.mse, rel=1e-5)
    design.export_estimator(tmp_path / "estimator")
    assert not import_estimator(tmp_path / "estimator").structure.partial_reports  # E does not read reports


def test_reports_that_a_design_cannot_read_are_not_dropped_silently():
    data = busy_data().drop_channels(0.3, seed=0)
    with pytest.warns(dpfuse.DataWarning, match=r"of \d+ reports in test lack a channel and count as absent"):
        dpfuse.evaluate(make_design(), data)


def test_a_channel_that_is_never_measured_is_refused():
    data = busy_data(num_runs=30)
    measurements = np.where([True, False], data.measurements, np.nan)
    parts = replace(data, measurements=measurements).split(by="run")
    with pytest.raises(ValueError, match="training must have a value in every channel, got none in channel 1"):
        dpfuse.train(*parts[:2], make_guarantee(), architecture=SMALL, optimisation=BRIEF)
