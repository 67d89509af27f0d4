"""Periods in training and evaluation: what starts afresh at a boundary, and what a design may spend in each."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import dpfuse
from dpfuse.policy.periods import begin_periods, period_starts
from dpfuse.policy.rollout import cut
from dpfuse.systems import linear_gaussian
from support.designs import SMALL, make_design, make_guarantee

STEPS, PERIOD_S = 40, 10.0


@pytest.fixture(scope="module")
def data():
    system = linear_gaussian.LinearGaussian.random_walk(num_sensors=4, measurement_noise=0.1)
    return linear_gaussian.simulate(system, num_runs=3, num_steps=STEPS, seed=0)


def windows_of(data, start):
    starts = np.full(data.num_runs, start)
    runs = np.arange(data.num_runs)
    return cut(data, runs, starts, 20), period_starts(data, runs, starts)


def test_every_sensor_is_new_at_the_first_step_of_a_period_and_at_no_other(data):
    windows, start_s = windows_of(data, 7)
    made = begin_periods(windows, start_s, PERIOD_S * data.interval_s, data.interval_s)
    assert np.flatnonzero(made.arrived.all(1)).tolist() == [3, 13]  # steps 10 and 20 of the recording
    assert (made.arrived.any(1) == made.arrived.all(1)).all()
    assert made.renewed[:, 0].tolist() == pytest.approx([0.3] + [float(step in (3, 13)) for step in range(1, 20)])


def test_without_a_period_nothing_changes(data):
    windows, start_s = windows_of(data, 7)
    assert begin_periods(windows, start_s, None, data.interval_s) is windows


def test_a_recording_with_dates_begins_its_periods_by_them(data):
    labels = dpfuse.trajectories.Labels(starts_ns=(int(4e9 * data.interval_s),))
    dated = replace(data, labels=labels)
    recordings = [own.recording for own in dated.origins]
    starts = period_starts(dated, np.arange(data.num_runs), 3)
    assert starts[recordings.index(0)] == pytest.approx(7 * data.interval_s)


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_no_period_of_a_greedy_design_exceeds_its_budget_and_each_is_spent(data, accounting):
    period = PERIOD_S * data.interval_s
    design = make_design(accounting, num_channels=1, horizon=None, expected_stay=10.0, period=period, budget=0.5)
    greedy = eqx.tree_at(lambda p: p.networks.spending.head.bias, design.policy, jnp.array([20.0]))
    greedy = replace(design, policy=greedy, interval_s=data.interval_s)
    report = dpfuse.evaluate(greedy, data, num_draws=1)
    assert report.within_budget
    per_step = report.budget_per_step
    if accounting == "total":  # the whole budget at the first step of each period, and nothing at the others
        assert report.budget_spent_max > 0.99 * 0.5
        assert np.flatnonzero(per_step > 1e-3).tolist() == [0, 10, 20, 30]
    else:
        assert per_step[10] > 1.5 * per_step[9]


def test_a_period_needs_a_design_without_end_and_a_stationary_total_budget_needs_a_period(data):
    guarantee = make_guarantee("total", period=PERIOD_S)
    with pytest.raises(ValueError, match="period must come with stationary=True"):
        dpfuse.train(data, data, guarantee)
    with pytest.raises(ValueError, match="a design with a period must be stationary"):
        make_design("individual", period=PERIOD_S)
    with pytest.raises(ValueError, match="must have individual accounting, or a guarantee with a period"):
        make_design("total", horizon=None)


@pytest.mark.slow
def test_a_stationary_design_with_total_accounting_is_trained_and_saved(data, tmp_path):
    guarantee = make_guarantee("total", period=PERIOD_S * data.interval_s, budget=2.0)
    brief = dpfuse.Optimisation(num_updates=2, batch_size=4, window=20, validation_windows=2)
    design = dpfuse.train(data, data, guarantee, stationary=True, architecture=SMALL, optimisation=brief)
    assert design.structure.expected_stay == pytest.approx(10.0)
    design.save(tmp_path / "daily.dpfuse")
    assert dpfuse.load(tmp_path / "daily.dpfuse").guarantee == guarantee
    assert dpfuse.evaluate(design, data, num_draws=1).within_budget
