"""How long a centre of 1,000 streams takes to its first release after a restart: `python -m benchmarks.restart`.

The rows of a day with a release every second (86,400 steps, or --steps) are generated with hashes, tips, debits and
seals as a centre writes them; 10 sensors of each stream pay at every step. Then a process opens the ledger, as
`dpfuse serve` does, and makes one step. For comparison the same after a tenth of the steps. `verify` reads every row.
The processor time of the process is measured beside the time that passes, as it depends less on what else the machine
does. A day takes 10 GB of disk. A small ledger is packed, for the bytes of a packed row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import dpfuse
from dpfuse.centre.rebuild import num_steps_between_memories, to_memory
from dpfuse.ledger import verify
from dpfuse.ledger.debits import Debits
from dpfuse.policy.exact import ExactStep
from dpfuse.public.rows import Row
from tools.results import results_path, write_results

NUM_STREAMS, INTERVAL_S = 1000, 1.0
DAY_STEPS = round(86_400 / INTERVAL_S)
STREAMS = [f"s{number:04}" for number in range(NUM_STREAMS)]
_AT_ONCE = 16
# Far below a budget after a day: 86,400 of them are 9e7 of 5e11 squared grid steps.
_DEBITS = Debits(np.arange(10 * NUM_STREAMS), np.full(10 * NUM_STREAMS, 1000))
_PACKED_STEPS = 160


def make_design() -> dpfuse.Design:
    guarantee = dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one", accounting="individual")
    sizes = {"num_states": 1, "num_channels": 2, "dimension": 2, "features": "ball"}
    expected = {"expected_stay": 100.0, "expected_sensors": 10.0}
    return dpfuse.Design.untrained(guarantee, spending="adaptive", horizon=None, **sizes, **expected)


def generate(path: Path, design: dpfuse.Design, num_steps: int) -> None:
    """Append rows up to step `num_steps`, as a centre would have written them."""
    rng = np.random.default_rng(0)
    with dpfuse.Ledger.open(path, design, is_full_check=False) as ledger:
        begun = ledger.newest_step
        for first in range(begun + 1, num_steps + 1, _AT_ONCE):
            ledger._connection.execute("BEGIN IMMEDIATE")
            for step in range(first, min(first + _AT_ONCE, num_steps + 1)):
                noise = rng.normal(0, 2**20, (NUM_STREAMS, 2)).astype("<i8")
                rows = [
                    Row.after(
                        ledger.found.streams[name].last_hash,
                        name,
                        step,
                        noise[number].tobytes(),
                        74_000,
                        None,
                        None,
                        ledger.terms.design_id,
                    )
                    for number, name in enumerate(STREAMS)
                ]
                commitment = ledger._debit(_DEBITS)
                ledger._advance(ledger._insert(commitment, rows), commitment, rows)
            ledger._connection.execute("COMMIT")
            ledger._write_head()
            ledger.checkpoint()
        interval = num_steps_between_memories(NUM_STREAMS)
        carry = ExactStep(design, 64, NUM_STREAMS).init()
        for back in (2 * interval - 1, interval - 1):  # the longest that a memory can be ago
            ledger.keep_memory(to_memory(carry._replace(num_steps=max(1, num_steps - back))))


def packed_bytes(path: Path, design: dpfuse.Design) -> float:
    """The bytes of a packed row."""
    dpfuse.Ledger.create(path, design, STREAMS).close()
    generate(path, design, _PACKED_STEPS)
    with dpfuse.Ledger.open(path, design) as ledger:
        ledger.pack_rows_after(_PACKED_STEPS // 2)
        centre = dpfuse.FusionCentre(design, ledger)
        for _ in range(4):
            centre.tick()
            centre.maintain()
        query = "SELECT sum(length(content)), max(last_step) FROM segments"
        [(size, num_steps)] = ledger._connection.execute(query).fetchall()
    return size / (num_steps * NUM_STREAMS)


def restart(path: Path) -> dict[str, float]:
    """Seconds from the start of a process to the end of its first step, and the parts of it."""
    begin_s, used_s = time.monotonic(), processor_s()
    command = [sys.executable, "-m", "benchmarks.restart", "--open", str(path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    times_s = {"to_first_release_s": time.monotonic() - begin_s, "processor_s": processor_s() - used_s}
    return json.loads(answer) | times_s


def processor_s() -> float:
    """The processor time of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def open_once(path: Path) -> dict[str, float]:
    """What `dpfuse serve` does up to the first release, without waiting for the clock."""
    from dpfuse.policy.exact import compute_inline

    compute_inline()
    design, times_s = make_design(), [time.monotonic()]
    ledger = dpfuse.Ledger.open(path, design, is_full_check=False)
    times_s.append(time.monotonic())
    centre = dpfuse.FusionCentre(design, ledger)
    times_s.append(time.monotonic())
    centre.tick()
    times_s.append(time.monotonic())
    ledger._close_files()  # the ledger stays as it was, but for the one step
    return dict(zip(("open_ledger_s", "open_centre_s", "first_step_s"), np.diff(times_s).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=DAY_STEPS)
    parser.add_argument("--open", type=Path, help="only open this ledger, and print the times")
    parser.add_argument("--out", type=Path, default=results_path("restart"))
    options = parser.parse_args()
    if options.open:
        print(json.dumps(open_once(options.open)))
        return
    design, figures = make_design(), []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        path = Path(folder) / "day.db"
        dpfuse.Ledger.create(path, design, STREAMS).close()
        for steps in (options.steps // 10, options.steps):
            generate(path, design, steps)
            row: dict[str, Any] = {"steps": steps, "rows": steps * NUM_STREAMS}
            row |= {"bytes_per_row": path.stat().st_size / row["rows"]} | restart(path)
            begin_s = time.monotonic()
            verify(path)
            figures.append(row | {"verify_s": time.monotonic() - begin_s})
            print(figures[-1], flush=True)
        row_bytes = packed_bytes(Path(folder) / "packed.db", design)
    results = {"streams": NUM_STREAMS, "interval_s": INTERVAL_S, "ledgers": figures, "packed_bytes_per_row": row_bytes}
    results |= {"load_average": round(os.getloadavg()[0], 1)}
    write_results(options.out, results, command=f"python -m benchmarks.restart --steps {options.steps}", seeds=[0])


if __name__ == "__main__":
    main()
