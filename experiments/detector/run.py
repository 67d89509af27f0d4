"""What an upstream detector's count adds on US-101: `make detector DATA=DIR`.

A detector at the upstream end of the section counts all vehicles, and its count of the last 30 s is a public input. The
same designs are trained with it and without it, on the split of the case study. Each budget writes its files in the
folder; a design whose file exists is not trained again, so a run that was stopped goes on where it was. Writes
results.json beside this file.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dpfuse
from dpfuse import data
from experiments.running import write_json
from experiments.us101 import jobs, traffic
from experiments.us101.job_results import JobResults, figures
from experiments.us101.jobs import Job, path_of
from tools.results import describe_machine, results_path, write_results

COUNTED_S = 30.0
# How many counts the detector alone is given: those of two minutes.
NUM_COUNTS = 4
# A vehicle that is first seen this far into the section, in m, has not passed the detector at its upstream end.
NEAR_M = 30.0
KINDS = ("without", "with")


def main() -> None:
    """Train and test what is missing, then write results.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("DPFUSE_DATA"), help="folder of the NGSIM files")
    parser.add_argument("--folder", type=Path, default=Path("out/detector"), help="for the files of the designs")
    parser.add_argument("--budgets", type=float, nargs="+", default=jobs.BUDGETS)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=results_path("detector"))
    parser.add_argument("--note", help="in what this run differs from the command")
    options = parser.parse_args()
    dpfuse.use_all_cores()
    machine = describe_machine()
    plain = data.us101(options.data, section=traffic.SECTION, interval_s=traffic.INTERVAL_S, progress=True)
    counted = replace(plain, public=detector_counts(plain))
    plan = [Job(kind="individual", guided=True, budgets=(each,), num_seeds=options.seeds) for each in options.budgets]
    for job in plan:
        for kind, recording in zip(KINDS, (plain, counted), strict=True):
            if not path_of(job, folder_of(job, kind, options.folder)).exists():
                train_and_test(job, recording, folder_of(job, kind, options.folder), options.updates)
    results = {"counted_s": COUNTED_S, "updates": options.updates, "alone": detector_alone(counted)}
    results |= collect(plan, options.folder)
    seeds = range(options.seeds)
    write_results(
        options.out, results, command="make detector DATA=DIR", seeds=seeds, machine=machine, note=options.note
    )
    for budget, rows in results["budgets"].items():
        errors = ", ".join(f"{rows[kind]['mse']:.1f} {kind}" for kind in KINDS)
        print(f"B = {budget}: {errors} the detector ({rows['with']['ratio']:.3f})")


def detector_counts(recording: dpfuse.Trajectories) -> NDArray[np.float32]:
    """The count of each 30 s at the first step after them, NaN at all other steps, shape (N, K, 1).

    That is the first row that a live centre could put it in: a row holds what came before its step began.
    """
    every = round(COUNTED_S / recording.interval_s)
    first = recording.begins_stay & recording.present & (recording.measurements[..., 0] < NEAR_M)
    first[:, 0] = False  # those on the section when the recording begins
    passed = np.cumsum(first.sum(-1), axis=1)
    counts = np.full((*passed.shape, 1), np.nan, np.float32)
    ends = np.arange(every, recording.num_steps, every)
    before = np.concatenate([np.zeros_like(passed[:, :1]), passed], axis=1)  # who passed before each step
    counts[:, ends, 0] = before[:, ends] - before[:, ends - every]
    return counts


def detector_alone(recording: dpfuse.Trajectories) -> float:
    """The squared error on the test part of the best linear estimate from the last counts, with no report at all."""
    assert recording.public is not None and recording.num_runs == 1
    every, total = round(COUNTED_S / recording.interval_s), recording.num_steps
    steps = np.arange(NUM_COUNTS * every, total)
    columns = [recording.public[0, steps - i * every, 0].astype(np.float64) for i in range(NUM_COUNTS)]
    features = np.stack([np.ones(len(steps)), *columns], axis=1)
    state = recording.state[0, steps].astype(np.float64)
    training, tested = steps < round(0.8 * total), steps >= round(0.9 * total)
    weights = np.linalg.lstsq(features[training], state[training], rcond=None)[0]
    return float(np.mean((features[tested] @ weights - state[tested]) ** 2))


def folder_of(job: Job, kind: str, folder: Path) -> Path:
    """Where the designs of one budget are, with or without the detector; a job's own name has no budget."""
    (budget,) = job.budgets
    return folder / f"B{budget:g}" / kind


def train_and_test(job: Job, recording: dpfuse.Trajectories, folder: Path, updates: int) -> None:
    """Train the designs of the job, test them and write what the tests showed."""
    began = time.perf_counter()
    parts = traffic.paper_split(recording, job.share)
    designs = dpfuse.train_many(
        parts.training,
        parts.validation,
        job.guarantees,
        seeds=range(job.num_seeds),
        horizon=job.horizon,
        architecture=job.architecture,
        optimisation=dpfuse.Optimisation(num_updates=updates, patience=10**6),
        progress=True,
    )
    rows = [
        figures(design.training | {"budget": job.budgets[0]}, dpfuse.evaluate(design, parts.test)) for design in designs
    ]
    write_json(path_of(job, folder), {"job": job.name, "designs": rows})
    print(
        f"B = {job.budgets[0]:g}, {folder.name} the detector: {time.perf_counter() - began:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def collect(plan: list[Job], folder: Path) -> dict[str, Any]:
    """Errors with and without the detector at each budget, each with its interval, and their ratio."""
    results: dict[str, Any] = {"budgets": {}}
    for job in sorted(plan, key=lambda job: job.budgets):
        own = {kind: JobResults(folder_of(job, kind, folder), job) for kind in KINDS}
        (budget,) = job.budgets
        results["prior_mse"] = own["without"].prior_mse
        results["budgets"][f"{budget:g}"] = {
            "without": own["without"].row(budget),
            "with": own["with"].row(budget, own["without"]),
        }
    return results


if __name__ == "__main__":
    main()
