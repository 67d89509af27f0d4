"""The range of a channel: extreme values do not set it, and no value is invented."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import dpfuse
from dpfuse.training.scaling import find_scales


def data_with(values):
    measurements = np.asarray(values, np.float32).reshape(1, len(values), 1, 1)
    return dpfuse.Trajectories(state=np.ones((1, len(values), 1)), measurements=measurements)


def range_of(values, architecture=dpfuse.Architecture()):  # noqa: B008 - frozen
    low, high, *_ = find_scales(data_with(values), architecture)
    return float(low[0]), float(high[0])


@pytest.mark.parametrize("num_values", [100, 1000, 30_000])
def test_one_extreme_value_does_not_set_the_range(num_values):
    values = np.random.default_rng(0).uniform(0, 30, num_values)
    values[num_values // 2] = 1e6
    values[num_values // 3] = -1e6
    low, high = range_of(values)
    assert -8 < low < 1 and 29 < high < 38


def test_the_range_reaches_a_quarter_further_than_the_quantiles():
    """Of 30,000 values 3 are left out on each side."""
    values = np.concatenate([np.linspace(0, 100, 29_998), [1e4, -1e4]])
    low, high = range_of(values)
    assert low == pytest.approx(-25, abs=0.1) and high == pytest.approx(125, abs=0.1)


def test_the_range_ends_at_the_smallest_and_largest_value():
    assert range_of(np.linspace(2, 5, 500)) == (2, 5)
    assert range_of([3.0, 1.0, 2.0]) == (1, 3)


def test_a_flag_that_is_rarely_set_keeps_its_range():
    flag = np.zeros(20_000)
    flag[::10_000] = 1
    assert range_of(flag) == (0, 1)


def test_missing_values_do_not_count():
    values = np.random.default_rng(0).uniform(0, 1, (1, 300, 1, 2)).astype(np.float32)
    values[0, :250, 0, 1] = np.nan
    data = dpfuse.Trajectories(state=np.ones((1, 300, 1)), measurements=values)
    low, high, *_ = find_scales(data, dpfuse.Architecture())
    assert low[1] == np.nanmin(values[..., 1]) and high[1] == np.nanmax(values[..., 1])


def test_a_given_range_is_kept():
    assert range_of(np.linspace(2, 5, 500), dpfuse.Architecture(measurement_range=(0, 10))) == (0, 10)


def test_the_range_is_logged(caplog):
    with caplog.at_level(logging.INFO, "dpfuse.training"):
        range_of(np.linspace(2, 5, 500))
    assert "channel 0 is read from 2 to 5" in caplog.text
