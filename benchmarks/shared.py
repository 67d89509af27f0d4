"""Time of a tick of four centres that share 10,000 sensors, against four centres that share nothing.

Each centre is a process with a ledger of its own, 250 streams at 5 Hz, individual accounting and one bank in
PostgreSQL. Reports of 10,000 sensors come from arrays in memory at every step; in one kind of round all centres have
the same sensors, in the other each has its own. The kinds take turns, so that other load on the machine slows both
alike. No tick waits for the bank, so the ratio of the 99th percentiles should be near 1; the aim is at most 1.3.
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

import dpfuse
from benchmarks.live_step import make_design
from benchmarks.timing import keep, summarise
from dpfuse.centre import Ticker
from dpfuse.ledger.bank.bank import Bank
from dpfuse.ledger.bank.client import BankClient
from dpfuse.policy.exact import compute_inline

CENTRES, SENSORS, STREAMS, INTERVAL_S, EPOCH_S = 4, 10_000, 250, 0.2, 2.0
KINDS = ("shared", "separate")
_WARM_UP_S = 3 * EPOCH_S  # a sensor has its first slice after two epochs


def design_of(seconds: float) -> dpfuse.Design:
    """A design that lasts twice as long as the round."""
    return make_design("individual", num_steps=2 * round((_WARM_UP_S + seconds) / INTERVAL_S))


class TimedCentre(dpfuse.FusionCentre):
    """Keeps how long each tick took."""

    def tick(self) -> Any:
        """End the step, and time it."""
        start = time.perf_counter()
        published = super().tick()
        self.seconds.append(time.perf_counter() - start)
        return published

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.seconds: list[float] = []
        super().__init__(*arguments, **options)


def main() -> None:
    """Measure and write results/shared.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each kind")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each round, after a warm-up")
    parser.add_argument("--centre", type=int, help="run one centre: for the processes of a round alone")
    parser.add_argument("--bank")
    parser.add_argument("--shares", action="store_true")
    options = parser.parse_args()
    if options.centre is not None:
        run_centre(options.centre, options.bank, options.shares, options.seconds)
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the server that the tests of the bank use
    from support.postgres_server import Server

    server = Server()
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    try:
        for number in range(options.rounds):
            for kind in KINDS:
                found[kind] += run_round(server.url(f"{kind}{number}"), kind == "shared", options.seconds)
                print(f"round {number + 1}, {kind}", file=sys.stderr)
    finally:
        server.remove()
    ms = {kind: summarise([tick for one in found[kind] for tick in one["ticks_s"]]).to_dict() for kind in KINDS}
    results = {
        "settings": {"centres": CENTRES, "sensors": SENSORS, "streams": STREAMS, "interval_s": INTERVAL_S},
        "epoch_s": EPOCH_S,
        "ms": ms,
        "ratio_of_p99": round(ms["shared"]["p99"] / ms["separate"]["p99"], 3),
        "ratio_of_medians": round(ms["shared"]["median"] / ms["separate"]["median"], 3),
        "share_of_sensors_that_paid": {kind: min(one["paid"] for one in found[kind]) for kind in KINDS},
        "skipped": {kind: sum(one["skipped"] for one in found[kind]) for kind in KINDS},
        "load_average": round(os.getloadavg()[0], 1),
    }
    command = f"python -m benchmarks.shared --rounds {options.rounds} --seconds {options.seconds:g}"
    keep("shared", results, command=command, packages=("apsw", "psycopg"))


def run_round(where: str, shares: bool, seconds: float) -> list[dict[str, Any]]:
    """What each centre of one round measured."""
    guarantee = design_of(seconds).guarantee
    Bank.create(where, guarantee, epoch_s=EPOCH_S, capacity=SENSORS).close()
    command = [sys.executable, "-m", "benchmarks.shared", f"--bank={where}", f"--seconds={seconds}"]
    command += ["--shares"] if shares else []
    processes = [
        subprocess.Popen([*command, f"--centre={number}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(CENTRES)
    ]
    assert all(process.stdout is not None and process.stdout.readline() == "ready\n" for process in processes)
    answers = []
    for process in processes:  # all begin together
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        assert process.stdout is not None
        answers.append(json.loads(process.stdout.readline()))
        assert process.wait() == 0
    return answers


def run_centre(number: int, where: str, shares: bool, seconds: float) -> None:
    """One centre by the clock; prints its ticks, the steps that it skipped, and the share of sensors that paid."""
    compute_inline()
    rng, design = np.random.default_rng(number), design_of(seconds)
    sensors = np.arange(SENSORS) + (0 if shares else number * SENSORS)
    places = np.arange(SENSORS) % STREAMS
    values = rng.uniform(-1, 1, (SENSORS, design.structure.num_channels))
    names = [f"c{number}-{stream:03}" for stream in range(STREAMS)]
    with tempfile.TemporaryDirectory() as folder, Bank.open(where) as bank:
        ledger = dpfuse.Ledger.create(Path(folder) / "ledger.db", design, names, bank.terms.bank_id)
        with (
            BankClient(bank, where, f"c{number}", ledger) as client,
            TimedCentre(design, ledger, bank=client) as centre,
        ):
            print("ready", flush=True)
            sys.stdin.readline()
            with Ticker(centre, lambda published: None, INTERVAL_S) as ticker:
                _report(centre, ticker, _WARM_UP_S, places, sensors, values)
                centre.seconds.clear()
                begun = centre.now
                _report(centre, ticker, seconds, places, sensors, values)
                skipped = centre.now - begun - len(centre.seconds)
            paid = float((ledger.spent_of(sensors) > 0).mean())
    print(json.dumps({"ticks_s": centre.seconds, "skipped": max(0, skipped), "paid": paid}), flush=True)


def _report(centre: TimedCentre, ticker: Ticker, seconds: float, places: Any, sensors: Any, values: Any) -> None:
    end_s, step = time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        if ticker.status != "running":
            raise SystemExit(f"the ticker {ticker.status}")
        if centre.now != step:
            step = centre.now
            centre.receive_many(places, sensors, step, values)
        time.sleep(0.005)


if __name__ == "__main__":
    main()
