"""What is particular to the layouts of highD and of Low Carbon London."""

from __future__ import annotations

import numpy as np
import pytest

import dpfuse
from dpfuse import data
from support.recordings import HOUSEHOLDS, SECTION, density_by_hand, make_readings, make_road, write_highd, write_meters


class TestHighD:
    def test_directions_are_read_apart_and_fronts_count(self, folder):
        """The vehicles of the other direction are mirror images: their fronts are at 260 m minus the position."""
        rows = make_road()
        write_highd(folder, rows)
        left = data.highd(folder, section=SECTION, direction="left").trajectories
        mirrored = [(k, vehicle, round(260 - x, 2), speed) for k, vehicle, x, speed in rows]
        np.testing.assert_allclose(left.state[0, :, 0], density_by_hand(mirrored, 1, rows[-1][0] + 1), rtol=1e-6)
        assert left.measurements[left.present][:, 1].min() >= 10
        with pytest.raises(ValueError, match="direction must be one of left, right, got 'up'"):
            data.highd(folder, direction="up")

    def test_recordings_of_unequal_length_are_runs_of_one_length(self, folder):
        write_highd(folder, make_road(duration_s=30), "01")
        write_highd(folder, make_road(duration_s=40, seed=1), "02")
        read = data.highd(folder, section=SECTION)
        assert (read.trajectories.num_runs, read.trajectories.num_steps) == (2, 150)
        assert read.trajectories.labels.run_names == ("01_tracks.csv", "02_tracks.csv")
        assert "50 steps left out" in read.summary.to_text()

    def test_an_interval_between_frames_takes_the_next_frame(self, folder):
        rows = make_road()
        write_highd(folder, rows)
        made = data.highd(folder, section=SECTION, interval_s=0.5).trajectories
        frames = [int(np.ceil(round(step * 0.5 / 0.2, 6))) for step in range(made.num_steps)]
        expected = density_by_hand(rows, 1, rows[-1][0] + 1)[frames]
        np.testing.assert_allclose(made.state[0, :, 0], expected, rtol=1e-6)

    def test_a_recording_needs_its_three_files(self, folder):
        write_highd(folder, make_road())
        meta = (folder / "01_tracksMeta.csv").read_text()
        (folder / "01_tracksMeta.csv").write_text("\n".join(meta.splitlines()[:9]) + "\n")
        with pytest.raises(dpfuse.FileRefused, match="01_tracksMeta.csv must name every vehicle of .*01_tracks.csv"):
            data.highd(folder)
        (folder / "01_tracksMeta.csv").write_text(meta.replace(",2\n", ",7\n"))
        with pytest.raises(dpfuse.FileRefused, match="01_tracksMeta.csv, line 2: drivingdirection must be 1 or 2"):
            data.highd(folder)
        (folder / "01_recordingMeta.csv").unlink()
        with pytest.raises(dpfuse.DatasetMissing, match="no file at .*01_recordingMeta.csv; each recording has three"):
            data.highd(folder)


class TestMeters:
    @pytest.fixture
    def path(self, folder):
        return write_meters(folder, make_readings())

    def test_a_household_without_a_reading_is_absent(self, path):
        made = data.meters(path).trajectories
        assert (made.num_runs, made.num_steps, made.num_slots) == (1, 144, 3)
        assert made.present.sum() == 3 * 144 - 5
        assert made.labels.sensor_names == HOUSEHOLDS and made.labels.time_kind == "moment"
        table = made.to_table()
        assert str(table["time"][0]).startswith("2012-10-12")

    def test_days_households_tariffs_and_sums_are_chosen(self, path):
        readings = make_readings()
        made = data.meters(path, start="2012-10-13", stop="2012-10-14", state="sum").trajectories
        expected = [sum(2 * energy for at, _, energy in readings if at == k) for k in range(48, 96)]
        np.testing.assert_allclose(made.state[0, :, 0], expected, rtol=1e-5)
        assert data.meters(path, tariff="ToU").trajectories.num_slots == 1
        assert data.meters(path, households=2).trajectories.num_slots == 2
        with pytest.raises(dpfuse.DatasetMissing, match="no reading of this group"):
            data.meters(path, start="2015-01-01")

    def test_longer_steps_are_means_over_their_half_hours(self, path):
        half, day = data.meters(path, tariff="ToU"), data.meters(path, tariff="ToU", interval_s=86_400)
        expected = half.trajectories.measurements[0, :, 0, 0].reshape(3, 48).mean(1)
        np.testing.assert_allclose(day.trajectories.measurements[0, :, 0, 0], expected, rtol=1e-5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"interval_s": 2000}, "interval_s must be a multiple of 1800"),
            ({"start": "soon"}, "start must be a day such as 2013-01-31, got 'soon'"),
            ({"tariff": "free"}, "tariff must be one of Std, ToU"),
            ({"state": "median"}, "state must be one of mean, sum"),
        ],
    )
    def test_wrong_options_are_refused(self, path, options, message):
        with pytest.raises(ValueError, match=message):
            data.meters(path, **options)

    def test_a_time_off_the_half_hour_is_named(self, path):
        text = path.read_text().replace("2012-10-12 03:30:00", "2012-10-12 03:31:00", 1)
        path.write_text(text)
        with pytest.raises(dpfuse.FileRefused, match="meters.csv, line 9: datetime must be a full or half hour"):
            data.meters(path)
