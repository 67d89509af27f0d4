"""Time of one durable release, beside the time of its noise and one sync of a file alone.

Both are measured in turn in one run, so that other load on the machine slows both alike. A durable release is one step
of a ledger with one stream (check, debit, draw, record, commit) for 64 sensors that were charged before.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.progress import track

import dpfuse
from benchmarks.live_step import SENSORS, make_design
from benchmarks.timing import Timing, keep, summarise
from dpfuse.policy.exact import compute_inline
from dpfuse.privacy import add_noise

REPEATS = 1500


def main() -> None:
    """Measure and write results/durable.json."""
    compute_inline()
    results = {}
    for accounting in ("total", "individual"):
        release, bare = measure(accounting)
        results[accounting] = {
            "durable release": release.to_dict(),
            "noise and one sync": bare.to_dict(),
            "ratio_of_medians": round(release.median / bare.median, 2),
        }
    settings = {"sensors": SENSORS, "dimension": 2, "repeats": REPEATS}
    keep("durable", {"settings": settings, "ms": results}, packages=["apsw"])


def measure(accounting: str) -> tuple[Timing, Timing]:
    """Milliseconds of a durable release, and of noise and sync alone."""
    design, rng = make_design(accounting, num_steps=REPEATS + 20), np.random.default_rng(0)
    step, ids = dpfuse.ExactStep(design, SENSORS), np.arange(SENSORS)
    durable, bare = [], []
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "bare", "wb", buffering=0) as file:
        with dpfuse.Ledger.create(Path(folder) / "ledger.db", design) as ledger:
            carry = step.init(ledger.accounts("main"))
            for number in track(range(1, REPEATS + 21), f"{accounting} accounts"):
                carry, charged = step.contribute(carry, ids, rng.uniform([0, 0], [400, 20], size=(SENSORS, 2)))
                start = time.perf_counter()
                [row] = ledger.commit([dpfuse.Entry("main", number, charged, ids)])
                middle = time.perf_counter()
                file.write(add_noise(np.zeros(2, np.int64)).tobytes())
                os.fdatasync(file.fileno())
                bare.append(time.perf_counter() - middle)
                durable.append(middle - start)
                carry, _ = step.estimate(carry, row.to_release())
    return summarise(durable[20:]), summarise(bare[20:])  # without the first ones, which fill caches


if __name__ == "__main__":
    main()
