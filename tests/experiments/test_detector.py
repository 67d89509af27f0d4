"""The detector experiment: what is counted, what it shows by itself, and a run that goes on where it was."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import dpfuse
from experiments.detector import run

# Two vehicles enter each 10 s; the interval is 1 s, and a vehicle stays 20 s.
NUM_STEPS, STAY = 600, 20


@pytest.fixture(scope="module")
def road():
    """A road on which a third slot holds vehicles that are first seen in the middle of it: they join by a ramp."""
    steps = np.arange(NUM_STEPS)
    ids = np.stack([steps // STAY * 3 + slot for slot in range(3)], axis=-1)
    position = np.stack([steps % STAY * 20.0, steps % STAY * 20.0, 200.0 + steps % STAY], axis=-1)
    state = np.sin(steps / 50)[:, None]
    measurements = np.stack([position, np.ones_like(position)], axis=-1)
    return dpfuse.Trajectories(state[None], measurements[None], sensors=ids[None], interval_s=1.0)


def test_vehicles_that_pass_the_upstream_end_are_counted_once_each_30_s(road):
    counts = run.detector_counts(road)
    assert counts.shape == (1, NUM_STEPS, 1)
    ends = np.flatnonzero(np.isfinite(counts[0, :, 0]))
    assert ends.tolist() == list(range(30, NUM_STEPS, 30))
    # A vehicle is counted in the 30 s in which it is first seen near the upstream end; those there at first are not.
    # A count holds nothing of its own step: a live centre would have it one step later.
    entered = [2 * sum(start <= step < end for step in range(STAY, NUM_STEPS, STAY)) for start, end in
               zip(ends - 30, ends, strict=True)]  # fmt: skip
    assert counts[0, ends, 0].tolist() == entered and sum(entered) > 50


def test_a_detector_that_shows_the_state_is_enough_and_one_that_shows_nothing_is_not(road):
    fresh = np.full((1, NUM_STEPS, 1), np.nan, np.float32)
    fresh[0, ::30, 0] = road.state[0, ::30, 0]
    assert run.detector_alone(replace(road, public=fresh)) < 0.5 * float(np.var(road.state))
    noise = np.random.default_rng(0).normal(size=fresh.shape).astype(np.float32)
    assert run.detector_alone(replace(road, public=np.where(np.isfinite(fresh), noise, np.nan))) > 0.1


def test_a_run_trains_what_is_missing_and_reports_each_budget_from_its_own_files(road, tmp_path, monkeypatch):
    trained = []

    def train_and_test(job, recording, folder, updates):
        (budget,) = job.budgets
        kind = folder.name
        trained.append((budget, kind))
        assert (recording.public is None) == (kind == "without")
        errors = (100 if kind == "without" else 80) * budget * (1 + 0.1 * np.sin(np.arange(64)))
        row = {"budget": budget, "mse": float(errors.mean()), "validation_mse": 1.0, "coverage": 0.95, "epsilon": 1.0}
        row |= {"budget_spent_max": budget, "within_budget": True, "prior_mse": 300.0}
        row |= {"window_errors": errors.tolist(), "window_starts": [100 * number for number in range(64)]}
        run.write_json(run.path_of(job, folder), {"designs": [row, row]})

    monkeypatch.setattr(run, "train_and_test", train_and_test)
    monkeypatch.setattr(run.data, "us101", lambda *_, **__: road)
    out = tmp_path / "results.json"
    common = ["run", "--data", "x", "--folder", str(tmp_path), "--out", str(out), "--seeds", "2", "--budgets"]
    monkeypatch.setattr(sys, "argv", [*common, "1.5"])
    run.main()
    monkeypatch.setattr(sys, "argv", [*common, "1.5", "0.5"])
    run.main()
    assert trained == [(1.5, "without"), (1.5, "with"), (0.5, "without"), (0.5, "with")]
    budgets = json.loads(out.read_text())["results"]["budgets"]
    assert list(budgets) == ["0.5", "1.5"]
    for name, rows in budgets.items():
        low, high = rows["with"]["ci95"]
        assert low < rows["with"]["mse"] < high and rows["without"]["budget"] == float(name)
        assert rows["with"]["ratio"] == pytest.approx(0.8) and rows["with"]["ratio_ci95"] == pytest.approx([0.8, 0.8])
