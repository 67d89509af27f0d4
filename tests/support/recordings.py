"""Small recordings in the published layout of every reader, and the state that a count by hand gives."""

from __future__ import annotations

import codecs
import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from dpfuse import data
from support.ngsim import FOOT_M, START_MS, STREET_ORDER, row, write_csv, write_text

DT_S = 0.2
SECTION = (60.0, 160.0)
# A value that no message may show.
SECRET = "4321.25"
_SUMO = (
    "timestep_time;vehicle_id;vehicle_x;vehicle_y;vehicle_angle;vehicle_type;vehicle_speed;vehicle_pos;"
    "vehicle_lane;vehicle_edge;vehicle_slope"
)


def make_road(duration_s: float = 40.0, seed: int = 0) -> list[tuple[int, int, float, float]]:
    """Instant, vehicle, position and speed of vehicles that enter at 3 m, with a queue of them to begin with."""
    rng = np.random.default_rng(seed)
    rows = []
    for vehicle in range(1, 30):
        speed, entry = round(rng.uniform(10, 14), 2), 8 * (vehicle - 10)
        for k in range(max(0, entry), round(duration_s / DT_S)):
            position = 3 + speed * (k - entry) * DT_S
            if position < 240:
                rows.append((k, vehicle, round(position, 2), speed))
    return sorted(rows)


def density_by_hand(rows, every: int, num_instants: int, section=SECTION) -> np.ndarray:
    """Vehicles per km on the section at every so many instants."""
    count = np.zeros(num_instants)
    for k, _, position, _ in rows:
        count[k] += section[0] <= position < section[1]
    return count[::every] * 1000 / (section[1] - section[0])


def write_sumo_xml(folder: Path, rows) -> Path:
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<fcd-export xmlns:xsi="http://www.w3.org/2001/XMLSchema">']
    for k in range(rows[-1][0] + 1):
        lines.append(f'    <timestep time="{k * DT_S:.2f}">')
        lines += [
            f'        <vehicle id="v.{vehicle}" x="{x:.2f}" y="-1.60" angle="90.00" type="car" speed="{speed:.2f}" '
            f'pos="{x:.2f}" lane="a_b_0" slope="0.00"/>'
            for at, vehicle, x, speed in rows
            if at == k
        ]
        lines.append("    </timestep>")
    (folder / "fcd.xml").write_text("\n".join([*lines, "</fcd-export>", ""]))
    return folder / "fcd.xml"


def write_sumo_gz(folder: Path, rows) -> Path:
    path = write_sumo_xml(folder, rows)
    (folder / "fcd.xml.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return folder / "fcd.xml.gz"


def write_sumo_csv(folder: Path, rows) -> Path:
    lines = [
        f"{k * DT_S:.2f};v.{vehicle};{x:.2f};-1.60;90.00;car;{speed:.2f};{x:.2f};a_b_0;;0.00"
        for k, vehicle, x, speed in rows
    ]
    (folder / "fcd.csv").write_text("\n".join([_SUMO, *lines, ""]))
    return folder / "fcd.csv"


def write_sumo_parquet(folder: Path, rows) -> Path:
    time, vehicle, x, speed = zip(*rows, strict=True)
    columns = {
        "timestep_time": np.array(time) * DT_S,
        "vehicle_id": [f"v.{each}" for each in vehicle],
        "vehicle_x": list(x),
        "vehicle_speed": pa.array(speed, pa.float32()),
        "vehicle_pos": pa.array(x, pa.float32()),
        "vehicle_lane": ["a_b_0"] * len(x),
    }
    pa.parquet.write_table(pa.table(columns), folder / "fcd.parquet", row_group_size=100)
    return folder / "fcd.parquet"


def write_highd(folder: Path, rows, name: str = "01") -> Path:
    """Every vehicle also drives the other way, under another number, out of the way of the section."""
    length = 4.5
    lines = ["frame,id,x,y,width,height,xVelocity,yVelocity,laneId"]
    for k, vehicle, x, speed in sorted(rows, key=lambda each: (each[1], each[0])):
        lines.append(f"{k + 1},{vehicle},{x - length:.2f},8.5,{length},1.9,{speed:.2f},0.0,5")
        lines.append(f"{k + 1},{vehicle + 100},{260 - x:.2f},3.5,{length},1.9,-{speed:.2f},0.0,2")
    (folder / f"{name}_tracks.csv").write_text("\n".join([*lines, ""]))
    vehicles = sorted({vehicle for _, vehicle, _, _ in rows})
    last = max(k for k, *_ in rows) + 1
    meta = [f"{vehicle + way},4.5,1.9,1,{last},Car,{2 if way == 0 else 1}" for vehicle in vehicles for way in (0, 100)]
    header = "id,width,height,initialFrame,finalFrame,class,drivingDirection"
    (folder / f"{name}_tracksMeta.csv").write_text("\n".join([header, *meta, ""]))
    (folder / f"{name}_recordingMeta.csv").write_text(
        f"id,frameRate,locationId,upperLaneMarkings\n1,{1 / DT_S:g},2,8.51;12.59;16.43\n"
    )
    return folder / f"{name}_tracks.csv"


def _ngsim_rows(rows, start_ms):
    return [row(vehicle, 2 * k, x / FOOT_M, speed / FOOT_M, 1, start_ms) for k, vehicle, x, speed in rows]


def write_us101(folder: Path, rows) -> Path:
    write_csv(folder / "us101.csv", _ngsim_rows(rows, START_MS))
    return folder / "us101.csv"


def write_i80(folder: Path, rows) -> Path:
    write_text(folder / "i80.txt", _ngsim_rows(rows, 1_113_433_200_000))
    return folder / "i80.txt"


def _street_rows(rows, start_ms):
    """Every vehicle going north also drives south, under another number, from 600 m on."""
    north = [each | {"Direction": 2} for each in _ngsim_rows(rows, start_ms)]
    south = [
        each | {"Direction": 4, "Vehicle_ID": each["Vehicle_ID"] + 100, "Local_Y": 600 / FOOT_M - each["Local_Y"]}
        for each in north
    ]
    return [each for both in zip(north, south, strict=True) for each in both]


def write_lankershim(folder: Path, rows) -> Path:
    """Blanks between the columns of a street, and no header."""
    write_text(folder / "lankershim.txt", _street_rows(rows, 1_118_935_800_000), names=STREET_ORDER)
    return folder / "lankershim.txt"


def write_peachtree(folder: Path, rows) -> Path:
    """With the short clock: 16:00:00 in seconds, plus milliseconds."""
    everywhere = _street_rows(rows, 1_163_030_400)
    write_csv(folder / "peachtree.csv", everywhere, STREET_ORDER, str, codecs.BOM_UTF8, site="peachtree")
    return folder / "peachtree.csv"


NUM_DAYS, HOUSEHOLDS = 3, ("MAC000002", "MAC000003", "MAC000005")


def make_readings(seed: int = 0) -> list[tuple[int, str, float]]:
    """Half hour, household and energy in kWh; one household misses a few readings."""
    rng = np.random.default_rng(seed)
    return [
        (k, name, round(float(rng.gamma(2, 0.1)), 3))
        for name in HOUSEHOLDS
        for k in range(48 * NUM_DAYS)
        if not (name == "MAC000003" and 20 <= k < 25)
    ]


def write_meters(folder: Path, readings) -> Path:
    """As published: a blank after the last name, fractions of a second, and Null where a reading failed."""
    lines = ["LCLid,stdorToU,DateTime,KWH/hh (per half hour) "]
    for k, name, energy in readings:
        tariff = "ToU" if name == HOUSEHOLDS[-1] else "Std"
        lines.append(f"{name},{tariff},2012-10-{12 + k // 48} {k % 48 // 2:02}:{k % 2 * 30:02}:00.0000000, {energy} ")
    lines.append(f"{HOUSEHOLDS[0]},Std,2012-10-13 15:13:41.0000000,Null")
    (folder / "meters.csv").write_text("\n".join([*lines, ""]))
    return folder / "meters.csv"


def mean_by_hand(readings) -> np.ndarray:
    """The mean demand of the households in kW."""
    own = [[2 * energy for at, _, energy in readings if at == k] for k in range(48 * NUM_DAYS)]
    return np.array([np.mean(each) for each in own])


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A layout: how to write a small file, read it and call its command, the state by hand, and how to break a line.

    Attributes:
        spoil: puts a text in the place of a number of one line.
        column: the column that must then be named.
        ends_early: whether the run ends with the last vehicle before the section.
    """

    name: str
    command: str
    read: Callable[..., data.RecordingRead]
    write: Callable[[Path], Path]
    state: Callable[[], np.ndarray]
    spoil: Callable[[bytes], bytes]
    column: str
    ends_early: bool = False
    section: tuple[float, float] | None = SECTION

    def read_section(self, where, **options) -> data.RecordingRead:
        """The recording of the section of the tests."""
        return self.read(where, **({"section": self.section} if self.section else {}), **options)

    def spoil_row(self, path: Path, number: int) -> None:
        """Break the line with this number, or the row of a Parquet file."""
        if path.suffix == ".parquet":
            table = pa.parquet.read_table(path)
            column = table.column_names.index(self.column)
            values = [
                *table[self.column].to_pylist()[: number - 1],
                float(SECRET),
                *table[self.column].to_pylist()[number:],
            ]
            pa.parquet.write_table(table.set_column(column, self.column, pa.array(values)), path)
            return
        pack, unpack = (gzip.compress, gzip.decompress) if path.suffix == ".gz" else (bytes, bytes)
        lines = unpack(path.read_bytes()).split(b"\n")
        lines[number - 1] = self.spoil(lines[number - 1])
        path.write_bytes(pack(b"\n".join(lines)))

    def options(self, where) -> tuple:
        """What the command needs."""
        return (self.command, "--data", where, *(("--section", *self.section) if self.section else ()))


def _field(index: int, separator: bytes | None):
    def spoil(line: bytes) -> bytes:
        fields = line.split(separator)
        fields[index] = f"x{SECRET}".encode()
        return (separator or b" ").join(fields)

    return spoil


def _attribute(line: bytes) -> bytes:
    return re.sub(rb'speed="[^"]*"', f'speed="x{SECRET}"'.encode(), line)


def _on_road(name, command, read, write, first=0, **others) -> Layout:
    rows = make_road()
    return Layout(
        name=name,
        command=command,
        read=read,
        write=lambda folder: write(folder, rows),
        state=lambda: density_by_hand(rows, 1, rows[-1][0] + 1)[first:],
        **others,
    )


def _first_crossing() -> int:
    """The instant at which a vehicle that was seen before the section has passed it."""
    rows = make_road()
    before = {vehicle for _, vehicle, x, _ in rows if x < SECTION[0]}
    return min(k for k, vehicle, x, _ in rows if vehicle in before and x >= SECTION[1])


LAYOUTS = [
    _on_road("us101", "us101", data.ngsim, write_us101, spoil=_field(11, b","), column="v_vel", ends_early=True),
    _on_road(
        "i80",
        "i80",
        partial(data.ngsim, site="i-80"),
        write_i80,
        spoil=_field(11, None),
        column="v_vel",
        ends_early=True,
    ),
    _on_road(
        "lankershim",
        "lankershim",
        partial(data.ngsim, site="lankershim"),
        write_lankershim,
        first=_first_crossing(),
        spoil=_field(11, None),
        column="v_vel",
        ends_early=True,
    ),
    _on_road(
        "peachtree",
        "peachtree",
        partial(data.ngsim, site="peachtree"),
        write_peachtree,
        first=_first_crossing(),
        spoil=_field(11, b","),
        column="v_vel",
        ends_early=True,
    ),
    _on_road("sumo.xml", "sumo", data.sumo, write_sumo_xml, spoil=_attribute, column="speed"),
    _on_road("sumo.xml.gz", "sumo", data.sumo, write_sumo_gz, spoil=_attribute, column="speed"),
    _on_road("sumo.csv", "sumo", data.sumo, write_sumo_csv, spoil=_field(6, b";"), column="vehicle_speed"),
    _on_road("sumo.parquet", "sumo", data.sumo, write_sumo_parquet, spoil=bytes, column="vehicle_speed"),
    _on_road("highd", "highd", data.highd, write_highd, spoil=_field(6, b","), column="xvelocity"),
    Layout(
        name="meters",
        command="meters",
        read=data.meters,
        write=lambda folder: write_meters(folder, make_readings()),
        state=lambda: mean_by_hand(make_readings()),
        spoil=_field(3, b","),
        column="kwh/hh_(per_half_hour)",
        section=None,
    ),
]
