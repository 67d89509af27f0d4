"""Time of a tick of 1,000 streams with 40 sensors each at 5 Hz in one process, every release committed durably.

Reports come from arrays in memory. At every step 1% of the sensors are replaced by new ones; 3% report to two streams
and pay for both from one account. The clock is the real one: a step ends every 0.2 s, and its releases leave 0.14 s
later. A tick that takes longer is late, and the next one is missed.

A tick waits once for the disk. The time without this wait is measured apart. Between ticks a file of the same size is
written and synced without a ledger, which shows how fast the disk is in this run.

`--against DIR` times the code of another checkout, such as a worktree of an earlier commit, in turns with this one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

import dpfuse
from benchmarks.live_step import make_design
from benchmarks.timing import keep, summarise
from dpfuse.centre import Ticker
from dpfuse.policy.exact import compute_inline
from dpfuse.public import Published
from tools.results import ROOT, current_commit, read_results, results_path, write_results

STREAMS, SENSORS, INTERVAL_S = 1000, 40, 0.2
DELAY_S = 0.14
CHURN, IN_TWO_STREAMS = 0.01, 0.03
NUM_EARLIER = 4


def main() -> None:
    """Measure and write results/fleet.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long, for each accounting")
    parser.add_argument("--against", type=Path, metavar="DIR", help="compare with this checkout, and keep the rest")
    parser.add_argument("--rounds", type=int, default=3, help="of --against: runs of each code, individual accounting")
    parser.add_argument("--alone", action="store_true", help="for the processes of --against alone")
    options = parser.parse_args()
    seconds = options.seconds
    if options.against is not None:
        command = f"python -m benchmarks.fleet --against DIR --rounds {options.rounds} --seconds {seconds:g}"
        found = compare(options.against.resolve(), options.rounds, seconds)
        write_results(results_path("fleet"), found, command=command, seeds=(0,), packages=["apsw"], part="against")
        print(json.dumps(found, indent=1))
        return
    compute_inline()
    if options.alone:
        found = measure("individual", seconds, Progress(disable=True)) | {"code": dpfuse.__file__}
        print(json.dumps(found))
        return
    with Progress(auto_refresh=False) as progress:  # drawn between ticks, because a thread that draws would slow them
        results = {accounting: measure(accounting, seconds, progress) for accounting in ("individual", "total")}
    settings = {
        "streams": STREAMS,
        "sensors": SENSORS,
        "interval_s": INTERVAL_S,
        "seconds": seconds,
        "churn": CHURN,
        "in_two_streams": IN_TWO_STREAMS,
    }
    command = f"python -m benchmarks.fleet --seconds {seconds:g}"
    results = {"settings": settings, "accounting": results, "earlier": earlier_runs()}
    keep("fleet", results, command=command, packages=["apsw"])


def compare(earlier: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Runs of this code and of that checkout in turns, and the ratio of their ticks, by the median of the runs."""
    codes = {"earlier": earlier, "this": ROOT}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in codes}
    for number in range(rounds):
        for name, checkout in codes.items():
            runs[name].append(run_alone(checkout, seconds))
            print(f"round {number + 1}, {name}: {brief(runs[name][-1])}", file=sys.stderr)

    def ratio(part: str) -> float:
        this, before = (np.median([run["tick_ms"][part] for run in runs[name]]) for name in ("this", "earlier"))
        return round(float(this / before), 3)

    return {
        "seconds": seconds,
        "commit": current_commit(earlier),
        "runs": {name: [brief(run) for run in own] for name, own in runs.items()},
        "ratio_of_p99": ratio("p99"),
        "ratio_of_medians": ratio("median"),
        "load_average": round(os.getloadavg()[0], 1),
    }


def run_alone(checkout: Path, seconds: float) -> dict[str, Any]:
    """What the load of this file measures of a checkout's code, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.fleet", "--alone", f"--seconds={seconds}"]
    path = os.pathsep.join(map(str, (checkout / "src", ROOT)))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if not Path(found["code"]).is_relative_to(checkout):
        raise SystemExit(f"--against must be a checkout of this repository; it has no package dpfuse: {checkout}")
    return found


def earlier_runs() -> list[dict[str, Any]]:
    """The last runs before this one, in brief: runs differ with what the disk does."""
    if not results_path("fleet").exists():
        return []
    before = read_results("fleet")
    return [*before.get("earlier", []), {name: brief(run) for name, run in before["accounting"].items()}][-NUM_EARLIER:]


def brief(run: dict[str, Any]) -> dict[str, Any]:
    """Counts of missed and late ticks, and milliseconds."""
    counts = {name: run[name] for name in ("steps", "missed", "late")}
    return counts | {
        "tick_median": run["tick_ms"]["median"],
        "tick_p99": run["tick_ms"]["p99"],
        "work_max": run["work_ms"]["max"],
        "sync_max": run["sync_ms"]["max"],
    }


def measure(accounting: str, seconds: float, progress: Progress) -> dict[str, Any]:
    """One run by the clock: milliseconds of the ticks, and how many were late or missed."""
    num_steps = round(seconds / INTERVAL_S)
    design = make_design(accounting, num_steps=num_steps + 100)
    bar = progress.add_task(f"{accounting} accounts", total=num_steps)

    with tempfile.TemporaryDirectory() as folder:
        streams = [f"stream-{number:04}" for number in range(STREAMS)]
        ledger = dpfuse.Ledger.create(Path(folder) / "fleet.db", design, streams)
        with TimedCentre(design, ledger) as centre, open(Path(folder) / "bare", "wb", buffering=0) as file:
            fleet, bare = Fleet(), []
            for _ in range(5):  # compile, and fill caches
                fleet.report(centre)
                centre.tick()
            first = centre.now
            centre.seconds.clear()
            centre.waits.clear()
            log_bytes = os.path.getsize(Path(folder) / "fleet.db-wal") // 5
            with Ticker(centre, lambda published: None, INTERVAL_S, DELAY_S) as ticker:
                while ticker.status == "running" and centre.now < first + num_steps:
                    step = centre.now
                    fleet.report(centre)
                    while centre.now == step and ticker.status == "running":
                        time.sleep(0.005)
                    time.sleep(INTERVAL_S / 2)  # the next reports are made well after the tick
                    start = time.perf_counter()
                    os.pwrite(file.fileno(), bytes(log_bytes), step % 8 * log_bytes)
                    os.fdatasync(file.fileno())
                    bare.append(time.perf_counter() - start)
                    progress.update(bar, completed=step - first, refresh=step % 25 == 0)
    num_ended, ticks, waits = centre.now - first, centre.seconds, centre.waits
    work = [tick - wait for tick, wait in zip(ticks, waits, strict=True)]
    return {
        **{name: with_max(seconds) for name, seconds in (("tick_ms", ticks), ("work_ms", work), ("sync_ms", waits))},
        "bare_sync_ms": with_max(bare) | {"bytes": log_bytes},
        "steps": num_ended,
        "missed": num_ended - len(ticks),
        "late": sum(tick > DELAY_S for tick in ticks),
        "delay_ms": 1e3 * DELAY_S,
    }


def with_max(seconds: list[float]) -> dict[str, float]:
    """A summary in milliseconds, with the longest."""
    return summarise(seconds).to_dict() | {"max": round(1e3 * max(seconds), 4)}


class TimedCommits:
    """A connection that adds up the time of its COMMIT statements, which wait for the disk."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, query: str, *values: Any) -> Any:
        """Execute the statement, and time it if it is COMMIT."""
        start = time.perf_counter()
        cursor = self._connection.execute(query, *values)
        if query == "COMMIT":
            self.seconds += time.perf_counter() - start
        return cursor


class TimedCentre(dpfuse.FusionCentre):
    """A centre that records the time of each tick and of its wait for the disk."""

    def __init__(self, design: dpfuse.Design, ledger: dpfuse.Ledger) -> None:
        super().__init__(design, ledger)
        self.seconds: list[float] = []
        self.waits: list[float] = []
        self._disk = ledger._connection = TimedCommits(ledger._connection)

    def tick(self) -> list[Published]:
        """The tick, timed."""
        self._disk.seconds, start = 0.0, time.perf_counter()
        published = super().tick()
        self.seconds.append(time.perf_counter() - start)
        self.waits.append(self._disk.seconds)
        return published


class Fleet:
    """Sensors that report at every step, some of them also to the next stream."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._stream = np.repeat(np.arange(STREAMS), SENSORS)
        self._ids = self._new_ids(len(self._stream))
        self._is_neighbour = self._rng.random(len(self._stream)) < IN_TWO_STREAMS
        self._values = self._rng.uniform([0, 0], [400, 20], size=(16, len(self._stream), 2)).astype(np.float32)

    def report(self, centre: dpfuse.FusionCentre) -> None:
        """Send the reports of all sensors for the current step, after some sensors were replaced by new ones."""
        leaves = self._rng.random(len(self._ids)) < CHURN
        self._ids = np.where(leaves, self._new_ids(len(self._ids)), self._ids)
        ids = np.where(self._is_neighbour, np.roll(self._ids, SENSORS), self._ids)
        centre.receive_many(self._stream, ids, centre.now, self._values[centre.now % len(self._values)])

    def _new_ids(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self._rng.integers(0, 2**62, count)


if __name__ == "__main__":
    main()
