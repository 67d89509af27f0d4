"""The freeway that SUMO simulates: what is recorded is what SUMO itself writes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections import defaultdict

import numpy as np
import pytest

from dpfuse import MissingExtra, data
from dpfuse.systems import SumoFreeway, sumo
from dpfuse.systems.sumo import recording
from support.command import run_dpfuse
from support.parts import needs_package

ROAD = SumoFreeway(road_m=500, section_start_m=100, section_m=300, demand_per_h=(1700.0, 1900.0), truck_share=0.2)
STEPS = 100


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What SUMO writes about a run after the warm-up, and what is recorded of the same run."""
    needs_package("libsumo")
    path = tmp_path_factory.mktemp("sumo") / "fcd.xml"
    options = "--fcd-output", str(path), "--device.fcd.begin", "300", "--precision", "6"
    return path, recording.run_once(ROAD, STEPS, 1, seed=3, run=0, options=options)


def test_the_recording_is_what_sumo_writes_about_the_same_traffic(written):
    path, _ = written
    read = data.sumo(path, section=(100, 400), edge="road").trajectories
    made = sumo.simulate(ROAD, duration_s=20, seed=3)
    assert made.state.shape == (1, STEPS, 1) and read.interval_s == pytest.approx(made.interval_s)
    np.testing.assert_allclose(made.state[0], read.state[0, :STEPS], rtol=1e-6)
    for step in range(STEPS):
        one, other = (each.measurements[0, step][each.present[0, step]] for each in (made, read))
        one, other = (each[np.lexsort(each.T[::-1])] for each in (one, other))
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_there_are_trucks_and_vehicles_change_lanes(written):
    path, sightings = written
    lanes, kinds = defaultdict(set), set()
    for vehicle in ElementTree.parse(path).iter("vehicle"):
        lanes[vehicle.get("id")].add(vehicle.get("lane"))
        kinds.add(vehicle.get("type"))
    on_road = [{lane for lane in each if lane.startswith("road")} for each in lanes.values()]
    assert kinds == {"car", "truck"}
    assert sum(len(each) > 1 for each in on_road) > 3
    assert set().union(*lanes.values()) >= {f"road_{i}" for i in range(4)} | {f"after_{i}" for i in range(3)}
    assert len(np.unique(sightings[:, 1])) > 30


def test_a_run_is_the_same_for_any_number_of_runs_and_any_interval(written):
    _, sightings = written
    made = sumo.simulate(ROAD, duration_s=16, interval_s=0.4, num_runs=2, seed=3)
    at = sightings[(sightings[:, 0] % 2 == 0) & (sightings[:, 0] < 80)]
    np.testing.assert_allclose(made.state[0, :, 0], np.bincount(at[:, 0].astype(int) // 2) / 0.3, rtol=1e-6)
    assert (made.state[0] != made.state[1]).any()


def test_the_command_writes_a_recording(capsys, monkeypatch, tmp_path):
    needs_package("libsumo")
    out = tmp_path / "sumo.dpfuse-data"
    result = run_dpfuse(capsys, monkeypatch, "simulate", "sumo", "--runs", 1, "--minutes", 0.1, "--out", out)
    assert result.exit_code == 0 and "1 runs of 30 steps of 0.2 s" in result.stdout


def test_without_libsumo_the_pip_line_is_named(monkeypatch):
    monkeypatch.setattr(recording, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'dpfuse\[sumo\]'"):
        sumo.simulate()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_lanes": 2}, "num_lanes must be at least num_lanes_after, 3, got 2"),
        ({"section_start_m": 900.0}, "section_start_m must be from 0 to road_m - section_m, 800, got 900"),
        ({"demand_per_h": (2000.0, 1000.0)}, "the lower one first"),
        ({"truck_share": 1.0}, "truck_share must be from 0 to below 1"),
    ],
)
def test_a_road_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SumoFreeway(**changes)


def test_an_interval_between_sumos_steps_is_refused():
    needs_package("libsumo")
    with pytest.raises(ValueError, match=r"interval_s must be a multiple of 0.2, got 0.3"):
        sumo.simulate(interval_s=0.3)
