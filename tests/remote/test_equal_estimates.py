"""Estimates of the remote estimator equal those of the centre bit for bit, beside any number of other streams."""

from __future__ import annotations

import numpy as np
import pytest

import dpfuse
from dpfuse.audit.worlds import make_inputs
from dpfuse.policy.public_part import ESTIMATE_ROWS
from dpfuse.privacy import Release
from dpfuse.public.rows import Row, to_bytes
from dpfuse.public_inputs import pack
from support.designs import make_design

NUM_STEPS = 9


def run_streams(design, num_streams, seed=0):
    """Rows and estimates of streams that step together; each skips some steps, and all skip one."""
    rng = np.random.default_rng(seed)
    step, dimension = dpfuse.ExactStep(design, 4, num_streams), design.structure.dimension
    carry, last = step.init(), [bytes(32)] * num_streams
    own = [make_inputs(design, NUM_STEPS, seed + stream) for stream in range(num_streams)]
    outcome = []
    for k in range(NUM_STEPS):
        skipped = (rng.random(num_streams) < 0.2) | (k == 4)
        weights = np.where(skipped, 0, rng.integers(1, 2**19, num_streams))
        values = np.where(skipped[:, None], 0, rng.integers(-(2**22), 2**22, (num_streams, dimension)))
        inputs = np.array([each[k] for each in own]) if own[0] is not None else None
        carry, (mean, std) = step.follow(carry, weights, values, skipped, inputs)
        for stream in np.flatnonzero(~skipped):
            release = Release(values[stream], int(weights[stream]), None)
            packed = None if inputs is None else pack(inputs[stream])
            content = to_bytes(release), release.fusion_weight, None, None
            row = Row.after(last[stream], f"s{stream}", k + 1, *content, inputs=packed)
            last[stream] = row.hash
            outcome.append((row, tuple(np.asarray(mean)[stream].tolist()), tuple(np.asarray(std)[stream].tolist())))
    return outcome


ENDLESS, LARGER = {"horizon": None, "spread": 0.5}, {"num_states": 3, "dimension": 4}


@pytest.mark.parametrize(
    ("options", "num_streams", "num_public"),
    [
        (ENDLESS, 3, 2),
        pytest.param(ENDLESS, 40, 0, marks=pytest.mark.slow),
        pytest.param(LARGER, 3, 0, marks=pytest.mark.slow),
        pytest.param(LARGER, 40, 2, marks=pytest.mark.slow),
    ],
)
def test_estimates_beside_other_streams_are_equal_to_the_last_bit(tmp_path, options, num_streams, num_public):
    design = make_design("individual", num_public=num_public, **{"horizon": 20} | options)
    design.export_estimator(tmp_path / "e")
    remote = dpfuse.RemoteEstimator.load(tmp_path / "e")
    assert num_streams < ESTIMATE_ROWS or num_streams > 2 * ESTIMATE_ROWS
    outcome = run_streams(design, num_streams)
    assert len(outcome) > 0.6 * NUM_STEPS * num_streams
    begun: set[str] = set()
    for row, mean, std in outcome:
        if row.step == 1 or row.stream in begun:
            estimate = remote.update(row.to_dict())
            assert (estimate.mean, estimate.std) == (mean, std)
            begun.add(row.stream)


def test_one_who_joins_late_reads_the_inputs_of_its_own_first_row(tmp_path):
    design = make_design("individual", num_public=2, horizon=None, spread=0.5)
    design.export_estimator(tmp_path / "e")
    remote = dpfuse.RemoteEstimator.load(tmp_path / "e")
    rows = [row for row, *_ in run_streams(design, 1)][2:]
    other = rows[0]._replace(inputs=pack([0.0, 0.0, 3, 3]))
    other = Row.after(bytes(32), *other[:-1])
    estimates = [dpfuse.RemoteEstimator.load(tmp_path / "e").update(each.to_dict()) for each in (rows[0], other)]
    assert estimates[0] == remote.update(rows[0].to_dict()) and estimates[0].mean != estimates[1].mean


def test_a_step_without_the_inputs_that_the_design_reads_is_refused():
    step = dpfuse.ExactStep(make_design("individual", num_public=2), 4)
    nothing = np.zeros((1, step.mechanism.dimension), np.int64)
    for inputs in (None, np.zeros((1, 2), np.float32)):
        with pytest.raises(
            ValueError, match=r"inputs must be the public inputs that the design reads, .*\(1, 4\), got"
        ):
            step.estimate_many(step.init(), nothing[:, 0], nothing, inputs=inputs)
    plain = dpfuse.ExactStep(make_design("individual"), 4)
    with pytest.raises(ValueError, match=r"shape \(1, 0\), got \(1, 4\)"):
        plain.estimate_many(plain.init(), nothing[:, 0], nothing, inputs=np.zeros((1, 4), np.float32))
