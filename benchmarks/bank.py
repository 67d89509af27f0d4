"""Time of one boundary of a bank at the rate of a city: many centres, each with the sensors of 1,000 streams.

Every centre claims all its sensors and states what it spent of the slices before, as real centres do; 3% of the sensors
are at two centres. The time of a boundary is what the bank does in one epoch: it takes the messages of all centres, one
after another, closes the boundary, and hands out the loans. PostgreSQL runs on this machine
with its default durability.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import keep, summarise
from dpfuse.guarantee import Guarantee

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
STREAMS, SENSORS, SHARED = 1000, 40, 0.03
BOUNDARIES = 6
GUARANTEE = Guarantee(order=2.0, budget=0.5, adjacency="remove-one", accounting="individual")


def main() -> None:
    """Measure and write results/bank.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centres", type=int, nargs="+", default=[1, 4, 10], help="numbers of centres")
    centres = parser.parse_args().centres
    from support.postgres_server import Server

    server = Server()
    try:
        by_size = {str(number): measure(server, number) for number in centres}
    finally:
        server.remove()
    settings = {"streams_per_centre": STREAMS, "sensors_per_stream": SENSORS, "shared": SHARED, "epoch_s": 2.0}
    command = f"python -m benchmarks.bank --centres {' '.join(map(str, centres))}"
    keep("bank", {"settings": settings, "centres": by_size}, command=command, packages=["psycopg"])


def measure(server: Any, num_centres: int) -> dict[str, Any]:
    """Boundaries of a bank with so many centres."""
    from dpfuse.ledger.bank.bank import Bank
    from dpfuse.ledger.bank.rules import Submission

    capacity = STREAMS * SENSORS
    ids = [np.arange(capacity) + number * round(capacity * (1 - SHARED)) for number in range(num_centres)]
    parts: dict[str, list[float]] = {"messages": [], "closing": [], "loans": [], "boundary": []}
    where = server.url(f"size{num_centres}")
    with Bank.create(where, GUARANTEE, epoch_s=2.0, patience=30, capacity=capacity) as bank:
        names = [f"centre-{number}" for number in range(num_centres)]
        generations = [bank.register(name, f"{name}-ledger", name, [name], 0) for name in names]
        first = bank.terms.epoch_at(bank.now()) - BOUNDARIES - 2
        known: list[set[int]] = [set() for _ in names]
        to_state: list[dict[int, Any]] = [{} for _ in names]
        for boundary in range(first, first + BOUNDARIES):
            begin = time.perf_counter()
            for name, generation, claims, statements in zip(names, generations, ids, to_state, strict=True):
                own = Submission(
                    centre=name, generation=generation, boundary=boundary, claims=claims, statements=statements
                )
                bank.submit(own, 0)
            sent = time.perf_counter()
            assert bank.close_boundary(boundary)
            closed = time.perf_counter()
            for place, (name, generation) in enumerate(zip(names, generations, strict=True)):
                loans = bank.loans(name, generation, known[place])
                known[place] |= set(loans)
                to_state[place] = {epoch: loan.amounts // 2 for epoch, loan in loans.items()}
            end = time.perf_counter()
            if boundary > first + 1:  # the first ones open accounts and have nothing to state
                for part, seconds in (
                    ("messages", sent - begin),
                    ("closing", closed - sent),
                    ("loans", end - closed),
                    ("boundary", end - begin),
                ):
                    parts[part].append(seconds)
        bank.verify()
        accounts = int(bank._value("SELECT count(*) FROM accounts"))
    return {"accounts": accounts, "ms": {part: summarise(values).to_dict() for part, values in parts.items()}}


if __name__ == "__main__":
    main()
