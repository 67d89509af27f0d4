"""The other sites of the NGSIM program, and recordings of other rates."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dpfuse
from dpfuse import data
from support.command import run_dpfuse
from support.ngsim import FOOT_M, SECTION, START_MS, STREET_ORDER, make_traffic, write_csv, write_text

I80_MS = 1_113_433_200_000  # 16:00:00 on 13 April 2005
LANKERSHIM_MS = 1_118_935_800_000  # 08:30:00 on 16 June 2005


def moved(rows, start_ms, **changes):
    """The same rows at another time."""
    return [each | {"Global_Time": each["Global_Time"] - START_MS + start_ms} | changes for each in rows]


@pytest.fixture
def street(traffic):
    """Vehicles going north, and the same going south from the other end, among them one that waits within the section.

    The first vehicle going north comes from the side, at 200 m.
    """
    north = moved(traffic, LANKERSHIM_MS, Direction=2)
    south = [
        each | {"Direction": 4, "Vehicle_ID": each["Vehicle_ID"] + 500, "Local_Y": 260 / FOOT_M - each["Local_Y"]}
        for each in north
    ]
    aside = [north[0] | {"Vehicle_ID": 900, "Frame_ID": 0, "Lane_ID": 31, "Local_Y": 200 / FOOT_M}]
    return [*aside, *north, *south]


class TestHighways:
    def test_i80_counts_its_own_lanes_and_gives_a_run_for_each_hour(self, traffic, folder):
        later = moved(traffic, I80_MS + 3_600_000)
        write_text(folder / "a.txt", moved(traffic, I80_MS))
        write_text(folder / "b.txt", [each for each in later if each["Frame_ID"] < 590])
        recording = data.read(folder, site="i-80")
        assert recording.site.clock(recording.tick.min()) == "16:00:00"
        first, second = recording.parts()
        assert second.site.clock(second.tick.min()) == "17:00:00"
        runs = recording.trajectories(SECTION, steps=100)
        np.testing.assert_array_equal(runs.state[0], first.run(SECTION).state[0, :100])
        assert {origin.recording for origin in runs.origins} == {0, 1}
        # Lane 6 is a main lane here.
        assert runs.state.mean() > 1.3 * data.us101(self.as_us101(folder, traffic), section=SECTION).state.mean()
        longest = recording.trajectories(SECTION)
        assert longest.num_runs == 2 and longest.num_steps == second.run(SECTION).num_steps
        with pytest.raises(ValueError, match="steps must be at most"):
            recording.trajectories(SECTION, steps=10_000)

    @staticmethod
    def as_us101(folder, traffic):
        (folder / "us101").mkdir()
        write_csv(folder / "us101" / "c.csv", traffic)
        return folder

    def test_files_of_another_site_are_refused_by_their_clock(self, traffic, folder):
        write_text(folder / "a.txt", traffic)
        with pytest.raises(dpfuse.FileRefused, match="a.txt, line 1: global_time must be .* the afternoon of 13 April"):
            data.read(folder, site="i-80")
        with pytest.raises(ValueError, match="site must be one of us-101, i-80, lankershim, peachtree, got 'a4'"):
            data.read(folder, site="a4")
        with pytest.raises(ValueError, match="direction must be left out for us-101"):
            data.read(folder, direction="north")

    def test_a_compact_copy_belongs_to_one_site(self, traffic, folder):
        both = [*(each | {"site": "i-80"} for each in moved(traffic, I80_MS)), *traffic[:100]]
        write_csv(folder / "a.csv", both, site="us-101")
        for _ in range(2):
            assert len(data.read(folder).vehicle) == 100
            assert len(data.read(folder, site="i-80").vehicle) == len(traffic)


class TestStreets:
    @pytest.mark.parametrize("layout", ["csv", "text"])
    def test_each_direction_is_counted_by_itself(self, street, folder, layout):
        if layout == "csv":
            write_csv(folder / "a.csv", street, names=STREET_ORDER, site="lankershim")
        else:
            write_text(folder / "a.txt", street, names=STREET_ORDER)
        north, south = (data.read(folder, site="lankershim", direction=each) for each in ("north", "south"))
        assert north.num_vehicles == south.num_vehicles + 1
        # The two are mirror images: the section from 60 to 160 m is that from 100 to 200 m of the other direction.
        one, other = north.run((60.0, 160.0)), south.run((100.0, 200.0))
        np.testing.assert_allclose(one.state, other.state[:, : one.num_steps], atol=10.1)
        assert one.state.mean() == pytest.approx(other.state.mean(), rel=0.02)
        # The vehicle from the side is past the section at once; the section is full only when others have crossed it.
        assert north.seen_in_full((60.0, 160.0))[0] > north.tick.min() + 100

    def test_a_file_without_directions_is_refused(self, street, folder):
        write_csv(folder / "a.csv", street, site="lankershim")
        with pytest.raises(dpfuse.FileRefused, match="line 1: the column direction is missing"):
            data.read(folder, site="lankershim")
        write_csv(folder / "a.csv", [*street, street[0] | {"Direction": 9}], names=STREET_ORDER, site="lankershim")
        with pytest.raises(dpfuse.FileRefused, match=f"line {len(street) + 2}: direction must be a direction from 0"):
            data.read(folder, site="lankershim")

    def test_the_command_reads_and_plots_a_street(self, street, folder, tmp_path, capsys, monkeypatch):
        write_csv(folder / "a.csv", street, names=STREET_ORDER, site="lankershim")
        options = "--data", folder, "--section", *SECTION, "--out", tmp_path / "out", "--interval", 0.5
        code, out, _ = run_dpfuse(capsys, monkeypatch, "data", "lankershim", *options, "--direction", "south")
        assert code == 0 and "going south" in out and "from 08:30:" in out
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"density.png", "space-time.png"}


class TestRates:
    """Recordings of 5 Hz, at odd tenths of a second."""

    @pytest.fixture
    def slower(self, folder):
        rows = make_traffic()
        write_csv(folder / "a.csv", [each for each in rows if each["Frame_ID"] % 2])
        return folder

    @pytest.mark.parametrize("interval", [0.2, 0.4, 1.0, 3.0])
    def test_any_multiple_of_the_spacing_is_read_and_plotted(self, slower, interval, tmp_path, capsys, monkeypatch):
        options = "--data", slower, "--section", *SECTION, "--out", tmp_path / "out", "--interval", interval, "--json"
        code, out, err = run_dpfuse(capsys, monkeypatch, "data", "us101", *options)
        assert (code, err) == (0, "")
        assert json.loads(out)["periods"][-1]["density_min"] > 0
        assert (tmp_path / "out" / "space-time.png").read_bytes().startswith(b"\x89PNG")

    def test_steps_between_the_instants_are_refused(self, slower):
        with pytest.raises(ValueError, match="interval_s must be a multiple of 0.2, got 0.1"):
            data.us101(slower, section=SECTION, interval_s=0.1)
