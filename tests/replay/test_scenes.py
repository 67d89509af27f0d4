"""The traffic of `dpfuse replay`: which vehicles report, and recordings that start again."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfuse.cli import app
from dpfuse.replay.scenes import is_chosen, make_scenes
from dpfuse.trajectories import Trajectories


def test_a_vehicle_of_the_freeway_reports_always_or_never():
    moving, interval_s = make_scenes(None, 0.3, 0, first_id=10**6)
    played = list(itertools.islice(moving, 60))
    assert interval_s == 0.2
    for before, now in itertools.pairwise(played):
        # A vehicle that reports does so until it leaves the road, and its position grows.
        places = dict(zip(before.sensors.tolist(), before.measurements[:, 0], strict=True))
        for sensor, (place, _) in zip(now.sensors.tolist(), now.measurements, strict=True):
            assert sensor >= 10**6
            assert place >= places.get(sensor, 0.0)
        gone = set(before.sensors.tolist()) - set(now.sensors.tolist())
        assert all(places[sensor] > 390 for sensor in gone)
    shares = [len(scene.sensors) / (0.4 * scene.state[0]) for scene in played]
    assert 0.15 < np.mean(shares) < 0.45


def test_the_true_state_is_divided_by_the_number_of_lanes():
    (whole, _), (by_lane, _) = (make_scenes(None, 0.3, 0, first_id=0, num_lanes=lanes) for lanes in (1, 5))
    one, other = next(whole), next(by_lane)
    assert other.state[0] == one.state[0] / 5 > 0
    assert np.array_equal(other.measurements, one.measurements)


def test_a_recording_starts_again_with_new_ids_and_says_so(tmp_path):
    sensors, present = np.array([[[3, 4], [3, 4], [9, 4]]]), np.array([[[1, 1], [1, 0], [1, 1]]], bool)
    values = np.arange(12.0).reshape(1, 3, 2, 2)
    data = Trajectories(np.ones((1, 3, 1)), values, present, sensors, interval_s=0.5)
    data.save(tmp_path / "a.dpfuse-data")
    told = []
    playing, interval_s = make_scenes(tmp_path / "a.dpfuse-data", 1.0, 0, 100, told.append)
    ids = [scene.sensors.tolist() for scene in itertools.islice(playing, 6)]
    assert ids == [[103, 104], [103], [109, 104], [113, 114], [113], [119, 114]]
    assert interval_s == 0.5
    assert told == ["the recording starts again, with new ids (turn 2)"]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("DPFUSE_DATA"), reason="DPFUSE_DATA is not set: no recordings at hand")
def test_us_101_starts_again_with_new_ids():
    told = []
    playing, interval_s = make_scenes(Path(os.environ["DPFUSE_DATA"]), 0.3, 0, 0, told.append)
    first = next(playing)
    # All 44 minutes, then the first moment again.
    num_scenes = sum(1 for _ in itertools.takewhile(lambda _: not told, playing))
    assert num_scenes * interval_s > 40 * 60
    again = next(playing)
    assert abs(again.state[0] - first.state[0]) < 20
    assert not set(first.sensors.tolist()) & set(again.sensors.tolist())


def test_ids_are_chosen_independently_with_the_given_share():
    ids = np.arange(10_000)
    by_seed = [is_chosen(ids, 0.3, seed) for seed in range(3)]
    for chosen in by_seed:
        # Five standard deviations, on either side; false alarms 6e-7 for each of three.
        assert abs(chosen.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / len(ids))
    assert abs((by_seed[0] & by_seed[1]).mean() - 0.09) < 5 * np.sqrt(0.09 * 0.91 / len(ids))
    assert is_chosen(ids, 1.0, 0).all()
    assert (is_chosen(ids[500:], 0.3, 0) == by_seed[0][500:]).all()


def test_the_help_explains_speed():
    text = CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "100", "NO_COLOR": "1"}).output
    assert "--interval 0.2/N" in text and "1x" in text


def test_a_missing_key_file_is_reported_at_once(tmp_path):
    result = CliRunner().invoke(app, ["replay", "--keys", str(tmp_path / "none")])
    assert "no key file at" in str(result.exception)
