"""With a bank a sensor adds nothing before its first slice, one to two epochs after it arrives."""

from __future__ import annotations

import equinox as eqx
import numpy as np
import pytest

import dpfuse
from dpfuse.policy import rollout
from dpfuse.policy.rollout import cut, pad_rows, wait_for_bank
from support.designs import BRIEF, SMALL, busy_data, make_guarantee, random_walks

STEPS, EPOCH = 40, 4.5


@pytest.fixture(scope="module")
def windows():
    data = busy_data(num_steps=STEPS)
    starts = np.zeros(data.num_runs, np.int64)
    return cut(data, np.arange(data.num_runs), starts, STEPS)


def waits(windows, *, has_begun):
    """The steps from each arrival to the opening of that sensor's account, inf if it never is."""
    arrived = np.array(windows.arrived)
    arrived[0] = not has_begun
    found = []
    for row in range(arrived.shape[1]):
        steps = np.flatnonzero(arrived[:, row])
        for step, leaves in zip(steps, [*steps[1:], STEPS], strict=True):
            opened = np.flatnonzero(windows.opened[step:leaves, row])
            assert len(opened) <= 1
            found.append(float(opened[0]) if len(opened) else np.inf)
    return np.array(found)


@pytest.mark.parametrize("has_begun", [True, False])
def test_accounts_open_one_to_two_epochs_after_a_sensor_arrives(windows, has_begun):
    waiting = wait_for_bank(windows, EPOCH, np.random.default_rng(0), has_begun=has_begun)
    found = waits(waiting, has_begun=has_begun)
    opened = found[np.isfinite(found)]
    assert len(opened) and opened.min() >= EPOCH and opened.max() <= np.ceil(2 * EPOCH)
    assert (waiting.account_share == (1 if has_begun else 0)).all()


def test_sensors_of_a_window_open_their_accounts_at_the_same_boundaries(windows):
    waiting = wait_for_bank(windows, 5, np.random.default_rng(0), has_begun=False)
    for window in range(windows.state.shape[1]):
        steps = np.flatnonzero(waiting.opened[:, waiting.window == window].any(1))
        assert len(set(steps % 5)) == 1


def test_nobody_adds_anything_before_its_account_is_open(windows, designs):
    policy = designs["individual", "remove-one", "ball"].policy
    waiting = wait_for_bank(windows, EPOCH, np.random.default_rng(0), has_begun=False)
    padded = pad_rows(waiting, len(waiting.window) + 3)
    result = eqx.filter_jit(rollout)(policy, padded, np.zeros((STEPS, windows.state.shape[1], 2), np.float32))
    added = np.abs(np.asarray(result.contributions)).sum(-1)[:, : len(waiting.window)] > 0
    number = np.cumsum(waiting.arrived, axis=0)  # of the sensor in its row
    opened = np.zeros_like(added)
    for step in range(STEPS):
        same = (number[: step + 1] == number[step]) & waiting.opened[: step + 1]
        opened[step] = same.any(0)
    assert not (added & ~opened).any() and added.any()


@pytest.mark.slow
def test_a_design_is_trained_and_evaluated_for_the_epochs_of_a_bank():
    data, guarantee = random_walks(32, 0), make_guarantee("individual")
    options = {"architecture": SMALL, "optimisation": BRIEF}
    design = dpfuse.train(data, data, guarantee, epoch_s=2 * data.interval_s, **options)
    assert design.training["epoch_s"] == 2 * data.interval_s
    spent = dpfuse.evaluate(design, data, num_draws=1).budget_per_step
    assert (spent[:2] == 0).all() and (spent[4:] > 0).all()
    assert (dpfuse.evaluate(design, data, num_draws=1, epoch_s=0.01 * data.interval_s).budget_per_step[2:] > 0).all()


def test_a_bank_needs_individual_accounting():
    data = random_walks(32, 0)
    with pytest.raises(ValueError, match="epoch_s must come with individual accounting"):
        dpfuse.train(data, data, make_guarantee("total"), epoch_s=1.0)
