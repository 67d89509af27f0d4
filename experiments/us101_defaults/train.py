"""Train and test the designs of one job, with the settings that `dpfuse.train` has by default."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dpfuse
from experiments.running import rounded, write_json
from experiments.us101 import traffic
from experiments.us101.jobs import path_of
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


def train_and_test(job: Job, folder: Path, updates: int | None = None) -> None:
    """Train the designs of the job, test them, and write both to files."""
    began = time.perf_counter()
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    parts = traffic.paper_split(recording, SHARE, NUM_TESTS)
    if job.fold is not None:
        parts = traffic.fold(recording, SHARE, job.fold)
    if job.simulated:
        parts = traffic.with_freeways(parts, SHARE, SPREAD, on_us101=True)
    designs = dpfuse.train_many(
        parts.training,
        parts.validation,
        job.guarantees,
        seeds=range(job.num_seeds),
        spending=jobs.SPENDING.get(job.kind, "adaptive"),
        method="ppo" if job.kind == "ppo" else "pathwise",
        horizon=job.horizon,
        stationary=job.horizon is None,
        architecture=job.architecture,
        optimisation=optimisation_of(job, updates),
        progress=True,
    )
    trained = time.perf_counter()
    rows = [test(design, parts.test) for design in designs]
    seconds = {"training_s": trained - began, "test_s": time.perf_counter() - trained}
    write_json(path_of(job, folder), rounded({"job": job.name, "designs": rows} | seconds))


def test(design: dpfuse.Design, recording: dpfuse.Trajectories) -> dict[str, Any]:
    """Errors, spending and coverage of one design, window by window and step by step."""
    length = design.structure.horizon or recording.num_steps
    report = dpfuse.evaluate(design, recording, num_draws=1, stride=length // 2)
    figures = report.to_dict()
    kept = ("mse", "mse_per_step", "budget_per_step", "budget_spent_max", "within_budget", "coverage", "prior_mse")
    return {
        "budget": design.guarantee.budget if design.guarantee else None,
        "seed": design.training["seed"],
        "validation_mse": design.training["validation_mse"],
        "epsilon": report.epsilon.get("gdp"),
        **{name: figures[name] for name in kept},
        "window_errors": report.window_errors.tolist(),
        "window_starts": [window.start for window in report.origins],
    }
