"""The scale of the band: a margin for few windows, the harder part decides, and faults count."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

from dpfuse.training.calibration import band_scales, calibration_windows
from dpfuse.training.sampler import spaced_windows
from support.designs import busy_data, make_design

CUT = partial(spaced_windows, window=6, count=400)


def scale_of(parts, level=0.95):
    policy = make_design().policy
    networks, constants = jax.tree.map(lambda leaf: leaf[None], (policy.networks, policy.constants))
    return float(band_scales(policy.structure, networks, constants, parts, level)[0, 0])


@pytest.mark.parametrize(("num_runs", "level"), [(20, 0.97), (60, 0.95 * 61 / 60), (300, 0.95 * 301 / 300)])
def test_the_fewer_windows_the_more_of_their_errors_the_band_covers(num_runs, level):
    data = busy_data(num_runs=num_runs)
    assert calibration_windows(data, data, CUT, 0.0)[1] == pytest.approx(level)


def test_overlapping_windows_count_once():
    """55 starts in each of 3 runs of 60 steps, which hold 30 windows of 6 steps that share none."""
    data = busy_data(num_runs=3, num_steps=60)
    assert CUT(data).skipped.shape[1] > 150
    parts, level = calibration_windows(data, data, CUT, 0.0)
    assert len(parts) == 2 and level == pytest.approx(0.97)


@pytest.mark.parametrize(("num_runs", "num_parts"), [(99, 2), (100, 1)])
def test_windows_of_the_training_part_are_covered_too_where_there_are_few_of_validation(num_runs, num_parts):
    training, validation = busy_data(num_runs=num_runs, seed=1), busy_data(num_runs=num_runs)
    parts, _ = calibration_windows(training, validation, CUT, 0.0)
    assert len(parts) == num_parts
    np.testing.assert_array_equal(parts[0].state, CUT(validation).state)
    np.testing.assert_array_equal(parts[-1].state, CUT(training if num_parts == 2 else validation).state)


@pytest.mark.slow
def test_the_part_with_the_larger_errors_sets_the_scale():
    easy = CUT(busy_data(num_runs=40))
    hard = easy._replace(state=10 * easy.state)
    assert scale_of([easy]) < 0.5 * scale_of([hard])
    assert scale_of([easy, hard]) == scale_of([hard, easy]) == scale_of([hard])


@pytest.mark.slow
def test_a_higher_level_gives_a_wider_band():
    windows = [CUT(busy_data(num_runs=40))]
    assert scale_of(windows, 0.97) > scale_of(windows, 0.95)


def test_with_faults_about_that_share_of_the_windows_has_one():
    data = busy_data(num_runs=200)
    (windows,), _ = calibration_windows(data, data, CUT, 1.0)
    clean = CUT(data)
    assert (windows.present != clean.present).any() and windows.skipped.any() and windows.joined.any()
    (unchanged,), _ = calibration_windows(data, data, CUT, 0.0)
    assert (unchanged.present == clean.present).all() and not unchanged.skipped.any()


def test_a_recording_shorter_than_a_hundred_windows_never_has_a_level_above_97_percent():
    data = busy_data(num_runs=1)
    assert calibration_windows(data, replace(data), CUT, 0.0)[1] == 0.97
