"""Sections of a recording: the density is what a count by hand gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse import data
from dpfuse.data.sites import US101
from dpfuse.data.summary import periods
from dpfuse.trajectories import NOBODY
from support.ngsim import FOOT_M, SECTION, START_MS, write_csv


def count_by_hand(rows, section, ticks):
    """Vehicles on lanes 1 to 5 of the section at each tick."""
    there = {}
    for each in rows:
        position = np.float32(each["Local_Y"] * FOOT_M)
        if 1 <= each["Lane_ID"] <= 5 and section[0] <= position < section[1]:
            there.setdefault(each["Global_Time"] // 100, set()).add(each["Vehicle_ID"])
    return [len(there.get(tick, ())) for tick in ticks]


class TestSections:
    @given(start=st.integers(5, 150), length=st.integers(5, 90), every=st.sampled_from([1, 2, 3, 10]))
    def test_density_is_what_a_count_by_hand_gives(self, traffic, recording, start, length, every):
        section = (float(start), float(start + length))
        run = recording.trajectories(section, every / 10)
        first, last = recording.seen_in_full(section)
        counts = count_by_hand(traffic, section, range(first, last + 1, every))
        np.testing.assert_allclose(run.state[0, :, 0], np.array(counts) / (length / 1000), rtol=1e-6)
        np.testing.assert_array_equal(run.present.sum(-1)[0], counts)
        assert run.num_slots == max(counts)
        assert run.interval_s == every / 10

    def test_measurements_are_those_of_the_vehicle_named(self, traffic, recording):
        run = recording.trajectories(SECTION)
        first, _ = recording.seen_in_full(SECTION)
        rows = {(each["Vehicle_ID"], each["Global_Time"] // 100): each for each in traffic}
        step, slot = np.nonzero(run.present[0])
        assert len(step) > 1000
        for k, i in zip(step, slot, strict=True):
            each = rows[int(run.sensors[0, k, i]) - 1_000_000, first + 2 * int(k)]
            assert each["Lane_ID"] in (1, 2)
            expected = each["Local_Y"] * FOOT_M - SECTION[0], each["v_Vel"] * FOOT_M
            np.testing.assert_allclose(run.measurements[0, k, i], expected, rtol=1e-5, atol=1e-4)

    def test_the_run_covers_the_time_in_which_the_section_is_seen_in_full(self, recording):
        """Vehicles enter at 3 m from the first second on and need 13 s to 160 m; the last one enters at 57 s."""
        first, last = (tick - START_MS // 100 for tick in recording.seen_in_full(SECTION))
        assert 10 * (157 / 13.5) <= first <= 10 * (157 / 10.9) + 31
        assert last == 599
        assert recording.trajectories(SECTION).state.min() > 0

    def test_a_vehicle_that_is_not_seen_for_a_while_keeps_its_slot(self, traffic, folder):
        gone = [each for each in traffic if not (each["Vehicle_ID"] == 7 and 160 <= each["Frame_ID"] < 170)]
        away = [
            each | {"Lane_ID": 6} if each["Vehicle_ID"] == 8 and each["Frame_ID"] % 50 < 9 else each for each in gone
        ]
        write_csv(folder / "a.csv", away)
        recording = data.read(folder)
        run = recording.trajectories(SECTION, 0.1)
        first, last = recording.seen_in_full(SECTION)
        assert run.present.sum(-1)[0].tolist() == count_by_hand(away, SECTION, range(first, last + 1))
        for vehicle in (1_000_007, 1_000_008):
            step, slot = np.nonzero(run.sensors[0] == vehicle)
            assert len(set(slot.tolist())) == 1
            assert (np.diff(step) == 1).all()
            present = run.present[0, step, slot[0]]
            assert present[0] and present[-1] and not present.all()
        absent = ~run.present
        assert (run.measurements[absent] == 0).all()
        assert (run.sensors[absent] == NOBODY).sum() > 0

    def test_us101_reads_and_cuts_in_one_call(self, traffic, recording, folder):
        write_csv(folder / "a.csv", traffic)
        run = data.us101(folder, section=SECTION, interval_s=0.5)
        np.testing.assert_array_equal(run.state, recording.trajectories(SECTION, 0.5).state)
        assert run.sample_sensors(0.5, seed=0).num_slots < run.num_slots

    def test_a_missing_period_is_refused(self, traffic, folder):
        write_csv(folder / "a.csv", [each for each in traffic if not 300 <= each["Frame_ID"] < 330])
        with pytest.raises(ValueError, match="got 3 s without a vehicle after 07:50:09; add the file of the missing"):
            data.us101(folder, section=SECTION)

    @pytest.mark.parametrize(
        ("section", "error", "message"),
        [
            (
                (120, 520),
                ValueError,
                "section must lie within what was recorded, 3 to 2[45]. m on lane 1, got 120 to 520",
            ),
            ((0, 100), ValueError, "section must lie within what was recorded"),
            ((160, 60), ValueError, "section must have a start before its end, in m, got 160 to 60"),
            ((60, float("nan")), ValueError, "section must have a start before its end"),
            (60, TypeError, "section must be two numbers"),
            ("ab", TypeError, "section must be two numbers"),
        ],
    )
    def test_a_wrong_section_is_refused(self, recording, section, error, message):
        with pytest.raises(error, match=message):
            recording.trajectories(section)

    @pytest.mark.parametrize("interval_s", [0.25, 0.05, 1e-12])
    def test_a_wrong_interval_is_refused(self, recording, interval_s):
        with pytest.raises(ValueError, match="interval_s must be a multiple of 0.1"):
            recording.trajectories(SECTION, interval_s)

    def test_a_recording_that_is_too_short_is_refused(self, traffic, folder):
        rows = [each for each in traffic if each["Frame_ID"] < 200]
        late = [each for each in rows if each["Local_Y"] > 300 or each["Frame_ID"] < 100]
        write_csv(folder / "a.csv", late)
        with pytest.raises(ValueError, match="which lasts 20 s; read more files or take a shorter section"):
            data.us101(folder, section=SECTION)

    def test_a_recording_without_main_lanes_is_refused(self, traffic, folder):
        write_csv(folder / "a.csv", [each for each in traffic if each["Lane_ID"] == 6])
        with pytest.raises(ValueError, match="must have vehicles on lanes 1 to 5"):
            data.us101(folder, section=SECTION)


def test_periods_start_at_their_published_times(recording):
    first, last = recording.seen_in_full(SECTION)
    run = recording.trajectories(SECTION)
    early, late, all_of_it = periods(run, first)
    assert [early.name, late.name, all_of_it.name] == ["07:35-07:50", "07:50-08:05", "all"]
    assert US101.clock(START_MS // 100) == "07:49:40" and US101.clock(last) == "07:50:39"
    steps = (11_188_470_000 - first + 1) // 2
    assert late.density_mean == pytest.approx(run.state[0, steps:].mean(), rel=1e-6)
    assert all_of_it.density_mean == pytest.approx(run.state.mean(), rel=1e-6)
    assert all_of_it.speed_mps == pytest.approx(run.measurements[..., 1][run.present].mean(), rel=1e-5)
    assert all_of_it.flow_per_h == pytest.approx(all_of_it.density_mean * all_of_it.speed_mps * 3.6)
    assert all_of_it.num_vehicles == len(np.unique(run.sensors[run.present]))
