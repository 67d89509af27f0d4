"""The reader of vehicle trajectories: every layout gives the same rows, broken files are named by line, nobody counts
twice, and the density of a section is what a count by hand gives.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfuse
from dpfuse import cli, data
from dpfuse.data import _cache, _join
from dpfuse.data._layouts import _squeeze
from dpfuse.data._reader import find_files, read_files
from dpfuse.data.recording import clock
from dpfuse.data.summary import periods
from dpfuse.types import NOBODY

DATA = os.environ.get("DPFUSE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="DPFUSE_DATA is not set: no recordings at hand")

FOOT_M = 0.3048
START_MS = 1_118_846_980_000  # 07:49:40
ORDER = (
    "Vehicle_ID Frame_ID Total_Frames Global_Time Local_X Local_Y Global_X Global_Y v_Length v_Width v_Class v_Vel "
    "v_Acc Lane_ID Preceding Following Space_Headway Time_Headway"
).split()
READ = ("Vehicle_ID", "Frame_ID", "Global_Time", "Local_Y", "v_Vel", "Lane_ID")
ZONES = ("O_Zone", "D_Zone", "Int_ID", "Section_ID", "Direction", "Movement")
SECTION = (60.0, 160.0)


def make_traffic(duration_s=60, seed=0) -> list[dict]:
    """Rows of vehicles that enter lanes 1, 2 and 6 every three seconds and drive 250 m; nobody is there at first."""
    rng = np.random.default_rng(seed)
    rows, vehicle = [], 0
    for entry in np.arange(0, 10 * duration_s, 30):
        for lane in (1, 2, 6):
            vehicle += 1
            speed = rng.uniform(36, 44)  # feet a second
            for frame in range(int(entry), 10 * duration_s):
                feet = 10.0 + speed * (frame - entry) / 10
                if feet > 250 / FOOT_M:
                    break
                rows.append(row(vehicle, frame, feet, speed, lane))
    return rows


def row(vehicle, frame, feet, speed, lane, origin_ms=START_MS) -> dict:
    values = vehicle, frame, origin_ms + 100 * frame, round(feet, 3), round(speed, 2), lane
    return dict(zip(READ, values, strict=True))


def fields(each: dict, names) -> list[str]:
    return [str(each.get(name, "7.5")) for name in names]


def write_text(path, rows, blank="   ", end="\n"):
    lines = [blank + blank.join(fields(each, ORDER)) + blank for each in rows]
    path.write_bytes(end.join([*lines, ""]).encode())


def write_csv(path, rows, names=ORDER, spelling=str.lower, bom=b"", quoted=False, site=None, end="\n"):
    header = ",".join(spelling(name) for name in [*names, *(["Location"] if site else [])])
    lines = []
    for each in rows:
        values = fields(each, names)
        if quoted:
            values = [f'"{float(value):,.3f}"' for value in values]
        lines.append(",".join(values + ([each.get("site", site)] if site else [])))
    path.write_bytes(bom + end.join([header, *lines, ""]).encode())


def write_parquet(path, rows, as_text=False, spelling=str):
    columns = {spelling(name): [each[name] for each in rows] for name in READ}
    table = pa.table({name: list(map(str, column)) if as_text else column for name, column in columns.items()})
    pa.parquet.write_table(table, path, row_group_size=1000)


ELSEWHERE = [row(1, frame, 5.0, 1.0, 1, origin_ms=1_163_000_000) | {"site": "peachtree"} for frame in range(5)]
LAYOUTS = {
    "blanks.txt": write_text,
    "tabs.txt": lambda path, rows: write_text(path, rows, blank="\t", end="\r\n"),
    "lower.csv": write_csv,
    "mixed.csv": lambda path, rows: write_csv(path, rows, spelling=str, bom=codecs.BOM_UTF8, end="\r\n"),
    "thousands.csv": lambda path, rows: write_csv(path, rows, quoted=True),
    "zones.csv": lambda path, rows: write_csv(path, rows, names=[*ORDER[:14], *ZONES, *ORDER[14:]]),
    "all-sites.csv": lambda path, rows: write_csv(path, [*rows, *ELSEWHERE], site="us-101"),
    "SHOUTED.CSV": lambda path, rows: write_csv(path, rows, spelling=str.upper, site="US-101"),
    "numbers.parquet": write_parquet,
    "text.parquet": lambda path, rows: write_parquet(path, rows, as_text=True, spelling=str.lower),
}


@pytest.fixture(scope="module")
def traffic():
    return make_traffic()


@pytest.fixture(scope="module")
def recording(traffic, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic")
    write_parquet(folder / "period.parquet", traffic)
    return data.read(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No test reads copies that another one left."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dpfuse"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def columns_of(recording, with_ids=True):
    """All sightings in one order."""
    order = np.lexsort((recording.position, recording.lane, recording.tick))
    names = ("vehicle", "tick", "lane", "position", "speed")[0 if with_ids else 1 :]
    return [getattr(recording, name)[order] for name in names]


def assert_same(one, other, with_ids=True):
    for ours, theirs in zip(columns_of(one, with_ids), columns_of(other, with_ids), strict=True):
        np.testing.assert_array_equal(ours, theirs)


class TestLayouts:
    @pytest.mark.parametrize("name", LAYOUTS)
    def test_every_layout_gives_the_same_rows(self, name, traffic, recording, folder):
        LAYOUTS[name](folder / name, traffic)
        read = data.read(folder)
        assert_same(read, recording)
        (file,) = read.files
        assert (file.num_rows, file.num_duplicates) == (len(traffic), 0)
        assert file.num_elsewhere == (len(ELSEWHERE) if name == "all-sites.csv" else 0)

    def test_units_are_si(self, folder):
        write_csv(folder / "one.csv", [row(5, 18, 79.153, 40.0, 4)])
        read = data.read(folder)
        assert read.vehicle.tolist() == [1_000_005]
        assert read.tick.tolist() == [(START_MS + 1800) // 100]
        assert read.lane.tolist() == [4]
        assert read.position[0] == pytest.approx(79.153 * 0.3048, rel=1e-6)
        assert read.speed[0] == pytest.approx(12.192, rel=1e-6)

    def test_blank_lines_and_a_missing_last_line_break_are_harmless(self, traffic, recording, folder):
        write_csv(folder / "a.csv", traffic)
        text = (folder / "a.csv").read_bytes()
        (folder / "a.csv").write_bytes(text.replace(b"\n", b"\n\n", 3).rstrip())
        assert_same(data.read(folder), recording)

    def test_what_is_no_recording_is_passed_over_and_named(self, traffic, recording, folder):
        write_parquet(folder / "period.parquet", traffic)
        (folder / "README.txt").write_text("These are the trajectories.\n")
        (folder / "paper.pdf").write_bytes(b"%PDF")
        pa.parquet.write_table(pa.table({"density": [1.0]}), folder / "field.parquet")
        read = data.read(folder)
        assert_same(read, recording)
        assert [path.name for path in read.passed_over] == ["README.txt", "field.parquet", "paper.pdf"]

    def test_a_folder_above_and_a_single_file_will_do(self, traffic, recording, folder, monkeypatch):
        (folder / "us101").mkdir()
        write_parquet(folder / "us101" / "period.parquet", traffic)
        assert_same(data.read(folder), recording)
        assert_same(data.read(folder / "us101" / "period.parquet"), recording)
        monkeypatch.setenv("DPFUSE_DATA", str(folder))
        assert_same(data.read(), recording)

    @given(st.lists(st.lists(st.sampled_from(["1", "-2.5", "1118"]), min_size=1), min_size=1), st.data())
    def test_blanks_are_squeezed_and_nothing_else(self, lines, draw):
        blanks = st.text(" \t", min_size=1, max_size=9)
        text = "".join(
            draw.draw(st.text(" \t", max_size=3)) + "".join(word + draw.draw(blanks) for word in line) + "\r\n"
            for line in lines
        )
        assert _squeeze(text.encode()).decode().split("\n") == [*map(" ".join, lines), ""]


def broken(path, traffic, number, change):
    """Write the traffic as CSV with one line changed."""
    write_csv(path, traffic, site="us-101")
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"\n".join(lines))


def put(column, value):
    def change(line):
        values = line.split(b",")
        values[[*ORDER, "Location"].index(column)] = value
        return b",".join(values)

    return change


BROKEN = {
    "a word for a number": (
        put("Local_Y", b"far"),
        "local_y must be a position in feet from -1000 to 10000, got 'far'",
    ),
    "nothing": (put("v_Vel", b""), "v_vel must be a speed in feet per second from 0 to 300, got ''"),
    "not a number": (put("v_Vel", b"nan"), "v_vel must be a speed .*, got 'nan'"),
    "too large": (put("Local_Y", b"1e30"), "local_y must be .*, got '1e30'"),
    "a part of a vehicle": (put("Vehicle_ID", b"2.5"), "vehicle_id must be a whole number from 0 to 999999, got '2.5'"),
    "below zero": (put("Frame_ID", b"-3"), "frame_id must be a whole number of 0 or more, got '-3'"),
    "another lane": (put("Lane_ID", b"100"), "lane_id must be a lane from 0 to 99, got '100'"),
    "another day": (
        put("Global_Time", b"1113433136100"),
        "global_time must be a time in ms on the morning of 15 June 2005, got '1113433136100'",
    ),
    "another place": (
        put("Location", b"us-1O1"),
        "location must be one of us-101, i-80, lankershim, peachtree, got 'us-1O1'",
    ),
    "cut short": (lambda line: line[:20], "must have 19 columns, got 4"),
    "a column more": (lambda line: line + b",7", "must have 19 columns, got 20"),
    "no text": (put("Local_Y", b"\xff\xfe"), "local_y must be .*, got '��'"),
}


class TestBrokenFiles:
    @pytest.mark.parametrize("case", BROKEN)
    @pytest.mark.parametrize("number", [2, 4321])
    def test_the_line_is_named(self, case, number, traffic, folder):
        change, message = BROKEN[case]
        broken(folder / "a.csv", traffic, number, change)
        with pytest.raises(dpfuse.FileRefused, match=f"^{re.escape(str(folder))}/a.csv, line {number}: {message}$"):
            data.read(folder)

    def test_blank_lines_count_as_lines(self, traffic, folder):
        broken(folder / "a.csv", traffic, 50, put("v_Vel", b"x"))
        (folder / "a.csv").write_bytes((folder / "a.csv").read_bytes().replace(b"\n", b"\n\n", 1))
        with pytest.raises(dpfuse.FileRefused, match="a.csv, line 51: v_vel"):
            data.read(folder)

    def test_far_into_a_file_of_many_blocks(self, traffic, folder, monkeypatch):
        monkeypatch.setattr("dpfuse.data._layouts._BLOCK_BYTES", 4096)
        broken(folder / "a.csv", traffic, 7000, put("v_Vel", b"x"))
        with pytest.raises(dpfuse.FileRefused, match="a.csv, line 7000: v_vel"):
            data.read(folder)

    def test_text_that_stops_in_a_line(self, traffic, folder):
        write_text(folder / "a.txt", traffic[:100])
        text = (folder / "a.txt").read_bytes()
        (folder / "a.txt").write_bytes(text[:-60])
        with pytest.raises(dpfuse.FileRefused, match=r"a.txt, line 100: must have 18 columns, got \d+"):
            data.read(folder)

    def test_text_with_another_number_of_columns(self, folder):
        (folder / "a.txt").write_text("1 2 3\n")
        with pytest.raises(dpfuse.FileRefused, match="line 1: a file without a header must have 18 columns, got 3"):
            data.read(folder)

    def test_a_header_without_a_column(self, traffic, folder):
        write_csv(folder / "a.csv", traffic[:3], names=[name for name in ORDER if name not in ("v_Vel", "Lane_ID")])
        with pytest.raises(dpfuse.FileRefused, match="line 1: the columns v_vel, lane_id are missing"):
            data.read(folder)

    def test_a_parquet_row_is_named(self, traffic, folder):
        rows = [dict(each) for each in traffic]
        rows[1234]["Local_Y"] = None
        write_parquet(folder / "a.parquet", rows)
        with pytest.raises(dpfuse.FileRefused, match="a.parquet, row 1235: local_y must be .*, got 'None'"):
            data.read(folder)

    @pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
    def test_parquet_cut_short(self, keep, traffic, folder):
        write_parquet(folder / "a.parquet", traffic)
        content = (folder / "a.parquet").read_bytes()
        (folder / "a.parquet").write_bytes(content[: keep if keep in (0, 100) else int(keep * len(content))])
        with pytest.raises(dpfuse.FileRefused, match="a.parquet is not a Parquet file"):
            data.read(folder)

    def test_parquet_with_damage_inside(self, traffic, folder):
        write_parquet(folder / "a.parquet", traffic)
        content = bytearray((folder / "a.parquet").read_bytes())
        content[100:2000] = bytes(1900)
        (folder / "a.parquet").write_bytes(content)
        with pytest.raises(dpfuse.FileRefused, match="a.parquet cannot be read"):
            data.read(folder)

    @pytest.mark.parametrize("name", ["a.csv", "a.txt"])
    def test_empty(self, name, folder):
        (folder / name).touch()
        with pytest.raises(dpfuse.FileRefused, match=f"{name} is empty; fetch it again"):
            data.read(folder)

    def test_a_header_alone(self, folder):
        write_csv(folder / "a.csv", [])
        with pytest.raises(dpfuse.FileRefused, match="a.csv (has no rows|cannot be read: Empty CSV file)"):
            data.read(folder)

    def test_nothing_there(self, folder, monkeypatch):
        with pytest.raises(dpfuse.DatasetMissing, match="no vehicle trajectories in .*; docs/data.md says where"):
            data.read(folder)
        with pytest.raises(dpfuse.DatasetMissing, match="no folder or file at .*nowhere"):
            data.read(folder / "nowhere")
        monkeypatch.delenv("DPFUSE_DATA", raising=False)
        with pytest.raises(dpfuse.DatasetMissing, match="set the environment variable DPFUSE_DATA"):
            data.read()

    def test_only_other_sites(self, folder):
        write_csv(folder / "a.csv", ELSEWHERE, site="peachtree")
        with pytest.raises(dpfuse.DatasetMissing, match="no row of us-101 in .*a.csv"):
            data.read(folder)

    def test_without_pyarrow(self, folder, monkeypatch):
        write_csv(folder / "a.csv", ELSEWHERE, site="us-101")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(dpfuse.MissingExtra, match=re.escape("pip install 'dpfuse[data]'")):
            data.read(folder)


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


class TestNobodyCountsTwice:
    def test_rows_that_stand_twice(self, traffic, recording, folder):
        rows = traffic + traffic[100:200] + traffic[150:160]
        rows[-1] = rows[-1] | {"v_Vel": 1.0}
        write_csv(folder / "a.csv", rows)
        read = data.read(folder)
        assert_same(read, recording)
        (file,) = read.files
        assert (file.num_rows, file.num_duplicates, file.num_conflicts) == (len(rows), 110, 1)

    @given(st.integers(0, 2**32 - 1))
    def test_rows_in_any_order(self, traffic, recording, tmp_path_factory, seed):
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
    def test_periods_that_overlap(self, traffic, recording, folder, shift_feet, in_one_file):
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

    def test_vehicles_side_by_side_are_two(self, traffic, recording, folder):
        """Negative control: the same places on other lanes, and a lane-length away."""
        first, second = two_periods(traffic, cut_s=25, overlap_s=10)
        write_csv(folder / "a.csv", first)
        write_csv(folder / "b.csv", [each | {"Lane_ID": each["Lane_ID"] + 2} for each in second])
        assert data.read(folder).num_seen_twice == 0
        write_csv(folder / "b.csv", [each | {"Local_Y": each["Local_Y"] + 10} for each in second])
        assert data.read(folder).num_seen_twice == 0

    def test_a_period_twice_in_two_layouts(self, traffic, recording, folder):
        write_csv(folder / "a.csv", traffic)
        write_text(folder / "a.txt", traffic)
        write_parquet(folder / "a.parquet", traffic)
        read = data.read(folder)
        assert_same(read, recording)
        assert read.num_seen_twice == 2 * recording.num_vehicles

    def test_two_tellings_of_one_period_are_refused(self, traffic, folder, monkeypatch):
        monkeypatch.setattr(_join, "_LONG_OVERLAP_TICKS", 300)
        write_csv(folder / "a.csv", traffic)
        write_csv(folder / "b.csv", [each | {"Local_Y": each["Local_Y"] + 12} for each in traffic])
        with pytest.raises(dpfuse.FileRefused, match="a.csv and .*b.csv both cover 60 s but see different vehicles"):
            data.read(folder)


class TestCompactCopies:
    def test_the_second_time_a_copy_is_read(self, traffic, recording, folder, cache):
        write_csv(folder / "a.csv", [*traffic, traffic[5], *ELSEWHERE], site="us-101")
        first, second = data.read(folder), data.read(folder)
        assert [read.files[0].from_cache for read in (first, second)] == [False, True]
        assert_same(first, recording)
        assert_same(second, recording)
        counted = [(f.num_rows, f.num_duplicates, f.num_elsewhere) for f in (first.files[0], second.files[0])]
        assert counted == [(len(traffic) + 1, 1, len(ELSEWHERE))] * 2
        (copy,) = cache.iterdir()
        assert copy.stat().st_size < (folder / "a.csv").stat().st_size / 4

    def test_a_folder_of_ones_own(self, traffic, folder, cache, tmp_path):
        write_csv(folder / "a.csv", traffic)
        data.read(folder, cache=tmp_path / "mine")
        assert data.read(folder, cache=tmp_path / "mine").files[0].from_cache
        assert not cache.exists()

    def test_a_file_that_changed_is_read_again(self, traffic, folder):
        path = folder / "a.csv"
        write_csv(path, traffic)
        status = path.stat()
        data.read(folder)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert not data.read(folder).files[0].from_cache  # another time
        write_csv(path, traffic[:-1])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        assert len(data.read(folder).vehicle) == len(traffic) - 1  # the same time, another size

    def test_another_reader_reads_again(self, traffic, folder, monkeypatch):
        write_csv(folder / "a.csv", traffic)
        data.read(folder)
        monkeypatch.setattr(_cache, "READER_VERSION", _cache.READER_VERSION + 1)
        assert not data.read(folder).files[0].from_cache
        assert data.read(folder).files[0].from_cache

    @pytest.mark.parametrize("damage", [b"", b"nonsense", None])
    def test_a_damaged_copy_is_replaced(self, damage, traffic, recording, folder, cache):
        write_csv(folder / "a.csv", traffic)
        data.read(folder)
        (copy,) = cache.iterdir()
        copy.write_bytes(copy.read_bytes()[:-1000] if damage is None else damage)
        read = data.read(folder)
        assert not read.files[0].from_cache
        assert_same(read, recording)
        assert data.read(folder).files[0].from_cache

    def test_a_folder_that_cannot_be_written_to(self, traffic, recording, folder, tmp_path):
        write_csv(folder / "a.csv", traffic)
        (tmp_path / "file").touch()
        assert_same(data.read(folder, cache=tmp_path / "file"), recording)

    def test_a_broken_file_leaves_no_copy(self, traffic, folder, cache):
        broken(folder / "a.csv", traffic, 9, put("v_Vel", b"x"))
        with pytest.raises(dpfuse.FileRefused):
            data.read(folder)
        assert not cache.exists()


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

    def test_the_run_covers_the_time_when_the_section_is_full(self, recording):
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

    def test_us101_is_read_and_cut_in_one(self, traffic, recording, folder):
        write_csv(folder / "a.csv", traffic)
        run = data.us101(folder, section=SECTION, interval_s=0.5)
        np.testing.assert_array_equal(run.state, recording.trajectories(SECTION, 0.5).state)
        assert run.sample_sensors(0.5, seed=0).num_slots < run.num_slots

    def test_a_missing_period_is_an_error(self, traffic, folder):
        write_csv(folder / "a.csv", [each for each in traffic if not 300 <= each["Frame_ID"] < 330])
        with pytest.raises(ValueError, match="nobody is seen for 3 s after 07:50:09; add the file of the period"):
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
    def test_sections_that_are_refused(self, recording, section, error, message):
        with pytest.raises(error, match=message):
            recording.trajectories(section)

    @pytest.mark.parametrize("interval_s", [0.25, 0.05, 1e-12])
    def test_intervals_that_are_refused(self, recording, interval_s):
        with pytest.raises(ValueError, match="interval_s must be a multiple of 0.1"):
            recording.trajectories(SECTION, interval_s)

    def test_too_short_a_recording(self, traffic, folder):
        rows = [each for each in traffic if each["Frame_ID"] < 200]
        late = [each for each in rows if each["Local_Y"] > 300 or each["Frame_ID"] < 100]
        write_csv(folder / "a.csv", late)
        with pytest.raises(ValueError, match="it lasts 20 s; read more files or take a shorter section"):
            data.us101(folder, section=SECTION)

    def test_other_lanes_alone(self, traffic, folder):
        write_csv(folder / "a.csv", [each for each in traffic if each["Lane_ID"] == 6])
        with pytest.raises(ValueError, match="must have vehicles on lanes 1 to 5"):
            data.us101(folder, section=SECTION)


def test_periods_start_with_the_clock(recording):
    first, last = recording.seen_in_full(SECTION)
    run = recording.trajectories(SECTION)
    early, late, all_of_it = periods(run, first)
    assert [early.name, late.name, all_of_it.name] == ["07:35-07:50", "07:50-08:05", "all"]
    assert clock(START_MS // 100) == "07:49:40" and clock(last) == "07:50:39"
    steps = (11_188_470_000 - first + 1) // 2
    assert late.density_mean == pytest.approx(run.state[0, steps:].mean(), rel=1e-6)
    assert all_of_it.density_mean == pytest.approx(run.state.mean(), rel=1e-6)
    assert all_of_it.speed_mps == pytest.approx(run.measurements[..., 1][run.present].mean(), rel=1e-5)
    assert all_of_it.flow_per_h == pytest.approx(all_of_it.density_mean * all_of_it.speed_mps * 3.6)
    assert all_of_it.num_vehicles == len(np.unique(run.sensors[run.present]))


def test_progress_is_shown_on_stderr_only(traffic, folder, capsys):
    write_csv(folder / "a.csv", traffic)
    data.read(folder, progress=True)
    assert "a.csv" in (shown := capsys.readouterr()).err and shown.out == ""
    data.read(folder)
    assert capsys.readouterr() == ("", "")


# Not ru_maxrss: it starts from that of the process which started this one.
PEAK = """
import re, sys
from pathlib import Path
from dpfuse import data
data.us101(sys.argv[1], section=(float(sys.argv[2]), float(sys.argv[3])))
print(int(re.search("VmHWM:\\\\s+([0-9]+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")


def peak_mb(path, section) -> int:
    """Peak memory of reading, in a process of its own."""
    command = [sys.executable, "-c", PEAK, str(path), *map(str, section)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@needs_proc
@pytest.mark.slow
def test_memory_does_not_grow_with_the_other_sites(traffic, folder):
    path = folder / "a.csv"
    write_csv(path, traffic, site="us-101")
    small = peak_mb(path, SECTION)
    elsewhere = (",".join(fields(ELSEWHERE[0], ORDER)) + ",i-80\n").encode() * 10_000
    with path.open("ab") as file:
        for _ in range(400):
            file.write(elsewhere)
    assert path.stat().st_size > 300e6
    large = peak_mb(path, SECTION)
    assert 50 < large < small + 200, (small, large)


@pytest.fixture(scope="module")
def us101():
    return data.read(DATA)


@needs_data
class TestFilesAtHand:
    # The README beside the files; its table was made from the measured field, not from the trajectories.
    DENSITY = {"07:50-08:05": 202.8, "08:05-08:20": 236.8, "08:20-08:35": 255.5, "all": 231.7}

    def test_densities_are_those_of_the_field(self, us101):
        run = us101.trajectories()
        found = {period.name: period for period in periods(run, us101.seen_in_full()[0])}
        assert {name: period.density_mean for name, period in found.items()} == pytest.approx(self.DENSITY, rel=0.01)
        assert found["all"].density_std == pytest.approx(45.7, rel=0.02)
        assert run.state.shape[1] * 0.2 > 2600
        assert run.sample_sensors(0.3, seed=0).present.sum(-1).mean() == pytest.approx(28, abs=1.5)

    def test_nothing_is_lost(self, us101):
        assert sum(file.num_rows for file in us101.files) == len(us101.vehicle)
        tables = [pa.parquet.read_table(file.path) for file in us101.files]
        assert us101.num_vehicles == sum(len(table["Vehicle_ID"].unique()) for table in tables)
        for file, table, million in zip(us101.files, tables, (1, 2, 3), strict=True):
            own = us101.vehicle // 1_000_000 == million
            feet = table["Local_Y"].to_numpy().astype(np.float64)
            np.testing.assert_allclose(us101.position[own], feet * FOOT_M, rtol=1e-6, err_msg=str(file.path))

    @needs_proc
    def test_memory(self):
        assert peak_mb(DATA, (120, 520)) < 1000

    def test_published_lines(self):
        read = data.read(Path(DATA, "ngsim_format", "us101_lines.csv"))
        assert len(read.vehicle) == read.files[0].num_rows == 22
        assert {1_000_005} <= set(read.vehicle.tolist())

    def test_published_lines_of_another_site(self):
        path = Path(DATA, "ngsim_format", "peachtree_lines.csv")
        with pytest.raises(dpfuse.DatasetMissing, match="no row of us-101"):
            data.read(path)

    def test_published_lines_with_thousands(self, folder):
        """As if they were of US-101: separators, byte-order mark and spelling are those of the file."""
        text = Path(DATA, "ngsim_format", "peachtree_lines.csv").read_bytes()
        moved = text.replace(b",peachtree", b",us-101").replace(b",1163", b",1118847")
        (folder / "a.csv").write_bytes(moved)
        found, _ = find_files(folder)
        (file,), (rows,) = read_files(found, None, progress=False)
        lines = list(csv.DictReader(io.StringIO(moved.decode("utf-8-sig"))))
        assert any("," in line["Total_Frames"] for line in lines)
        assert (file.num_rows, file.num_duplicates) == (len(lines), 0)
        feet = {
            (int(line["Vehicle_ID"]), int(line["Frame_ID"]), int(line["Global_Time"])): float(line["Local_Y"])
            for line in lines
        }
        read = dict(zip(zip(*(column.tolist() for column in rows[:3]), strict=True), rows.position, strict=True))
        assert read == pytest.approx({key: value * FOOT_M for key, value in feet.items()}, rel=1e-6, abs=1e-6)
        # Two periods of this site share numbers and the clock: only the frames tell them apart.
        assert len({key[::2] for key in read}) < len(read) == len(lines)


@pytest.fixture
def run(capsys, monkeypatch):
    """Run the command as the shell would: arguments in, exit code, stdout and stderr out."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpfuse", "data", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        return code, *capsys.readouterr()

    return call


class TestCommand:
    SECTION = ("--section", *SECTION)

    def test_says_what_was_found_and_plots_it(self, run, traffic, folder, tmp_path):
        write_csv(folder / "a.csv", [*traffic, traffic[7] | {"v_Vel": 1.0}, *ELSEWHERE], site="us-101")
        (folder / "notes.txt").write_text("notes\n")
        code, out, err = run("us101", "--data", folder, *self.SECTION, "--out", tmp_path / "out")
        assert code == 0 and "a.csv" in err
        for said in ("60 vehicles from 07:49:40 to 07:50:39", "notes.txt holds no vehicle trajectories", "all"):
            assert said in out
        assert "1 duplicates disagree" in out and "5 rows of other sites were left out" in out
        for name in ("density.png", "space-time.png"):
            assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")

    def test_one_json_object_and_a_file_to_train_on(self, run, traffic, recording, folder, tmp_path, monkeypatch):
        write_parquet(folder / "a.parquet", traffic)
        monkeypatch.setenv("DPFUSE_DATA", str(folder))
        saved = tmp_path / "run.dpfuse-data"
        arguments = (*self.SECTION, "--out", tmp_path, "--save", saved, "--share", 0.5, "--interval", 0.1, "--json")
        code, out, err = run("us101", *arguments)
        assert (code, err) == (0, "")
        answer = json.loads(out)
        assert (answer["vehicles"], answer["sightings"]) == (60, len(traffic))
        written = dpfuse.Trajectories.load(saved)
        whole = recording.trajectories(SECTION, 0.1)
        np.testing.assert_array_equal(written.state, whole.state)
        assert answer["periods"][-1]["density_mean"] == pytest.approx(whole.state.mean(), rel=1e-6)
        assert 0 < written.present.sum() < 0.8 * whole.present.sum()
        code, _, err = run("us101", *arguments)
        assert code == 2 and "exists; give --force" in err
        assert run("us101", *arguments, "--force")[0] == 0

    def test_errors_are_one_line(self, run, traffic, folder, tmp_path):
        broken(folder / "a.csv", traffic, 5, put("v_Vel", b"x"))
        code, out, err = run("us101", "--data", folder, "--out", tmp_path, "--json")
        assert (code, out) == (1, "") and err.count("\n") == 1 and "a.csv, line 5: v_vel" in err
        code, _, err = run("us101", "--data", folder / "nowhere", "--json")
        assert code == 1 and "no folder or file at" in err
