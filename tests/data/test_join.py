"""Files and periods joined: no vehicle is counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpfuse
from dpfuse import data
from dpfuse.data import _join
from support.ngsim import SECTION, START_MS, assert_same, write_csv, write_parquet, write_text


def renumbered(rows, origin_ms):
    """The same rows as another period counts them: vehicles in order of entry, frames from another start."""
    numbers = {each: number for number, each in enumerate(sorted({r["Vehicle_ID"] for r in rows}), 1)}
    return [
        each | {"Vehicle_ID": numbers[each["Vehicle_ID"]], "Frame_ID": (each["Global_Time"] - origin_ms) // 100}
        for each in rows
    ]


def two_periods(traffic, cut_s, overlap_s=0.0, shift_feet=0.0):
    """Traffic as two periods have it, the second with numbers of its own and, where they overlap, a bit off."""
    cut_ms = START_MS + round(1000 * cut_s)
    first = [each for each in traffic if each["Global_Time"] < cut_ms + 1000 * overlap_s]
    second = [each for each in traffic if each["Global_Time"] >= cut_ms]
    second = [each | {"Local_Y": each["Local_Y"] + shift_feet} for each in renumbered(second, cut_ms - 100)]
    return first, second


class TestEveryVehicleCountsOnce:
    def test_repeated_rows_are_counted_once(self, traffic, recording, folder):
        rows = traffic + traffic[100:200] + traffic[150:160]
        rows[-1] = rows[-1] | {"v_Vel": 1.0}
        write_csv(folder / "a.csv", rows)
        read = data.read(folder)
        assert_same(read, recording)
        (file,) = read.files
        assert (file.num_rows, file.num_duplicates, file.num_conflicts) == (len(rows), 110, 1)

    @settings(max_examples=10)
    @given(st.integers(0, 2**32 - 1))
    def test_the_order_of_rows_does_not_matter(self, traffic, recording, tmp_path_factory, seed):
        rng = np.random.default_rng(seed)
        part = tmp_path_factory.mktemp("order") / "a.parquet"
        copies = [
            traffic[i] for i in rng.permutation(np.r_[np.arange(len(traffic)), rng.integers(len(traffic), size=9)])
        ]
        write_parquet(part, copies)
        read = data.read(part)
        assert_same(read, recording)
        assert read.files[0].num_duplicates == 9 and read.files[0].num_conflicts == 0

    def test_ids_are_unique_across_files(self, traffic, recording, folder):
        first, second = two_periods(traffic, cut_s=30)
        write_csv(folder / "b.csv", first)
        write_text(folder / "a.txt", second)
        read = data.read(folder)
        assert_same(read, recording, with_ids=False)
        numbers = {each["Vehicle_ID"] for each in first}, {each["Vehicle_ID"] for each in second}
        assert numbers[0] & numbers[1]
        assert set(read.vehicle.tolist()) == {1_000_000 + n for n in numbers[0]} | {2_000_000 + n for n in numbers[1]}
        assert read.num_vehicles == len(numbers[0]) + len(numbers[1])

    @pytest.mark.parametrize("in_one_file", [False, True])
    @pytest.mark.parametrize("shift_feet", [0.0, 2.0, -3.0])
    def test_a_vehicle_in_two_overlapping_periods_keeps_one_id(
        self, traffic, recording, folder, shift_feet, in_one_file
    ):
        first, second = two_periods(traffic, cut_s=25, overlap_s=10, shift_feet=shift_feet)
        # As if the clock of the second period had jumped: frames start anew.
        second = [each | {"Frame_ID": each["Frame_ID"] + 5000} for each in second]
        if in_one_file:
            write_csv(folder / "a.csv", [*second, *first], site="us-101")
        else:
            write_csv(folder / "a.csv", first)
            write_csv(folder / "b.csv", second)
        read = data.read(folder)
        assert len(read.vehicle) == len(traffic)
        assert read.num_vehicles == recording.num_vehicles
        in_both = {e["Vehicle_ID"] for e in first} & {e["Vehicle_ID"] for e in traffic if e["Frame_ID"] >= 250}
        assert read.num_seen_twice == len(in_both) > 10
        density = read.trajectories(SECTION).state
        assert np.abs(density - recording.trajectories(SECTION).state).max() <= (0 if not shift_feet else 20)

    def test_vehicles_side_by_side_stay_two(self, traffic, recording, folder):
        """Negative control: the same places on other lanes, and ten feet away."""
        first, second = two_periods(traffic, cut_s=25, overlap_s=10)
        write_csv(folder / "a.csv", first)
        write_csv(folder / "b.csv", [each | {"Lane_ID": each["Lane_ID"] + 2} for each in second])
        assert data.read(folder).num_seen_twice == 0
        write_csv(folder / "b.csv", [each | {"Local_Y": each["Local_Y"] + 10} for each in second])
        assert data.read(folder).num_seen_twice == 0

    def test_a_period_in_several_layouts_is_counted_once(self, traffic, recording, folder):
        write_csv(folder / "a.csv", traffic)
        write_text(folder / "a.txt", traffic)
        write_parquet(folder / "a.parquet", traffic)
        read = data.read(folder)
        assert_same(read, recording)
        assert read.num_seen_twice == 2 * recording.num_vehicles

    def test_two_different_recordings_of_one_period_are_refused(self, traffic, folder, monkeypatch):
        monkeypatch.setattr(_join, "_LONG_OVERLAP_TICKS", 300)
        write_csv(folder / "a.csv", traffic)
        write_csv(folder / "b.csv", [each | {"Local_Y": each["Local_Y"] + 12} for each in traffic])
        with pytest.raises(dpfuse.FileRefused, match="a.csv and .*b.csv both cover 60 s but have different vehicles"):
            data.read(folder)
