"""How the designs of one job are trained and tested, with the settings that `dpfuse.train` has by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dpfuse
from experiments.us101 import traffic
from experiments.us101_defaults import jobs
from experiments.us101_defaults.jobs import RECORDING, Job

# Of the vehicles that report; of the parameters of the simulated freeways.
SHARE, SPREAD = 0.3, 0.1
# Choices of reporting vehicles in the test, and how many of them come first as on folds.
NUM_TESTS, FEW_TESTS = 16, traffic.NUM_TESTS

# Updates: the default of `dpfuse.train`; for folds and side tables; for windows of 600 steps, of which each takes long.
WHOLE, SIDE_TABLES, ENDLESS = 2000, 1000, 700


def optimisation_of(job: Job, updates: int | None) -> dpfuse.Optimisation:
    """The default settings with the number of updates that the study has time for."""
    if updates is None:
        is_side_table = job.fold is not None or job.recurrent_filter is not None or not job.simulated
        updates = ENDLESS if job.horizon is None else SIDE_TABLES if is_side_table else WHOLE
    # The validation part of a fold is some three minutes. If they are calm, weights that give little more than the mean
    # have the lowest error there. So weights are compared only a few times.
    every = 100 if job.fold is None else updates // 4
    return dpfuse.Optimisation(num_updates=updates, validate_every=every)


def setting(job: Job, updates: int | None = None) -> dict[str, Any]:
    """How the designs of the job are trained and tested, as a sweep takes it."""
    return {
        "recordings": [job.recording],
        "guarantees": job.guarantees,
        "seeds": range(job.num_seeds),
        "evaluation": {"num_draws": 1, "stride": job.horizon and job.horizon // 2},
        "spending": jobs.SPENDING.get(job.kind, "adaptive"),
        "method": "ppo" if job.kind == "ppo" else "pathwise",
        "horizon": job.horizon,
        "stationary": job.horizon is None,
        "architecture": job.architecture,
        "optimisation": optimisation_of(job, updates),
    }


def make_parts(job: Job, folder: Path) -> traffic.Parts:
    """What the job trains and tests on."""
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    if job.fold is None:
        parts = traffic.paper_split(recording, SHARE, NUM_TESTS)
    else:
        parts = traffic.fold(recording, SHARE, job.fold)
    return traffic.with_freeways(parts, SHARE, SPREAD, on_us101=True) if job.simulated else parts
