"""Recordings: what is refused and why, and that cutting, packing and saving lose nothing."""

from __future__ import annotations

import logging
import math
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse import _archive
from dpfuse.errors import FileRefused
from dpfuse.policy.rollout import cut
from dpfuse.trajectories import NOBODY, Origin, Trajectories
from support.designs import busy_data


def small(**changes):
    fields = {"state": np.zeros((2, 3, 1)), "measurements": np.zeros((2, 3, 4, 2))} | changes
    return Trajectories(**fields)


def triples(data, run=0):
    """Every (step, id, measurement) of a run."""
    step, slot = np.nonzero(data.present[run])
    return {
        (int(k), int(data.sensors[run, k, i]), *data.measurements[run, k, i].tolist())
        for k, i in zip(step, slot, strict=True)
    }


class TestTrajectories:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"state": np.zeros((2, 3))}, r"state must have shape \(N, K, n_x\), none of them 0, got \(2, 3\)"),
            ({"state": np.zeros((2, 3, 0))}, r"state must have shape .* none of them 0, got \(2, 3, 0\)"),
            ({"state": np.zeros((2, 4, 1))}, r"state must have the \(N, K\) of measurements, \(2, 3\), got \(2, 4\)"),
            ({"state": np.full((2, 3, 1), np.nan)}, "state must be finite everywhere"),
            ({"state": np.full((2, 3, 1), np.inf)}, "state must be finite everywhere"),
            ({"state": np.full((2, 3, 1), 1e308)}, "state must be finite everywhere"),
            ({"state": "density"}, "state must be an array of float32"),
            (
                {"state": [np.zeros((3, 1)), np.zeros((4, 1))]},
                "state must have shape .*, all runs of one length, got 3 and 4 steps; .* Trajectories.from_table",
            ),
            ({"measurements": np.zeros((2, 3, 4))}, r"measurements must have shape \(N, K, m, n_y\)"),
            ({"measurements": np.zeros((2, 3, 0, 2))}, "measurements must have shape .* none of them 0"),
            ({"present": np.ones((2, 3, 5), bool)}, r"present must have the .* \(2, 3, 4\), got \(2, 3, 5\)"),
            ({"present": np.ones((3, 4), bool)}, r"present must have shape \(N, K, m\)"),
            ({"sensors": np.zeros((2, 3, 5), int)}, r"sensors must have the .* \(2, 3, 4\), got \(2, 3, 5\)"),
            ({"sensors": np.full((2, 3, 4), -2)}, "sensors must be ids of 0 or more, or -1 for an empty slot, got -2"),
            ({"sensors": np.full((2, 3, 4), 1.5)}, "sensors must be whole numbers; Trajectories.from_table takes ids"),
            ({"sensors": np.full((2, 3, 4), np.nan)}, "sensors must be whole numbers"),
            ({"sensors": np.full((2, 3, 4), NOBODY)}, "present must be False where sensors is -1"),
            ({"sensors": np.zeros((2, 3, 4), int)}, "sensors must keep an id in one slot within a run"),
            ({"interval_s": 0}, "interval_s must be finite and > 0, got 0"),
            ({"origins": [Origin(0, 0)]}, "origins must have one entry for each of the 2 runs, got 1"),
        ],
    )
    def test_arrays_that_do_not_fit_are_refused(self, changes, message):
        with pytest.raises((TypeError, ValueError), match=message):
            small(**changes)

    def test_every_slot_is_a_sensor_that_is_present_by_default(self):
        data = small(state=np.zeros((2, 3, 5)))
        assert (data.num_runs, data.num_steps, data.num_slots) == (2, 3, 4)
        assert data.present.all()
        assert (data.sensors == np.arange(4)).all()
        assert data.origins == (Origin(0, 0), Origin(1, 0))
        assert not data.arrived.any()
        assert data.begins_stay[:, 0].all() and not data.begins_stay[:, 1:].any()

    def test_packed_windows_agree_on_who_arrived(self):
        data = busy_data()
        windows = cut(data, np.arange(data.num_runs), np.zeros(data.num_runs, int), data.num_steps)
        is_seen = data.present.any(1)
        expected = np.concatenate([data.arrived[run][:, is_seen[run]] for run in range(data.num_runs)], axis=1)
        np.testing.assert_array_equal(windows.arrived, expected)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308, -1e308])
    def test_a_channel_that_is_not_finite_is_missing(self, bad):
        measurements = np.ones((2, 3, 4, 2))
        measurements[1, 2, 3, 0] = bad
        data = small(measurements=measurements)
        assert data.present.all() and data.num_partial == 1
        assert np.isnan(data.measurements[1, 2, 3, 0]) and np.nansum(data.measurements) == 2 * 3 * 4 * 2 - 1

    def test_channels_are_dropped_at_random(self):
        data = small(measurements=np.ones((2, 3, 4, 2)))
        dropped = data.drop_channels(0.5, seed=1)
        lacks = np.isnan(dropped.measurements).sum(-1)
        assert 0 < dropped.num_partial == (lacks > 0).sum() and 0 < (~dropped.present).sum() < dropped.present.size
        assert (lacks[~dropped.present] == 0).all() and (lacks < 2).all()
        assert (np.nansum(dropped.measurements, -1) == np.where(dropped.present, 2 - lacks, 0)).all()
        assert dropped.drop_channels(1.0, seed=1).present.sum() == 0

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e308, -1e308])
    def test_a_sensor_without_any_finite_channel_counts_as_absent(self, bad):
        measurements = np.ones((2, 3, 4, 2))
        measurements[1, 2, 3] = bad
        data = small(measurements=measurements)
        expected = np.ones((2, 3, 4), bool)
        expected[1, 2, 3] = False
        assert (data.present == expected).all()
        assert (data.measurements[1, 2, 3] == 0).all()
        assert (data.measurements[expected] == 1).all()

    @pytest.mark.parametrize(
        ("ids", "fits"),
        [
            ([7, 7, 7, 7], True),
            ([7, 8, 9, 10], True),
            ([NOBODY, 7, 7, NOBODY], True),
            ([7, 8, 7, 7], False),
            ([7, NOBODY, NOBODY, 7], False),
        ],
    )
    def test_an_id_keeps_its_slot_and_does_not_come_back(self, ids, fits):
        sensors = np.array(ids)[None, :, None]
        arrays = {"state": np.zeros((1, 4, 1)), "measurements": np.zeros((1, 4, 1, 1)), "present": sensors >= 0}
        if fits:
            assert (Trajectories(**arrays, sensors=sensors).sensors == sensors).all()
        else:
            with pytest.raises(ValueError, match="give that sensor a slot of its own"):
                Trajectories(**arrays, sensors=sensors)

    def test_one_id_may_be_in_several_runs(self):
        assert small(sensors=np.broadcast_to(np.arange(4), (2, 3, 4))).num_runs == 2

    def test_an_id_is_in_one_slot_at_a_time(self):
        with pytest.raises(ValueError, match="got two stays of one id in run 1"):
            small(sensors=np.array([[[0, 1, 2, 3]] * 3, [[0, 1, 2, 2]] * 3]))

    def test_arrays_of_the_caller_are_not_changed(self):
        measurements = np.full((2, 3, 4, 2), np.nan, np.float32)
        small(measurements=measurements)
        assert np.isnan(measurements).all()


def numbered(num_runs, num_steps, interval_s=1.0):
    """A recording whose state says which run and step it is."""
    state = np.stack(np.meshgrid(np.arange(num_runs), np.arange(num_steps), indexing="ij"), axis=-1)
    return Trajectories(
        state=state, measurements=np.repeat(state[:, :, None, :1], 2, axis=2) + 0.5, interval_s=interval_s
    )


def places(data):
    """The (run, step) pairs of a numbered recording."""
    return [tuple(pair) for pair in data.state.reshape(-1, 2).astype(int).tolist()]


class TestCutting:
    @given(
        st.integers(1, 4), st.integers(10, 40), st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.25, 0.25)]), st.integers(0, 1)
    )
    def test_parts_by_time_share_no_step(self, num_runs, num_steps, fractions, gap):
        data = numbered(num_runs, num_steps)
        try:
            parts = data.split(fractions, gap=gap)
        except ValueError as error:
            assert gap and "split needs steps" in str(error)
            return
        seen = sum((places(part) for part in parts), [])
        assert len(set(seen)) == len(seen) == num_runs * (num_steps - 2 * gap)
        for run in range(num_runs):
            last = [max(k for r, k in places(part) if r == run) for part in parts]
            first = [min(k for r, k in places(part) if r == run) for part in parts]
            assert last[0] + gap < first[1] <= last[1] and last[1] + gap < first[2]
            assert [part.origins[run] for part in parts] == [Origin(run, k) for k in first]

    @given(st.integers(10, 30))
    def test_parts_by_run_share_no_run(self, num_runs):
        parts = numbered(num_runs, 2).split(by="run")
        runs = [{r for r, _ in places(part)} for part in parts]
        assert runs[0] | runs[1] | runs[2] == set(range(num_runs))
        assert sum(map(len, runs)) == num_runs
        assert [window.recording for part in parts for window in part.origins] == list(range(num_runs))

    def test_parts_have_the_fractions_that_were_given(self):
        assert [part.num_steps for part in numbered(2, 1000).split()] == [800, 100, 100]
        assert [part.num_runs for part in numbered(8, 2).split((0.5, 0.125, 0.375), by="run")] == [4, 1, 3]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"fractions": (0.5, 0.5)}, "fractions must be three positive numbers that add up to 1"),
            ({"fractions": (1.0, 0.0, 0.0)}, "fractions must be three positive"),
            ({"fractions": (0.8, 0.1, 0.2)}, "fractions must be three positive"),
            ({"by": "sensor"}, "by must be one of time, run, got 'sensor'"),
            ({"by": "run"}, "split needs steps .or runs. for three parts, got 2 by 'run'"),
            ({"gap": 30}, "split needs steps"),
            ({"gap": -1}, "gap must be at least 0, got -1"),
        ],
    )
    def test_a_split_with_an_empty_part_or_wrong_options_is_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            numbered(2, 40).split(**options)

    @given(st.integers(1, 12), st.one_of(st.none(), st.integers(1, 15)))
    def test_windows_start_a_stride_apart_in_every_run(self, horizon, stride):
        windows = numbered(2, 12, interval_s=0.2).windows(horizon, stride)
        starts = range(0, 12 - horizon + 1, stride or horizon)
        expected = [(run, start) for run in range(2) for start in starts]
        assert [tuple(window) for window in windows.origins] == expected
        for number, (run, start) in enumerate(expected):
            assert windows.state[number].tolist() == [[run, start + k] for k in range(horizon)]
            assert (windows.measurements[number] == run + 0.5).all()
        assert windows.interval_s == 0.2

    def test_windows_of_a_part_have_their_origin_in_the_recording(self):
        windows = numbered(2, 30).between(10, 30).windows(5, 5).runs([5, 2])
        assert windows.origins == (Origin(1, 15), Origin(0, 20))
        assert places(windows)[0] == (1, 15) and places(windows)[5] == (0, 20)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [((13,), "horizon must be at most the 12 recorded steps, got 13"), ((0,), "horizon"), ((3, 0), "stride")],
    )
    def test_windows_that_do_not_fit_are_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            numbered(1, 12).windows(*arguments)

    @pytest.mark.parametrize(
        ("num_runs", "num_steps", "by"), [(30, 20, "run"), (29, 20, "time"), (30, 120, "time"), (31, 120, "run")]
    )
    def test_many_short_runs_are_split_by_run_and_others_along_time(self, num_runs, num_steps, by, caplog):
        data = busy_data(num_runs=num_runs, num_steps=num_steps)
        with caplog.at_level(logging.INFO, "dpfuse"):
            parts = data.split()
        for own, expected in zip(parts, data.split(by=by), strict=True):
            np.testing.assert_array_equal(own.state, expected.state)
        assert f"{num_runs} runs of {num_steps} steps are split by {by}" in caplog.text

    def test_windows_cannot_be_split(self):
        for by in ("time", "run"):
            with pytest.raises(ValueError, match="split must come before windows are cut"):
                busy_data(num_runs=1, num_steps=60).windows(20, 5).split(by=by)


class TestPacking:
    def test_windows_of_a_recording_keep_the_same_sensors(self):
        one, other = (set(run.ravel()) for run in self.sampled_windows().sensors)
        full = busy_data(num_runs=1, num_steps=30).windows(20, 10).sensors
        assert one & set(full[1].ravel()) <= other
        assert other & set(full[0].ravel()) <= one

    def sampled_windows(self):
        return busy_data(num_runs=1, num_steps=30).windows(20, 10).sample_sensors(0.5, seed=0)

    @given(st.integers(0, 10**6))
    def test_compact_keeps_every_report_in_fewer_slots(self, seed):
        data = busy_data(seed=seed, num_slots=6, num_states=2)
        packed = data.compact()
        for run in range(data.num_runs):
            assert triples(packed, run) == triples(data, run)
        assert (packed.state == data.state).all()
        needed = max((data.sensors[run] != NOBODY).sum(1).max() for run in range(data.num_runs))
        assert packed.num_slots == max(1, needed)

    @given(st.integers(0, 10**6), st.floats(0.05, 1.0))
    def test_sampled_sensors_are_kept_whole_or_dropped_whole(self, seed, share):
        data = busy_data(seed=seed)
        kept = data.sample_sensors(share, seed=seed + 1)
        for run in range(data.num_runs):
            ids = set(kept.sensors[run].ravel().tolist())
            assert triples(kept, run) == {triple for triple in triples(data, run) if triple[1] in ids}
        again = data.sample_sensors(share, seed=seed + 1)
        assert (again.sensors == kept.sensors).all() and (again.measurements == kept.measurements).all()

    def test_the_share_of_sampled_sensors_is_the_one_asked_for(self):
        data = Trajectories(state=np.zeros((1, 2, 1)), measurements=np.zeros((1, 2, 4000, 1)))
        kept = len(np.unique(data.sample_sensors(0.3, 0).sensors))
        # Five standard deviations of a binomial, a false alarm in a million.
        assert abs(kept - 1200) < 5 * math.sqrt(4000 * 0.3 * 0.7)
        assert triples(data.sample_sensors(1.0, 0)) == triples(data)

    @pytest.mark.parametrize("share", [0, -0.1, 1.1, math.nan])
    def test_a_share_is_above_0_and_at_most_1(self, share):
        with pytest.raises(ValueError, match="share must be"):
            small().sample_sensors(share, 0)

    def test_without_any_sensor_one_empty_slot_is_left(self):
        empty = small(present=np.zeros((2, 3, 4), bool), sensors=np.full((2, 3, 4), NOBODY)).compact()
        assert empty.num_slots == 1 and not empty.present.any()


class TestJoining:
    def test_joined_data_hold_every_run_of_every_part(self):
        one, two = busy_data(num_runs=2, num_slots=3), busy_data(num_runs=3, num_slots=5, seed=1).windows(6)
        joined = Trajectories.join([one, two])
        assert (joined.num_runs, joined.num_slots) == (5, 5)
        assert joined.origins == (*one.origins, *two.origins)
        for part, runs in [(one, slice(0, 2)), (two, slice(2, 5))]:
            slots = slice(0, part.num_slots)
            np.testing.assert_array_equal(joined.state[runs], part.state)
            np.testing.assert_array_equal(joined.measurements[runs, :, slots], part.measurements)
            np.testing.assert_array_equal(joined.present[runs, :, slots], part.present)
            np.testing.assert_array_equal(joined.sensors[runs, :, slots], part.sensors)
        assert (joined.sensors[:2, :, 3:] == NOBODY).all() and not joined.present[:2, :, 3:].any()

    def test_parts_of_different_shape_cannot_be_joined(self):
        with pytest.raises(ValueError, match="parts must agree in steps, states, channels and interval"):
            Trajectories.join([busy_data(), busy_data(num_steps=5)])
        with pytest.raises(ValueError, match="parts must have at least one entry"):
            Trajectories.join([])


class TestFiles:
    def test_a_saved_recording_is_loaded_unchanged(self, tmp_path):
        data = busy_data(num_states=3, num_steps=9).windows(4, 2)
        data.save(tmp_path / "sub" / "road.dpfuse-data")
        again = Trajectories.load(tmp_path / "sub" / "road.dpfuse-data")
        for name in ("state", "measurements", "present", "sensors"):
            before, after = getattr(data, name), getattr(again, name)
            assert before.dtype == after.dtype and (before == after).all()
        assert again.origins == data.origins
        assert again.interval_s == data.interval_s

    def test_equal_recordings_are_equal_bytes_and_hold_no_pickle(self, tmp_path):
        for name in ("one", "two"):
            busy_data().save(tmp_path / name)
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
        with zipfile.ZipFile(tmp_path / "one") as archive:
            assert {name.rpartition(".")[2] for name in archive.namelist()} == {"npy", "json"}

    def test_a_missing_file_is_named_in_the_error(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no trajectories file at .*nowhere"):
            Trajectories.load(tmp_path / "nowhere")

    def test_another_kind_of_file_is_refused(self, tmp_path):
        (tmp_path / "pickle").write_bytes(pickle.dumps({"state": 1}))
        with pytest.raises(FileRefused, match="is not a dpfuse trajectories file"):
            Trajectories.load(tmp_path / "pickle")

    @pytest.mark.parametrize("without", ["state.npy", "origins.npy", "metadata.json"])
    def test_a_file_that_lacks_a_part_is_refused(self, tmp_path, without):
        busy_data().save(tmp_path / "whole")
        with zipfile.ZipFile(tmp_path / "whole") as whole, zipfile.ZipFile(tmp_path / "part", "w") as part:
            for name in set(whole.namelist()) - {without}:
                part.writestr(name, whole.read(name))
        with pytest.raises(FileRefused, match="part"):
            Trajectories.load(tmp_path / "part")

    def test_a_file_of_another_version_is_refused(self, tmp_path):
        _archive.write(tmp_path / "old", {"kind": "trajectories", "version": 1, "interval_s": 1.0}, {})
        with pytest.raises(FileRefused, match="old has trajectories version 1, this is 3; save it again"):
            Trajectories.load(tmp_path / "old")
