"""Time of one boundary of a bank whose four centres all share 10,000 sensors: 40,000 claims, statements and grants.

Everything is shared here, which is the worst case of what a sensor's centres ask of the bank; `benchmarks/bank.py` has
centres of a city that share little. Boundaries that are long over are used, so nothing waits for a clock. A boundary is
everything that the bank does for it, one call after the other: four submissions, the closing, and four answers. The aim
is a quarter of an epoch of 2 s. The processor time of the server's process is measured, too: unlike the time that
passes it hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import keep, summarise
from dpfuse import Guarantee
from dpfuse.ledger.bank import Submission
from dpfuse.ledger.bank.bank import Bank

CENTRES, SENSORS, EPOCH_S, BOUNDARIES, WARM_UP = 4, 10_000, 2.0, 30, 3


def main() -> None:
    """Measure and write results/boundary.json."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # the server that the tests of the bank use
    from support.postgres_server import Server

    server = Server()
    try:
        results = measure(server.url("bench"))
    finally:
        server.remove()
    keep("boundary", results, packages=("psycopg",))


def measure(where: str) -> dict[str, Any]:
    """Milliseconds of each part, and processor milliseconds of the server for one boundary."""
    guarantee = Guarantee(order=2.0, budget=1.5, adjacency="remove-one", accounting="individual")
    sensors = list(range(0, 7 * SENSORS, 7))
    names, times_s = [f"c{number}" for number in range(CENTRES)], []
    with Bank.create(where, guarantee, epoch_s=EPOCH_S, capacity=SENSORS) as bank:
        process = int(bank._value("SELECT pg_backend_pid()"))
        start = bank.terms.epoch_at(bank.now()) - 5000
        generations = {name: bank.register(name, f"l-{name}", "p", [name], 0) for name in names}
        known: dict[str, dict[int, list[int]]] = {name: {} for name in names}
        for number in range(BOUNDARIES + WARM_UP):
            if number == WARM_UP:
                begin_s = processor_s(process)
            boundary = start + number
            # Each centre has spent half of every slice of the boundary before.
            made = [Submission(name, generations[name], boundary, sensors, known[name]) for name in names]
            moments = [time.perf_counter()]
            for submission in made:
                bank.submit(submission, 0)
            moments.append(time.perf_counter())
            assert bank.close_boundary(boundary)
            moments.append(time.perf_counter())
            for name in names:
                loans = bank.loans(name, generations[name], ())
                bank.unsettled(name, generations[name])
                known[name] = {epoch: (np.asarray(loan.amounts) // 2).tolist() for epoch, loan in loans.items()}
            moments.append(time.perf_counter())
            assert all(len(spent) == SENSORS for own in known.values() for spent in own.values())
            times_s.append([*np.diff(moments).tolist(), moments[-1] - moments[0]])
        spent_s = processor_s(process) - begin_s
        bank.verify()
    parts = ("submissions", "closing", "answers", "boundary")
    columns = np.array(times_s[WARM_UP:]).T.tolist()
    return {
        "centres": CENTRES,
        "shared_sensors": SENSORS,
        "epoch_s": EPOCH_S,
        "ms": {name: summarise(column).to_dict() for name, column in zip(parts, columns, strict=True)},
        "server_processor_ms": round(1e3 * spent_s / BOUNDARIES, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def processor_s(process: int) -> float:
    """The processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
