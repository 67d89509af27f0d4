"""The reader of vehicle trajectories: every layout gives the same rows, and errors name the file and line."""

from __future__ import annotations

import os
import re
import sys

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpfuse
from dpfuse import data
from dpfuse.data import _cache
from dpfuse.data._layouts import _squeeze
from support.ngsim import (
    ELSEWHERE,
    LAYOUTS,
    ORDER,
    START_MS,
    assert_same,
    put,
    row,
    write_broken,
    write_csv,
    write_parquet,
    write_text,
)


class TestLayouts:
    @pytest.mark.parametrize("name", LAYOUTS)
    def test_every_layout_gives_the_same_rows(self, name, traffic, recording, folder):
        LAYOUTS[name](folder / name, traffic)
        read = data.read(folder)
        assert_same(read, recording)
        (file,) = read.files
        assert (file.num_rows, file.num_duplicates) == (len(traffic), 0)
        assert file.num_elsewhere == (len(ELSEWHERE) if name == "all-sites.csv" else 0)

    def test_feet_become_metres(self, folder):
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

    def test_files_without_trajectories_are_passed_over_and_named(self, traffic, recording, folder):
        write_parquet(folder / "period.parquet", traffic)
        (folder / "README.txt").write_text("These are the trajectories.\n")
        (folder / "paper.pdf").write_bytes(b"%PDF")
        pa.parquet.write_table(pa.table({"density": [1.0]}), folder / "field.parquet")
        read = data.read(folder)
        assert_same(read, recording)
        assert [path.name for path in read.passed_over] == ["README.txt", "field.parquet", "paper.pdf"]

    def test_the_parent_folder_and_a_single_file_are_accepted(self, traffic, recording, folder, monkeypatch):
        (folder / "us101").mkdir()
        write_parquet(folder / "us101" / "period.parquet", traffic)
        assert_same(data.read(folder), recording)
        assert_same(data.read(folder / "us101" / "period.parquet"), recording)
        monkeypatch.setenv("DPFUSE_DATA", str(folder))
        assert_same(data.read(), recording)

    @given(st.lists(st.lists(st.sampled_from(["1", "-2.5", "1118"]), min_size=1), min_size=1), st.data())
    def test_only_blanks_are_squeezed(self, lines, draw):
        blanks = st.text(" \t", min_size=1, max_size=9)
        text = "".join(
            draw.draw(st.text(" \t", max_size=3)) + "".join(word + draw.draw(blanks) for word in line) + "\r\n"
            for line in lines
        )
        assert _squeeze(text.encode()).decode().split("\n") == [*map(" ".join, lines), ""]


BROKEN = {
    "a word for a number": (
        put("Local_Y", b"far"),
        "local_y must be a position in feet from -1000 to 10000",
    ),
    "nothing": (put("v_Vel", b""), "v_vel must be a speed in feet per second from 0 to 300"),
    "not a number": (put("v_Vel", b"nan"), "v_vel must be a speed .*"),
    "too large": (put("Local_Y", b"1e30"), "local_y must be .*"),
    "a part of a vehicle": (put("Vehicle_ID", b"2.5"), "vehicle_id must be a whole number from 0 to 999999"),
    "below zero": (put("Frame_ID", b"-3"), "frame_id must be a whole number of 0 or more"),
    "another lane": (put("Lane_ID", b"100"), "lane_id must be a lane from 0 to 99"),
    "another day": (
        put("Global_Time", b"1113433136100"),
        "global_time must be a time in ms on the morning of 15 June 2005",
    ),
    "another place": (
        put("Location", b"us-1O1"),
        "location must be one of us-101, i-80, lankershim, peachtree",
    ),
    "cut short": (lambda line: line[:20], "must have 19 columns, got 4"),
    "a column more": (lambda line: line + b",7", "must have 19 columns, got 20"),
    "no text": (put("Local_Y", b"\xff\xfe"), "local_y must be .*"),
}


class TestBrokenFiles:
    @pytest.mark.parametrize("case", BROKEN)
    @pytest.mark.parametrize("number", [2, 4321])
    def test_the_wrong_line_is_named(self, case, number, traffic, folder):
        change, message = BROKEN[case]
        write_broken(folder / "a.csv", traffic, number, change)
        with pytest.raises(dpfuse.FileRefused, match=f"^{re.escape(str(folder))}/a.csv, line {number}: {message}$"):
            data.read(folder)

    def test_blank_lines_count_as_lines(self, traffic, folder):
        write_broken(folder / "a.csv", traffic, 50, put("v_Vel", b"x"))
        (folder / "a.csv").write_bytes((folder / "a.csv").read_bytes().replace(b"\n", b"\n\n", 1))
        with pytest.raises(dpfuse.FileRefused, match="a.csv, line 51: v_vel"):
            data.read(folder)

    def test_a_wrong_line_is_named_far_into_a_file_of_many_blocks(self, traffic, folder, monkeypatch):
        monkeypatch.setattr("dpfuse.data._layouts._BLOCK_BYTES", 4096)
        write_broken(folder / "a.csv", traffic, 7000, put("v_Vel", b"x"))
        with pytest.raises(dpfuse.FileRefused, match="a.csv, line 7000: v_vel"):
            data.read(folder)

    def test_text_that_ends_within_a_line_is_refused(self, traffic, folder):
        write_text(folder / "a.txt", traffic[:100])
        text = (folder / "a.txt").read_bytes()
        (folder / "a.txt").write_bytes(text[:-60])
        with pytest.raises(dpfuse.FileRefused, match=r"a.txt, line 100: must have 18 columns, got \d+"):
            data.read(folder)

    def test_text_with_another_number_of_columns_is_refused(self, folder):
        (folder / "a.txt").write_text("1 2 3\n")
        with pytest.raises(
            dpfuse.FileRefused, match="line 1: a file without a header must have 18 or 24 columns, got 3"
        ):
            data.read(folder)

    def test_missing_columns_of_a_header_are_named(self, traffic, folder):
        write_csv(folder / "a.csv", traffic[:3], names=[name for name in ORDER if name not in ("v_Vel", "Lane_ID")])
        with pytest.raises(dpfuse.FileRefused, match="line 1: the columns v_vel, lane_id are missing"):
            data.read(folder)

    def test_a_wrong_parquet_row_is_named(self, traffic, folder):
        rows = [dict(each) for each in traffic]
        rows[1234]["Local_Y"] = None
        write_parquet(folder / "a.parquet", rows)
        with pytest.raises(dpfuse.FileRefused, match="a.parquet, row 1235: local_y must be .*"):
            data.read(folder)

    @pytest.mark.parametrize("keep", [0, 100, 0.5, 0.99])
    def test_a_truncated_parquet_file_is_refused(self, keep, traffic, folder):
        write_parquet(folder / "a.parquet", traffic)
        content = (folder / "a.parquet").read_bytes()
        (folder / "a.parquet").write_bytes(content[: keep if keep in (0, 100) else int(keep * len(content))])
        with pytest.raises(dpfuse.FileRefused, match="a.parquet is not a Parquet file"):
            data.read(folder)

    def test_a_damaged_parquet_file_is_refused(self, traffic, folder):
        write_parquet(folder / "a.parquet", traffic)
        content = bytearray((folder / "a.parquet").read_bytes())
        content[100:2000] = bytes(1900)
        (folder / "a.parquet").write_bytes(content)
        with pytest.raises(dpfuse.FileRefused, match="a.parquet cannot be read"):
            data.read(folder)

    @pytest.mark.parametrize("name", ["a.csv", "a.txt"])
    def test_an_empty_file_is_refused(self, name, folder):
        (folder / name).touch()
        with pytest.raises(dpfuse.FileRefused, match=f"{name} is empty; fetch it again"):
            data.read(folder)

    def test_a_header_without_rows_is_refused(self, folder):
        write_csv(folder / "a.csv", [])
        with pytest.raises(dpfuse.FileRefused, match="a.csv (has no rows|cannot be read: Empty CSV file)"):
            data.read(folder)

    def test_a_folder_without_files_or_a_missing_folder_is_refused(self, folder, monkeypatch):
        with pytest.raises(dpfuse.DatasetMissing, match="no vehicle trajectories in .*; docs/data.md says where"):
            data.read(folder)
        with pytest.raises(dpfuse.DatasetMissing, match="no folder or file at .*nowhere"):
            data.read(folder / "nowhere")
        monkeypatch.delenv("DPFUSE_DATA", raising=False)
        with pytest.raises(dpfuse.DatasetMissing, match="set the environment variable DPFUSE_DATA"):
            data.read()

    def test_a_file_with_other_sites_only_is_refused(self, folder):
        write_csv(folder / "a.csv", ELSEWHERE, site="peachtree")
        with pytest.raises(dpfuse.DatasetMissing, match="no row of us-101 in .*a.csv"):
            data.read(folder)

    def test_a_missing_pyarrow_is_named_with_its_pip_line(self, folder, monkeypatch):
        write_csv(folder / "a.csv", ELSEWHERE, site="us-101")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(dpfuse.MissingExtra, match=re.escape("pip install 'dpfuse[data]'")):
            data.read(folder)


class TestCompactCopies:
    def test_the_second_read_uses_the_copy(self, traffic, recording, folder, cache):
        write_csv(folder / "a.csv", [*traffic, traffic[5], *ELSEWHERE], site="us-101")
        first, second = data.read(folder), data.read(folder)
        assert [read.files[0].from_cache for read in (first, second)] == [False, True]
        assert_same(first, recording)
        assert_same(second, recording)
        counted = [(f.num_rows, f.num_duplicates, f.num_elsewhere) for f in (first.files[0], second.files[0])]
        assert counted == [(len(traffic) + 1, 1, len(ELSEWHERE))] * 2
        (copy,) = cache.iterdir()
        assert copy.stat().st_size < (folder / "a.csv").stat().st_size / 4

    def test_the_cache_folder_can_be_chosen(self, traffic, folder, cache, tmp_path):
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

    def test_a_new_reader_version_reads_the_file_again(self, traffic, folder, monkeypatch):
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

    def test_a_cache_folder_that_cannot_be_written_to_is_ignored(self, traffic, recording, folder, tmp_path):
        write_csv(folder / "a.csv", traffic)
        (tmp_path / "file").touch()
        assert_same(data.read(folder, cache=tmp_path / "file"), recording)

    def test_a_broken_file_leaves_no_copy(self, traffic, folder, cache):
        write_broken(folder / "a.csv", traffic, 9, put("v_Vel", b"x"))
        with pytest.raises(dpfuse.FileRefused):
            data.read(folder)
        assert not cache.exists()


def test_progress_is_shown_on_stderr_only(traffic, folder, capsys):
    write_csv(folder / "a.csv", traffic)
    data.read(folder, progress=True)
    assert "a.csv" in (shown := capsys.readouterr()).err and shown.out == ""
    data.read(folder)
    assert capsys.readouterr() == ("", "")
