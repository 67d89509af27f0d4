"""Files of vehicle trajectories for the tests of the reader: small traffic, written in every published layout."""

from __future__ import annotations

import codecs

import numpy as np
import pyarrow as pa
import pyarrow.parquet

FOOT_M = 0.3048
START_MS = 1_118_846_980_000  # 07:49:40
ORDER = (
    "Vehicle_ID Frame_ID Total_Frames Global_Time Local_X Local_Y Global_X Global_Y v_Length v_Width v_Class v_Vel "
    "v_Acc Lane_ID Preceding Following Space_Headway Time_Headway"
).split()
READ = ("Vehicle_ID", "Frame_ID", "Global_Time", "Local_Y", "v_Vel", "Lane_ID")
ZONES = ("O_Zone", "D_Zone", "Int_ID", "Section_ID", "Direction", "Movement")
STREET_ORDER = [*ORDER[:14], *ZONES, *ORDER[14:]]
SECTION = (60.0, 160.0)


def make_traffic(duration_s=60, seed=0) -> list[dict]:
    """Rows of vehicles that enter lanes 1, 2 and 6 every three seconds and drive 250 m. The road is empty at first."""
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


def write_text(path, rows, blank="   ", end="\n", names=ORDER):
    lines = [blank + blank.join(fields(each, names)) + blank for each in rows]
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
    "zones.csv": lambda path, rows: write_csv(path, rows, names=STREET_ORDER),
    "all-sites.csv": lambda path, rows: write_csv(path, [*rows, *ELSEWHERE], site="us-101"),
    "SHOUTED.CSV": lambda path, rows: write_csv(path, rows, spelling=str.upper, site="US-101"),
    "numbers.parquet": write_parquet,
    "text.parquet": lambda path, rows: write_parquet(path, rows, as_text=True, spelling=str.lower),
}


def columns_of(recording, with_ids=True):
    """All sightings in one order."""
    order = np.lexsort((recording.position, recording.lane, recording.tick))
    names = ("vehicle", "tick", "lane", "position", "speed")[0 if with_ids else 1 :]
    return [getattr(recording, name)[order] for name in names]


def assert_same(one, other, with_ids=True):
    for ours, theirs in zip(columns_of(one, with_ids), columns_of(other, with_ids), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def write_broken(path, traffic, number, change):
    """Write the traffic as CSV, with one line changed."""
    write_csv(path, traffic, site="us-101")
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"\n".join(lines))


def put(column, value):
    """A change of one line: this value in this column."""

    def change(line):
        values = line.split(b",")
        values[[*ORDER, "Location"].index(column)] = value
        return b",".join(values)

    return change
