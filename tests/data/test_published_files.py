"""The published files at hand, and the memory that reading takes."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import dpfuse
from dpfuse import data
from dpfuse.data._reader import find_files, read_files
from dpfuse.data.summary import periods
from support.ngsim import ELSEWHERE, FOOT_M, ORDER, SECTION, fields, write_csv

DATA = os.environ.get("DPFUSE_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="DPFUSE_DATA is not set: no recordings at hand")


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
class TestPublishedFiles:
    # The README beside the files; its table was made from the measured field, not from the trajectories.
    DENSITY = {"07:50-08:05": 202.8, "08:05-08:20": 236.8, "08:20-08:35": 255.5, "all": 231.7}

    def test_densities_are_those_of_the_measured_field(self, us101):
        run = us101.trajectories()
        found = {period.name: period for period in periods(run, us101.seen_in_full()[0])}
        assert {name: period.density_mean for name, period in found.items()} == pytest.approx(self.DENSITY, rel=0.01)
        assert found["all"].density_std == pytest.approx(45.7, rel=0.02)
        assert run.state.shape[1] * 0.2 > 2600
        assert run.sample_sensors(0.3, seed=0).present.sum(-1).mean() == pytest.approx(28, abs=1.5)

    def test_no_row_is_lost(self, us101):
        assert sum(file.num_rows for file in us101.files) == len(us101.vehicle)
        tables = [pa.parquet.read_table(file.path) for file in us101.files]
        assert us101.num_vehicles == sum(len(table["Vehicle_ID"].unique()) for table in tables)
        for file, table, million in zip(us101.files, tables, (1, 2, 3), strict=True):
            own = us101.vehicle // 1_000_000 == million
            feet = table["Local_Y"].to_numpy().astype(np.float64)
            np.testing.assert_allclose(us101.position[own], feet * FOOT_M, rtol=1e-6, err_msg=str(file.path))

    @needs_proc
    @pytest.mark.slow
    def test_reading_takes_less_than_a_gigabyte(self):
        assert peak_mb(DATA, (120, 520)) < 1000

    def test_published_lines_of_us101_are_read(self):
        read = data.read(Path(DATA, "ngsim_format", "us101_lines.csv"))
        assert len(read.vehicle) == read.files[0].num_rows == 22
        assert {1_000_005} <= set(read.vehicle.tolist())

    def test_published_lines_of_another_site_are_refused(self):
        path = Path(DATA, "ngsim_format", "peachtree_lines.csv")
        with pytest.raises(dpfuse.DatasetMissing, match="no row of us-101"):
            data.read(path)

    def test_published_lines_with_thousands_separators_are_read(self, folder):
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
