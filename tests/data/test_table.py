"""Tables: what comes in comes back, or is refused by row; gaps, repeated and late rows are handled and counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.data import TableSummary, read_table
from dpfuse.public_inputs import NEVER
from dpfuse.trajectories import NOBODY, Trajectories
from support.tables import COLUMNS, MAKERS, NAMES, by_hand, make_table, rows_of

IDS = st.one_of(
    st.lists(st.integers(0, 2**62), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=4, unique=True),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4, unique=True),
    st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=4, unique=True),
    st.just([True, False]),
)
# Numbers that float32 holds exactly.
NUMBERS = st.integers(-1000, 1000).map(lambda number: number / 4)


@st.composite
def tables(draw):
    """Rows with gaps, repeated and late rows, missing values, unequal runs and odd ids; and the interval."""
    runs, sensors, interval = draw(IDS), draw(IDS), draw(st.integers(1, 3))
    rows = []
    for run in runs:
        start, length = draw(st.integers(-5, 10**6)), draw(st.integers(1, 6))
        for step in range(length):
            density = draw(st.one_of(NUMBERS, st.none()) if step else NUMBERS)
            for sensor in draw(st.lists(st.sampled_from(sensors), min_size=0 if step else 1, unique=True)):
                speed, position = (draw(st.one_of(NUMBERS, st.none(), NUMBERS)) for _ in range(2))
                rows.append((run, start + step * interval, sensor, speed, position, density))
    again = [
        (*row[:3], *draw(st.sampled_from([row[3:5], (0.25, None)])), row[5]) for row in rows if draw(st.booleans())
    ]
    return draw(st.permutations([*rows, *again])), interval


class TestRoundTrips:
    @given(tables(), st.sampled_from(list(MAKERS)), st.sampled_from(list(MAKERS)))
    def test_a_table_comes_back_as_the_same_table(self, given_table, one, other):
        rows, interval = given_table
        read = Trajectories.from_table(make_table(rows, one), **NAMES, interval_s=interval, quiet=True)
        reports, states, steps = by_hand(rows, interval)
        assert sorted(rows_of(read.to_table(backend=other)), key=repr) == reports
        assert sorted(rows_of(read.to_table("states", backend=other)), key=repr) == states
        assert read.num_steps == steps
        again = Trajectories.from_table(
            read.to_table(backend=one),
            **NAMES,
            states=read.to_table("states", backend=other),
            interval_s=interval,
            steps=steps,
            quiet=True,
        ) if reports else read  # fmt: skip
        for name in ("state", "measurements", "present"):
            np.testing.assert_array_equal(getattr(again, name), getattr(read, name))

    @given(tables(), st.integers(1, 3))
    def test_runs_of_a_chosen_length_hold_the_same_rows(self, given_table, steps):
        rows, interval = given_table
        try:
            read, _ = read_table(make_table(rows, "polars"), **NAMES, interval_s=interval, steps=steps)
        except ValueError as error:
            assert "steps must be at most" in str(error)
            return
        reports, states, _ = by_hand(rows, interval, steps)
        assert sorted(rows_of(read.to_table()), key=repr) == reports
        assert sorted(rows_of(read.to_table("states")), key=repr) == states

    @pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
    def test_moments_come_back_with_their_time_zone(self, zone, tmp_path):
        when = pd.date_range("2026-10-24 22:00", periods=6, freq="h", tz=zone)
        frame = pd.DataFrame({"t": when, "id": "a", "y": 1.0, "x": 2.0})
        read = Trajectories.from_table(frame, time="t", sensor="id", values="y", state="x", quiet=True)
        assert (read.num_steps, read.interval_s) == (6, 3600)
        read.save(tmp_path / "data")
        back = Trajectories.load(tmp_path / "data").to_table(backend="pandas")
        assert back["t"].tolist() == when.tolist() and back["t"].dt.tz == when.tz

    def test_fractions_of_a_second_come_back(self):
        frame = pl.DataFrame({"t": [1e9 + 0.1 * k for k in range(50)], "id": 7, "y": 1.0, "x": 2.0})
        read = Trajectories.from_table(frame, time="t", sensor="id", values="y", state="x", interval_s=0.1, quiet=True)
        np.testing.assert_allclose(read.to_table(backend="polars")["t"], frame["t"], rtol=0, atol=3e-7)
        assert read.num_steps == 50

    def test_a_recording_without_labels_has_names_of_columns_too(self):
        data = Trajectories(np.zeros((2, 3, 1)), np.ones((2, 3, 4, 2)), interval_s=2.0)
        table = data.to_table(backend="polars")
        assert table.columns == ["run", "time", "sensor", "value_0", "value_1", "state_0"]
        assert table.height == 24 and table["time"].unique().sort().to_list() == [0.0, 2.0, 4.0]

    def test_parts_and_windows_come_back_with_their_times(self):
        rows = [("a", 10 * k, 3, k, k, k) for k in range(20)]
        read = Trajectories.from_table(make_table(rows, "polars"), **NAMES, quiet=True)
        assert rows_of(read.split()[2].to_table()) == rows[18:]
        assert rows_of(read.windows(5).runs([1]).to_table()) == rows[5:10]


ROWS = [("a", 60 * k, sensor, 4321.5, 8765.5, 1.0) for k in range(5) for sensor in (1, 2)]
VALUES = ("4321.5", "8765.5")


def with_row(row: int, **changes) -> list[tuple]:
    names = dict(zip(COLUMNS, range(6), strict=True))
    changed = list(ROWS[row])
    for name, value in changes.items():
        changed[names[name]] = value
    return [*ROWS[:row], tuple(changed), *ROWS[row + 1 :]]


class TestRefusals:
    @pytest.mark.parametrize("backend", list(MAKERS))
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"time": None}, "column 'time', row 7 .*must have a time; drop the row or fill it in"),
            ({"sensor": None}, "column 'sensor', row 7 .*must have a sensor; drop the row or fill it in"),
            ({"run": None}, "column 'run', row 7 .*must have a run; drop the row"),
            ({"time": 190}, "column 'time', row 7 .*multiple of 60 s after .*; give another interval_s, or resample"),
            ({"time": 10**12}, "column 'time', row 7 .*must be a time in seconds; divide milliseconds by 1000"),
            ({"density": 3.0}, "column 'density', row 7 .*be the same .* row 6 has another value; give the state"),
        ],
    )
    def test_a_wrong_row_is_named_with_rule_and_remedy(self, backend, changes, message):
        with pytest.raises(ValueError, match=message) as caught:
            read_table(make_table(with_row(7, **changes), backend), **NAMES, interval_s=60)
        assert not any(value in str(caught.value) for value in VALUES)

    @given(st.sampled_from(["time", "sensor", "run"]), st.integers(0, 9), st.sampled_from(list(MAKERS)))
    def test_whichever_row_lacks_a_name_is_named(self, column, row, backend):
        with pytest.raises(ValueError, match=f"column '{column}', row {row} "):
            read_table(make_table(with_row(row, **{column: None}), backend), **NAMES)

    @pytest.mark.parametrize(
        ("changes", "error", "message"),
        [
            ({"time": "when"}, ValueError, "time must be a column of the table, got 'when'; it has run, time, sensor"),
            ({"values": []}, ValueError, "values must be the name of a column, or different names"),
            ({"values": ["speed", "speed"]}, ValueError, "values must be the name of a column, or different names"),
            ({"values": "run"}, TypeError, r"column 'run' must hold numbers, got String \(row 0 is not a number\)"),
            ({"time": "run"}, TypeError, "time column 'run' must hold seconds or dates with a time, got String"),
            ({"state": "median:speed"}, ValueError, "state must be one of count, mean, sum, got 'median'"),
            ({"state": "sum:power"}, ValueError, "values must be a column of the table, got 'power'"),
            ({"region": {"position": (3, 1)}}, ValueError, "region must have a low and a higher bound for 'position'"),
            ({"interval_s": 0}, ValueError, "interval_s must be finite and > 0"),
            ({"interval_s": 1e-30}, ValueError, "interval_s must be a plausible time between steps"),
            ({"resample": "first"}, ValueError, "resample must be one of last, mean, got 'first'"),
            ({"steps": 9}, ValueError, "steps must be at most 5"),
            ({"steps": 0}, ValueError, "steps must be at least 1"),
        ],
    )
    def test_a_wrong_argument_is_refused(self, changes, error, message):
        with pytest.raises(error, match=message):
            read_table(make_table(ROWS, "polars"), **NAMES | changes)

    def test_what_is_no_table_is_refused(self):
        for wrong in (3, [1, 2], {"time": [1]}, pd.Series([1.0])):
            with pytest.raises(TypeError, match="table must be a"):
                read_table(wrong, **NAMES)
        with pytest.raises(ValueError, match="table must have at least one row"):
            read_table(make_table([], "polars"), **NAMES)

    def test_a_state_that_is_known_nowhere_is_refused(self):
        with pytest.raises(ValueError, match="state must be known at one step at least"):
            read_table(make_table([(*row[:5], math.nan) for row in ROWS], "polars"), **NAMES)

    def test_one_time_alone_needs_an_interval(self):
        table = make_table(ROWS[:2], "polars")
        with pytest.raises(ValueError, match="interval_s must be given for a table in which no run has two times"):
            read_table(table, **NAMES)
        assert read_table(table, **NAMES, interval_s=5).trajectories.num_steps == 1

    def test_tables_of_different_kinds_of_time_or_run_are_refused(self):
        other = pl.DataFrame({"time": [pd.Timestamp("2026-01-01")], "run": ["a"], "density": [1.0]})
        with pytest.raises(ValueError, match="column 'time' must be of the same kind in table and states"):
            read_table(make_table(ROWS, "polars"), **NAMES, states=other)
        other = pl.DataFrame({"time": [0], "run": [1], "density": [1.0]})
        with pytest.raises(ValueError, match="column 'run' must be of the same kind in table and states"):
            read_table(make_table(ROWS, "polars"), **NAMES, states=other)

    @pytest.mark.parametrize("zones", [("UTC", None), (None, "Europe/Paris")])
    def test_times_with_and_without_a_zone_are_not_mixed(self, zones):
        frame, states = (
            pd.DataFrame({"time": pd.date_range("2026-01-01", periods=4, freq="h", tz=zone), "density": 1.0})
            for zone in zones
        )
        names = {"time": "time", "sensor": "sensor", "values": "speed", "state": "density"}
        with pytest.raises(ValueError, match="'time' must have a time zone in both of table and states, or in none"):
            read_table(frame.assign(sensor=1, speed=2.0), **names, states=states)


class TestStates:
    ROWS = [("a", k, sensor, 10.0 * sensor + k, 100.0 * sensor, None) for k in range(4) for sensor in (1, 2, 3)]

    def state(self, state, rows=None, **options):
        read, _ = read_table(make_table(rows or self.ROWS, "polars"), **NAMES | {"state": state}, **options)
        return read.state[0].T.tolist()

    def test_aggregates_are_over_the_sensors_of_a_step(self):
        assert self.state(["count:speed", "sum:speed", "mean:speed"]) == [
            [3, 3, 3, 3],
            [60, 63, 66, 69],
            [20, 21, 22, 23],
        ]

    def test_a_region_holds_for_aggregates_and_not_for_reports(self):
        region = {"position": (100, 300)}
        assert self.state(["sum:speed", "count:position"], region=region) == [[30, 32, 34, 36], [2, 2, 2, 2]]
        read, _ = read_table(make_table(self.ROWS, "polars"), **NAMES | {"state": "count:speed"}, region=region)
        assert read.present.sum() == 12

    @pytest.mark.parametrize("backend", list(MAKERS))
    def test_text_is_counted_too_and_nothing_else(self, backend):
        rows = [(*row[:2], None if row[1:3] == (1, 2) else f"car {row[2]}", *row[3:]) for row in self.ROWS]
        names = NAMES | {"sensor": "position"}
        read, _ = read_table(make_table(rows, backend), **names | {"values": "speed", "state": "count:sensor"})
        assert read.state[0, :, 0].tolist() == [3, 2, 3, 3]
        for changes in ({"state": "sum:sensor"}, {"state": "count:sensor", "values": "sensor"}):
            with pytest.raises(TypeError, match="column 'sensor' must hold numbers"):
                read_table(make_table(rows, backend), **names | {"values": "speed"} | changes)

    def test_a_repeated_row_is_aggregated_once(self):
        assert self.state("count:speed", [*self.ROWS, self.ROWS[0]]) == [[3, 3, 3, 3]]

    def test_an_unknown_sum_or_an_empty_mean_cuts_the_run(self):
        rows = [(*row[:3], None if row[1] == 1 and row[2] == 2 else row[3], *row[4:]) for row in self.ROWS]
        assert self.state("sum:speed", rows) == [[66, 69]]
        assert self.state("mean:speed", rows) == [[20, 21, 22, 23]]
        assert self.state("mean:speed", region={"speed": (11.5, 99)}) == [[25, 26, 22, 23]]

    def test_a_column_with_the_name_of_an_aggregate_is_that_column(self):
        frame = make_table(self.ROWS, "polars").with_columns(pl.lit(5.0).alias("sum:speed"))
        read, _ = read_table(frame, **NAMES | {"state": "sum:speed"})
        assert (read.state == 5).all()

    def test_states_of_another_table_may_cover_more_steps(self):
        states = pl.DataFrame({"run": "a", "time": list(range(-2, 6)), "density": list(range(8))})
        read, summary = read_table(make_table(self.ROWS, "polars"), **NAMES, states=states)
        assert read.state[0, :, 0].tolist() == list(range(8))
        assert read.present.sum(-1)[0].tolist() == [0, 0, 3, 3, 3, 3, 0, 0]
        assert (summary.num_unknown, summary.num_left_out) == (0, 0)


class TestResampling:
    ROWS = [("a", time, "s", speed, 1.0, 0.5) for time, speed in [(0.0, 1), (0.4, 2), (1.1, 5), (3.9, 7)]]

    @pytest.mark.parametrize(("resample", "speeds"), [("last", [2, 5, 0, 7]), ("mean", [1.5, 5, 0, 7])])
    def test_rows_of_a_step_become_one(self, resample, speeds):
        states = pl.DataFrame({"run": "a", "time": [0.0, 1, 2, 3], "density": 1.0})
        read, summary = read_table(
            make_table(self.ROWS, "polars"), **NAMES, states=states, interval_s=1, resample=resample
        )
        assert read.measurements[0, :, 0, 0].tolist() == speeds
        assert read.present[0, :, 0].tolist() == [True, True, False, True]
        assert (summary.num_merged, summary.num_silent) == (1, 1)

    def test_states_are_resampled_too(self):
        rows = [(*row[:5], row[3]) for row in self.ROWS]
        read, _ = read_table(make_table(rows, "polars"), **NAMES, interval_s=2, resample="mean")
        np.testing.assert_allclose(read.state[0, :, 0], [8 / 3, 7], rtol=1e-6)


class TestPublicInputs:
    NAMES = NAMES | {"public": ["count", "rain"]}
    COLUMNS = (*COLUMNS, "count", "rain")
    # The state of step 2 is unknown, so that run a gives two runs; run b has no count of its own.
    ROWS = [
        ("a", 0, 1, 1.0, 1.0, 1.0, None, 0.5),
        ("a", 0, 2, 1.0, 1.0, 1.0, None, 0.5),
        ("a", 1, 1, 1.0, 1.0, 1.0, 7.0, None),
        ("a", 1, 2, 1.0, 1.0, 1.0, 7.0, None),
        ("a", 2, 1, 1.0, 1.0, None, 8.0, None),
        ("a", 3, 1, 1.0, 1.0, 1.0, None, None),
        ("a", 4, 1, 1.0, 1.0, 1.0, 9.0, 0.25),
        ("b", 0, 1, 1.0, 1.0, 1.0, None, 0.75),
        ("b", 1, 1, 1.0, 1.0, 1.0, None, None),
    ]

    def read(self, rows=ROWS, backend="polars", **changes):
        return read_table(make_table(rows, backend, self.COLUMNS), **self.NAMES | changes).trajectories

    @pytest.mark.parametrize("backend", list(MAKERS))
    def test_a_value_counts_from_the_next_step_holds_and_gets_older(self, backend):
        read = self.read(backend=backend)
        assert read.state.shape[:2] == (3, 2) and read.labels.public == ("count", "rain")
        nan = np.nan
        np.testing.assert_array_equal(read.public[..., 0], [[nan, nan], [8, 8], [nan, nan]])
        np.testing.assert_array_equal(read.public_age[..., 0], [[NEVER, NEVER], [0, 1], [NEVER, NEVER]])
        np.testing.assert_array_equal(read.public[..., 1], [[nan, 0.5], [0.5, 0.5], [nan, 0.75]])
        np.testing.assert_array_equal(read.public_age[..., 1], [[NEVER, 0], [2, 3], [NEVER, 0]])

    @given(
        st.lists(st.tuples(st.one_of(st.none(), NUMBERS), st.one_of(st.none(), NUMBERS)), min_size=1, max_size=8),
        st.sampled_from(list(MAKERS)),
        st.sampled_from(list(MAKERS)),
    )
    def test_public_inputs_come_back_with_their_gaps(self, shown, one, other):
        rows = [("a", 5 * k, i, 1.0, 2.0, k, *pair) for k, pair in enumerate(shown) for i in (3, 4)]
        read = self.read(rows, one, interval_s=5)
        # What is published during the last step is of none.
        missing = [(None, None)]
        known, rows = [*missing, *shown[:-1]], [*rows[:-2], *((*row[:6], None, None) for row in rows[-2:])]
        expected = np.array([[np.nan if value is None else value for value in pair] for pair in known], np.float32)
        held = Trajectories(read.state, read.measurements, public=expected[None])
        np.testing.assert_array_equal(read.public, held.public)
        np.testing.assert_array_equal(read.public_age, held.public_age)
        reports = [(*row[:5], float(row[5]), *row[6:]) for row in rows]
        pieces = self.read(rows, one, interval_s=5, steps=1)  # the same, cut into runs of one step
        for made in (read, pieces):
            assert sorted(rows_of(made.to_table(backend=other)), key=repr) == sorted(reports, key=repr)
        states = {(row[0], row[1], *row[5:]) for row in reports}
        assert sorted(rows_of(read.to_table("states", backend=other)), key=repr) == sorted(states, key=repr)

    def test_they_may_be_in_the_table_of_the_state(self, tmp_path):
        rows = [row for row in self.ROWS if row[0] == "a" and row[5]]
        states = self.read(rows).to_table("states")
        # The 8 was published at a step without a state, which `states` does not have, and no step of a run holds the 7.
        assert rows_of(states) == [("a", 0, 1, None, 0.5), *(("a", k, 1, None, None) for k in (1, 3, 4))]
        again, _ = read_table(make_table([row[:6] for row in rows], "pandas"), **self.NAMES, states=states)
        again.save(tmp_path / "data")
        for made in (again, Trajectories.load(tmp_path / "data")):
            np.testing.assert_array_equal(made.public[..., 1], [[np.nan, 0.5], [0.5, 0.5]])
            assert made.labels.public == ("count", "rain")

    def test_names_of_columns_are_made_up_for_those_that_were_added_since(self):
        read = self.read(public=())
        assert read.public is None and "count" not in read.to_table("states").column_names
        table = replace(read, public=np.ones((3, 2, 1))).to_table("states", backend="polars")
        np.testing.assert_array_equal(table["public_0"], [1.0, np.nan] * 3)

    def test_two_values_at_one_time_are_refused(self):
        rows = [*self.ROWS[:3], (*self.ROWS[3][:6], 4321.5, None), *self.ROWS[4:]]
        message = r"column 'count', row 3 .*be the same .* row 2 has another value; give it in a table of its own"
        with pytest.raises(ValueError, match=message) as caught:
            self.read(rows)
        assert "4321.5" not in str(caught.value)

    @pytest.mark.parametrize(
        ("public", "message"),
        [
            ("speed", "public must name columns that are not in values, state, region or sensor, got 'speed'"),
            (["count", "density"], "not in values, state, region or sensor, got 'density'"),
            ("sensor", "not in values, state, region or sensor, got 'sensor'"),
            ("wind", "public must be a column of the table, got 'wind'"),
            ("count:speed", "public must be a column of the table, got 'count:speed'"),
            (["rain", "rain"], "public must be the name of a column, or different names"),
        ],
    )
    def test_measurements_and_the_state_are_no_public_inputs(self, public, message):
        with pytest.raises(ValueError, match=message):
            self.read(public=public)

    @pytest.mark.parametrize("changes", [{"state": "mean:wind"}, {"region": {"wind": (0, 1)}}])
    def test_columns_of_which_the_state_is_computed_are_no_public_inputs(self, changes):
        frame = {"time": [0.0, 0.2], "sensor": [1, 2], "speed": [1.0, 2.0], "wind": [0.1, 0.2], "density": [3.0, 4.0]}
        names = {"time": "time", "sensor": "sensor", "values": "speed", "state": "density", "interval_s": 0.2} | changes
        with pytest.raises(ValueError, match="region or sensor, got 'wind'"):
            Trajectories.from_table(pd.DataFrame(frame), public="wind", **names)


class TestSummary:
    def test_everything_is_counted(self):
        rows = [
            *[("a", k, "s", 1.0, 1.0, 1.0) for k in range(6)],
            *[("a", k, "t", 1.0, 1.0, 1.0) for k in (5, 4, 1)],  # late twice, silent twice; s is silent once
            ("a", 1, "t", 1.0, 1.0, 1.0),  # repeated
            ("a", 1, "t", 2.0, 1.0, 1.0),  # repeated, with another value
            ("a", 6, "s", None, None, 1.0),  # empty
            ("a", 7, "s", None, 1.0, 1.0),  # incomplete
            ("a", 8, "s", 1.0, 1.0, None),  # unknown state
            ("b", 0, "s", 1.0, 1.0, 1.0),  # too short
        ]
        read, summary = read_table(make_table(rows, "polars"), **NAMES)
        assert summary == TableSummary(
            num_rows=15, num_sensors=2, num_runs=2, runs=1, steps=8, interval_s=1.0, num_repeated=2, num_differing=1,
            num_late=2, num_incomplete=2, num_empty=1, num_silent=3, num_unknown=1, num_left_out=1,
            num_without_state=2,
        )  # fmt: skip
        assert np.isnan(read.measurements[0, 7]).any(-1).sum() == 1 and read.num_partial == 1
        assert not read.present[0, 6].any()
        text = summary.to_text()
        assert text.startswith("15 rows of 2 sensors in 2 runs: 1 run of 8 steps of 1 s\n")
        assert text.count("\n") == 7 and "2 rows repeated a sensor and time; the first counts (1 had other" in text

    def test_a_clean_table_has_one_line(self, capsys):
        Trajectories.from_table(make_table(ROWS, "polars"), **NAMES)
        assert capsys.readouterr().out == "10 rows of 2 sensors in 1 run: 1 run of 5 steps of 60 s\n"
        Trajectories.from_table(make_table(ROWS, "polars"), **NAMES, quiet=True)
        assert capsys.readouterr().out == ""


def test_ids_that_are_no_numbers_are_numbered_and_the_map_is_kept():
    rows = [("a", k, sensor, 1.0, 1.0, 1.0) for k in range(3) for sensor in (0.5, 17.0, 1e300)]
    read = Trajectories.from_table(make_table(rows, "pandas"), **NAMES, quiet=True)
    assert read.labels.sensor_names == (0.5, 17.0, 1e300)
    assert sorted(read.sensors[0, 0].tolist()) == [0, 1, 2]
    read = Trajectories.from_table(make_table(ROWS, "pandas"), **NAMES, quiet=True)
    assert read.labels.sensor_names is None and sorted(read.sensors[0, 0].tolist()) == [1, 2]


class TestIdsWithoutAType:
    """A column of Python objects in pandas, as `apply` or a join makes them."""

    @staticmethod
    def read(ids):
        frame = pd.DataFrame({"t": range(len(ids)), "id": pd.Series(ids, dtype=object), "y": 1.0, "x": 2.0})
        return Trajectories.from_table(frame, time="t", sensor="id", values="y", state="x", interval_s=1, quiet=True)

    @pytest.mark.parametrize(
        ("ids", "names"),
        [
            ([True, False, True], (False, True)),
            ([np.True_, False, True], (False, True)),
            ([7, 5, 7], None),
            ([7, -5, 7], (-5, 7)),
            ([2**70, 5, 2**70], (5, 2**70)),
            ([0.5, 1.5, 0.5], (0.5, 1.5)),
            (["b", "a", "b"], ("a", "b")),
        ],
    )
    def test_ids_of_one_type_are_read_as_that_type(self, ids, names):
        read = self.read(ids)
        assert read.labels.sensor_names == names
        assert read.to_table(backend="pandas")["id"].tolist() == ids

    @pytest.mark.parametrize("ids", [["a", "b", True], ["4321", "17", 4321], [True, False, 1], [1, 2, 1.5]])
    def test_ids_of_different_types_are_refused_with_the_row(self, ids):
        with pytest.raises(ValueError, match=r"column 'id', row 2 .*same type as row 0; convert the col") as caught:
            self.read(ids)
        assert "4321" not in str(caught.value)

    def test_an_id_of_another_type_is_refused_with_the_types_that_are_read(self):
        with pytest.raises(ValueError, match="'id', row 1 .*must be text, a number, or true or false; convert the col"):
            self.read(["a", ("b", "c"), "d"])


def test_pieces_of_one_run_can_be_split_and_share_no_step():
    rows = [("a", k, 3, k, k, k) for k in range(40)] + [("b", k, 3, k, k, k) for k in range(20)]
    read, _ = read_table(make_table(rows, "polars"), **NAMES, steps=10)
    assert [tuple(origin) for origin in read.origins] == [(0, 0), (0, 10), (0, 20), (0, 30), (1, 0), (1, 10)]
    parts = read.split((0.5, 0.25, 0.25), by="run")
    held = [{row[:2] for row in rows_of(part.to_table())} for part in parts]
    assert sum(map(len, held)) == len(set().union(*held)) == 60
    assert (read.sensors != NOBODY).all()
