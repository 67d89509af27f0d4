"""Time and memory of reading US-101 from Parquet, text and an export of all sites, and of reading SUMO's XML."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from benchmarks.timing import keep
from dpfuse import data
from dpfuse.data.recording import SECTION_M
from tools.results import results_path, write_results

REPEATS = 3
EXPORT_BYTES = 1_500_000_000
SUMO_BYTES = {"floating-car data, XML": 1_500_000_000, "a fifth of it": 300_000_000}
# The columns of the export of all sites. Columns that are not read have a constant value of the usual width.
FILLED: dict[str, Any] = {
    **{"total_frames": "1,156", "local_x": 39.581, "global_x": 6451149.701, "global_y": 1873296.953, "v_length": 17.5},
    **{"v_width": 7.9, "v_class": 2, "v_acc": -8.82, "preceding": 1042, "following": 1051, "space_headway": 53.21},
    **{"time_headway": 1.84},
}
ORDER = (
    "vehicle_id frame_id total_frames global_time local_x local_y global_x global_y v_length v_width v_class v_vel "
    "v_acc lane_id o_zone d_zone int_id section_id direction movement preceding following space_headway time_headway "
    "location"
).split()
# Not ru_maxrss, which starts from the value of the parent process.
READ = """
import json, re, sys, time
from pathlib import Path
from dpfuse.data import read
start, cpu = time.perf_counter(), time.process_time()
recording = read(sys.argv[1], cache=sys.argv[2])
read_s = time.perf_counter() - start
recording.trajectories()
print(json.dumps({
    "read_s": round(read_s, 2),
    "with_trajectories_s": round(time.perf_counter() - start, 2),
    "cpu_s": round(time.process_time() - cpu, 2),
    "peak_rss_mb": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024,
    "sightings": len(recording.vehicle),
    "from_copy": [file.from_cache for file in recording.files],
}))
"""
READ_SUMO = """
import json, re, sys, time
from pathlib import Path
from dpfuse.data import sumo
start, cpu = time.perf_counter(), time.process_time()
read = sumo(sys.argv[1], section=(1000, 1400))
seconds, size = time.perf_counter() - start, Path(sys.argv[1]).stat().st_size
print(json.dumps({
    "bytes": size,
    "rows": read.files[0].num_rows,
    "kept": read.files[0].num_kept,
    "with_trajectories_s": round(seconds, 2),
    "cpu_s": round(time.process_time() - cpu, 2),
    "mb_per_s": round(size / 1e6 / seconds, 1),
    "peak_rss_mb": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024,
}))
"""


def main() -> None:
    """Measure and write results/reader.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("DPFUSE_DATA"), help="folder with us101/*.parquet")
    parser.add_argument("--only-sumo", action="store_true", help="measure SUMO's XML alone, and keep the other results")
    arguments = parser.parse_args()
    if not arguments.only_sumo:
        measure_us101(arguments.data)
    write_results(
        results_path("reader"),
        measure_sumo(),
        command="python -m benchmarks.reader --only-sumo",
        seeds=[0],
        packages=["pyarrow"],
        part="sumo",
    )


def measure_us101(folder: Path | None) -> None:
    """Measure the reader of US-101 and write its results."""
    if folder is None:
        print("the reader needs --data or DPFUSE_DATA, so US-101 is not measured", file=sys.stderr)
        return
    files = sorted(Path(folder, "us101").glob("trajectories-*.parquet"))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        at_hand = [measure(Path(folder), scratch / "none") for _ in range(REPEATS)]
        export = scratch / "export.csv"
        num_rows = write_export(files, export)
        text = scratch / "text" / "us101.txt"
        write_text(files[0], text)
        results: dict[str, Any] = {
            "at hand, Parquet": best(at_hand),
            "one period, text without header": measure(text, scratch / "copies"),
            "export of all sites, CSV": {
                "bytes": export.stat().st_size,
                "rows": num_rows,
                **measure(export, scratch / "copies"),
            },
            "the same, from the compact copy": measure(export, scratch / "copies"),
        }
    recording = data.read(folder)
    found = data.periods(recording.trajectories(), recording.seen_in_full()[0])
    settings = {"repeats": REPEATS, "section_m": SECTION_M}
    shown = [{key: _round(value) for key, value in period._asdict().items()} for period in found]
    results = {"settings": settings, "reading": results, "periods": shown}
    keep("reader", results, command="python -m benchmarks.reader --data DIR", packages=["pyarrow"])


def _round(value: Any) -> Any:
    return round(value, 1) if isinstance(value, float) else value


def measure(source: Path, cache: Path) -> dict[str, Any]:
    """Time and peak memory of reading, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", READ, source, cache], capture_output=True, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def measure_sumo() -> dict[str, Any]:
    """Time and peak memory of reading XML in SUMO's layout, of two sizes: memory must not grow with the file."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        for title, size in SUMO_BYTES.items():
            path = Path(name) / "fcd.xml"
            write_sumo(path, size)
            done = subprocess.run([sys.executable, "-c", READ_SUMO, path], capture_output=True, text=True, check=True)
            found[title] = json.loads(done.stdout)
    return found


def write_sumo(target: Path, size: int) -> None:
    """Vehicles on a road of 4 km with three lanes, every half second, in the layout of SUMO's floating-car data."""
    rng = np.random.default_rng(0)
    position, number = list(rng.uniform(0, 4000, 400)), 400
    names, speed = [f"flow.{i}" for i in range(number)], rng.uniform(8, 30, number).tolist()
    with target.open("w") as file:
        file.write('<?xml version="1.0" encoding="UTF-8"?>\n\n<fcd-export>\n')
        step = 0
        while file.tell() < size:
            lines = [f'    <timestep time="{step / 2:.2f}">']
            for i in range(400):
                position[i] += speed[i] / 2
                if position[i] > 4000:
                    position[i], names[i], number = 0.0, f"flow.{number}", number + 1
                x = f"{position[i]:.2f}"
                lines.append(
                    f'        <vehicle id="{names[i]}" x="{x}" y="-1.60" angle="90.00" type="DEFAULT_VEHTYPE" '
                    f'speed="{speed[i]:.2f}" pos="{x}" lane="E0_{i % 3}" slope="0.00"/>'
                )
            file.write("\n".join([*lines, "    </timestep>\n"]))
            step += 1
        file.write("</fcd-export>\n")


def best(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The quickest of several runs."""
    return min(runs, key=lambda run: float(run["with_trajectories_s"]))


def write_export(files: list[Path], target: Path) -> int:
    """Write the rows at hand and then rows of another site up to the published size; the number of rows."""
    num_rows, sites = 0, ["us-101"] * len(files)
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    with target.open("wb") as sink:
        sink.write(",".join(ORDER).encode() + b"\n")
        while sites or sink.tell() < EXPORT_BYTES:
            site = sites.pop() if sites else "i-80"
            table = _as_text(files[num_rows % len(files)] if site == "i-80" else files[len(sites)], site)
            csv.write_csv(table, sink, options)
            num_rows += len(table)
    return num_rows


def write_text(source: Path, target: Path) -> None:
    """Write one period as it was first published: separated by blanks, without a header."""
    target.parent.mkdir()
    table = _as_text(source, "us-101").select([*ORDER[:14], *ORDER[20:24]])
    csv.write_csv(table, target, csv.WriteOptions(include_header=False, quoting_style="none", delimiter=" "))
    target.write_bytes(target.read_bytes().replace(b" ", b"   ").replace(b"1,156", b"1156"))


def _as_text(source: Path, site: str) -> Any:
    table = parquet.read_table(source)
    table = table.rename_columns([name.lower() for name in table.column_names])
    # The rows of the export are not sorted.
    table = table.take(np.random.default_rng(0).permutation(len(table)))
    columns = {}
    for name in ORDER:
        if name in FILLED:
            columns[name] = pa.array(np.full(len(table), FILLED[name]))
        elif name == "location":
            columns[name] = pa.array(np.full(len(table), site))
        elif name in table.column_names:
            columns[name] = table[name]
        else:
            columns[name] = pa.nulls(len(table), pa.string())
    return pa.table(columns)


if __name__ == "__main__":
    main()
