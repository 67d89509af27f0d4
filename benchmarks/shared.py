"""Time of a tick of four centres that share 10,000 sensors, against four centres that share nothing.

Each centre is a process with a ledger of its own, 250 streams at 5 Hz, individual accounting and one bank in
PostgreSQL. Reports of 10,000 sensors come from arrays in memory at every step; in one kind of round all centres have
the same sensors, in the other each has its own 10,000. Both kinds have a bank, and take turns in the same processes, so
that other load on the machine slows both alike; the processor time of a tick depends less on that load. The aim is a
99th percentile of at most 1.3 times that of centres that share nothing. Calls to the bank are timed, too: none may be
made in the thread of the ticks, and ticks during a call of the other thread show what it costs them. The default takes
five minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import dpfuse
from benchmarks.live_step import make_design
from benchmarks.timing import keep, summarise
from dpfuse.centre import Ticker
from dpfuse.ledger.bank.bank import Bank
from dpfuse.ledger.bank.client import BankClient
from dpfuse.policy.exact import compute_inline

CENTRES, SENSORS, STREAMS, INTERVAL_S, EPOCH_S = 4, 10_000, 250, 0.2, 2.0
KINDS = ("shared", "separate")
# A centre that waits for its first loan charges nobody, and its ticks say nothing.
LEAST_PAID = 0.9
_WARM_UP_S = 4 * EPOCH_S  # a sensor has its first slice after two epochs if the bank is in time


def design_of(seconds: float) -> dpfuse.Design:
    """A design that lasts twice as long as all rounds of a kind."""
    return make_design("individual", num_steps=2 * round(seconds / INTERVAL_S))


class TimedCentre(dpfuse.FusionCentre):
    """Keeps when each tick began and ended, its processor time, and the thread that makes them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.ticks: list[tuple[float, float, float]] = []
        self.thread = 0
        super().__init__(*arguments, **options)

    def tick(self) -> Any:
        """End the step, and time it."""
        begin_s, used_s, self.thread = time.perf_counter(), time.thread_time(), threading.get_ident()
        published = super().tick()
        self.ticks.append((begin_s, time.perf_counter(), time.thread_time() - used_s))
        return published


class TimedBank(Bank):
    """Keeps when each call began and ended, and its thread."""

    def __init__(self, *arguments: Any) -> None:
        self.calls: list[tuple[float, float, int]] = []
        super().__init__(*arguments)

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        begin_s = time.perf_counter()
        rows = super()._rows(query, values)
        self.calls.append((begin_s, time.perf_counter(), threading.get_ident()))
        return rows


def main() -> None:
    """Measure and write results/shared.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="of each kind; an even number")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each round, after a warm-up")
    parser.add_argument("--note", help="in what the run differs from a quiet one of this command")
    parser.add_argument("--centre", type=int, help="run one centre: for the processes of the benchmark alone")
    parser.add_argument("--banks", nargs="+")
    options = parser.parse_args()
    seconds = options.rounds * (_WARM_UP_S + options.seconds)
    if options.centre is not None:
        run_centre(options.centre, dict(zip(KINDS, options.banks, strict=True)), options.seconds, seconds)
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the server that the tests of the bank use
    from support.postgres_server import Server

    server = Server()
    try:
        banks = [server.url(kind) for kind in KINDS]
        for where in banks:
            Bank.create(where, design_of(seconds).guarantee, epoch_s=EPOCH_S, capacity=SENSORS).close()
        found = run_rounds([*sys.argv[1:], "--banks", *banks], options.rounds)
    finally:
        server.remove()
    ms = {kind: times_ms(found[kind]) for kind in KINDS}
    results = {
        "settings": {"centres": CENTRES, "sensors": SENSORS, "streams": STREAMS, "interval_s": INTERVAL_S},
        "epoch_s": EPOCH_S,
        "ms": ms,
        "processor_ms": {
            kind: summarise([tick[2] for one in found[kind] for tick in one["ticks"]]).to_dict() for kind in KINDS
        },
        "ratio_of_p99": round(ms["shared"]["p99"] / ms["separate"]["p99"], 3),
        "ratio_of_medians": round(ms["shared"]["median"] / ms["separate"]["median"], 3),
        "share_of_sensors_that_paid": {kind: min(one["paid"] for one in found[kind]) for kind in KINDS},
        "skipped": {kind: sum(one["skipped"] for one in found[kind]) for kind in KINDS},
        "calls_in_ticks": {kind: sum(one["calls_in_ticks"] for one in found[kind]) for kind in KINDS},
        "ms_during_calls": {kind: times_ms(found[kind], is_during_call=True) for kind in KINDS},
        "load_average": round(os.getloadavg()[0], 1),
    }
    if min(results["share_of_sensors_that_paid"].values()) < LEAST_PAID:
        sys.exit("in one round a centre charged hardly anybody, so there is nothing to compare; run it when less runs")
    command = f"python -m benchmarks.shared --rounds {options.rounds} --seconds {options.seconds:g}"
    keep("shared", results, command=command, packages=("apsw", "psycopg"), note=options.note)


def times_ms(rounds: list[dict[str, Any]], is_during_call: bool = False) -> dict[str, float]:
    """A summary of all ticks, or of those during which a call of the same centre to the bank was under way."""
    ticks = [(end_s - begin_s, during) for one in rounds for begin_s, end_s, _, during in one["ticks"]]
    return summarise([seconds for seconds, during in ticks if during or not is_during_call]).to_dict()


def run_rounds(options: list[str], num_rounds: int) -> dict[str, list[dict[str, Any]]]:
    """What each centre measured in each round, by kind."""
    command = [sys.executable, "-m", "benchmarks.shared", *options]
    processes = [
        subprocess.Popen([*command, f"--centre={number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(CENTRES)
    ]
    inputs = [process.stdin for process in processes if process.stdin is not None]
    outputs = [process.stdout for process in processes if process.stdout is not None]
    assert all(output.readline() == "ready\n" for output in outputs)
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for number in range(num_rounds):
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:  # neither is always the first
            for one in inputs:  # all begin together
                one.write(f"{kind}\n")
                one.flush()
            found[kind] += [json.loads(output.readline()) for output in outputs]
            print(f"round {number + 1}, {kind}", file=sys.stderr)
    for one in inputs:
        one.close()
    assert all(process.wait() == 0 for process in processes)
    return found


def run_centre(number: int, banks: dict[str, str], seconds: float, all_seconds: float) -> None:
    """One centre of each kind; for each line of standard input a round of that kind, and a line with its results."""
    compute_inline()
    rng, design = np.random.default_rng(number), design_of(all_seconds)
    sensors = {"shared": np.arange(SENSORS), "separate": np.arange(SENSORS) + number * SENSORS}
    values = rng.uniform(-1, 1, (SENSORS, design.structure.num_channels))
    names = [f"c{number}-{stream:03}" for stream in range(STREAMS)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        centres = {}
        for kind, where in banks.items():
            bank = TimedBank.open(where)
            ledger = dpfuse.Ledger.create(Path(folder) / f"{kind}.db", design, names, bank.terms.bank_id)
            client = stack.enter_context(BankClient(bank, where, names[0], ledger))
            centre = stack.enter_context(TimedCentre(design, ledger, bank=client))
            centres[kind] = centre, bank, ledger
        print("ready", flush=True)
        for line in sys.stdin:
            kind = line.strip()
            found = run_round(*centres[kind], sensors[kind], values, seconds)
            print(json.dumps(found), flush=True)


def run_round(
    centre: TimedCentre, bank: Any, ledger: dpfuse.Ledger, sensors: Any, values: Any, seconds: float
) -> dict[str, Any]:
    """The ticks of a round, the steps that were skipped, and the share of sensors that paid."""
    before = ledger.spent_of(sensors)
    with Ticker(centre, lambda published: None, INTERVAL_S) as ticker:
        _report(centre, ticker, _WARM_UP_S, sensors, values)
        first, begun, num_calls = len(centre.ticks), centre.now, len(bank.calls)
        _report(centre, ticker, seconds, sensors, values)
        ticks, calls = centre.ticks[first:], bank.calls[max(0, num_calls - 1) :]
        skipped = centre.now - begun - len(ticks)
    during = [[*tick, any(begin < tick[1] and end > tick[0] for begin, end, _ in calls)] for tick in ticks]
    return {
        "ticks": during,
        "skipped": max(0, skipped),
        "paid": float((ledger.spent_of(sensors) > before).mean()),
        "calls_in_ticks": sum(thread == centre.thread for _, _, thread in calls),
    }


def _report(centre: TimedCentre, ticker: Ticker, seconds: float, sensors: Any, values: Any) -> None:
    end_s, step, places = time.monotonic() + seconds, 0, np.arange(SENSORS) % STREAMS
    while time.monotonic() < end_s:
        if ticker.status != "running":
            raise SystemExit(f"the ticker {ticker.status}")
        if centre.now != step:
            step = centre.now
            centre.receive_many(places, sensors, step, values)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
