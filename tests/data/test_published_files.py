"""The published files at hand, and the memory that reading takes."""

from __future__ import annotations

import csv
import io
import os
import re
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
from dpfuse.data.sites import US101
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


def peak_mb(path, section, program=PEAK) -> int:
    """Peak memory of reading, in a process of its own."""
    command = [sys.executable, "-c", program, str(path), *map(str, section)]
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


@needs_proc
@pytest.mark.slow
def test_memory_does_not_grow_with_vehicles_off_the_section(folder):
    """SUMO's XML; what is kept is one vehicle at 3,000 instants."""

    def peak(num_elsewhere):
        away = '<vehicle id="b" x="900.00" y="0.00" speed="9.00" type="DEFAULT_VEHTYPE" lane="e_0"/>\n' * num_elsewhere
        with (folder / "fcd.xml").open("w") as file:
            file.write("<fcd-export>\n")
            for k in range(3000):
                file.write(f'<timestep time="{k}"><vehicle id="a" x="70" speed="1"/>\n{away}</timestep>\n')
            file.write("</fcd-export>\n")
        command = [sys.executable, "-c", PEAK.replace("us101", "sumo"), str(folder / "fcd.xml"), "60", "160"]
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    small, large = peak(0), peak(400)
    assert (folder / "fcd.xml").stat().st_size > 100e6
    assert 50 < large < small + 50, (small, large)


@needs_proc
@pytest.mark.slow
def test_memory_does_not_grow_with_the_other_direction_of_a_highway(folder):
    """The layout of highD; what is kept is one vehicle in 3,000 frames."""

    def peak(num_others):
        with (folder / "01_tracks.csv").open("w") as file:
            file.write("frame,id,x,y,width,height,xVelocity,yVelocity,laneId\n")
            file.writelines(f"{k},1,70.00,8.5,4.5,1.9,1.00,0.0,5\n" for k in range(1, 3001))
            for other in range(2, 2 + num_others):
                file.writelines(f"{k},{other},90.00,3.5,4.5,1.9,-9.00,0.0,2\n" for k in range(1, 3001))
        ways = [f"{vehicle},3000,{2 if vehicle == 1 else 1}" for vehicle in range(1, 2 + num_others)]
        (folder / "01_tracksMeta.csv").write_text("\n".join(["id,finalFrame,drivingDirection", *ways, ""]))
        (folder / "01_recordingMeta.csv").write_text("id,frameRate\n1,5\n")
        return peak_mb(folder, (60, 160), PEAK.replace("us101", "highd"))

    # Both files are longer than what is read at a time.
    small, large = peak(900), peak(1800)
    assert (folder / "01_tracks.csv").stat().st_size > 100e6
    assert 50 < large < small + 40, (small, large)


@needs_proc
@pytest.mark.slow
def test_memory_does_not_grow_with_the_days_that_are_not_read(folder):
    """The layout of Low Carbon London; what is kept is one day of ten households."""
    program = re.sub(r"data\.us101\(.*\)", "data.meters(sys.argv[1], start=sys.argv[2], stop=sys.argv[3])", PEAK)

    def peak(num_days):
        with (folder / "meters.csv").open("w") as file:
            file.write("LCLid,stdorToU,DateTime,KWH/hh (per half hour) \n")
            for day in range(1, num_days + 1):
                for k in range(48):
                    when = (
                        f"20{10 + day // 336}-{1 + day // 28 % 12:02}-{1 + day % 28:02} {k // 2:02}:{k % 2 * 30:02}:00"
                    )
                    file.writelines(f"MAC{home:06},Std,{when}.0000000, 0.25 \n" for home in range(10))
        return peak_mb(folder / "meters.csv", ("2010-01-02", "2010-01-03"), program)

    small, large = peak(4500), peak(9000)
    assert (folder / "meters.csv").stat().st_size > 100e6
    assert 50 < large < small + 40, (small, large)


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

    def test_published_lines_of_peachtree_are_read_in_both_directions(self):
        """Its clock holds the start of a period in s plus ms since then: two periods, at 12:45 and 16:00."""
        path = Path(DATA, "ngsim_format", "peachtree_lines.csv")
        north, south = (data.read(path, site="peachtree", direction=each) for each in ("north", "south"))
        assert (len(north.vehicle), len(south.vehicle)) == (1985, 15)
        assert north.files[0].num_elsewhere == 15
        hours = {north.site.clock(tick, "%H:%M") for tick in np.concatenate([north.ticks, south.ticks]).tolist()}
        assert hours and all("12:43" <= hour < "13:00" or "15:58" <= hour < "16:15" for hour in hours), hours

    def test_published_lines_with_thousands_separators_are_read(self, folder):
        """As if they were of US-101: separators, byte-order mark and spelling are those of the file."""
        text = Path(DATA, "ngsim_format", "peachtree_lines.csv").read_bytes()
        moved = text.replace(b",peachtree", b",us-101").replace(b",1163", b",1118847")
        (folder / "a.csv").write_bytes(moved)
        found, _ = find_files(folder, US101)
        (file,), (rows,) = read_files(found, US101, None, progress=False)
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
