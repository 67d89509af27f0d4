"""Train and test the designs of one job."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpfuse
from experiments.us101 import jobs, traffic
from experiments.us101.jobs import CANDIDATES, RECORDING, WHO_REPORTS, Job, design_path, path_of

# One start and no faults, as the stored results have.
OPTIMISATION = dpfuse.Optimisation(
    num_starts=1, num_updates=1000, faults=0.0, batch_size=32, decay=0.99, exploration=1.0
)
QUICK = replace(OPTIMISATION, num_updates=600, batch_size=16)
GUIDED = replace(OPTIMISATION, num_updates=500)
ENLARGED = replace(OPTIMISATION, num_updates=2000)


def optimisation_of(job: Job) -> dpfuse.Optimisation:
    """How the designs of a job of the full study are trained."""
    if job.is_enlarged:
        return ENLARGED
    usual = GUIDED if job.guided else OPTIMISATION
    # The validation part of a fold is some three minutes. If they are calm, weights that give little more than the mean
    # have the lowest error there. So weights are compared only twice: at half time and at the end.
    return usual if job.fold is None else replace(usual, validate_every=usual.num_updates // 2)


def train_and_test(job: Job, folder: Path, optimisation: dpfuse.Optimisation) -> None:
    """Train the designs of the job, test them, and write both to files."""
    began = time.perf_counter()
    chosen = job if job.features or job.kind == "floor" else choose(job, folder)
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    parts = (
        traffic.paper_split(recording, job.share) if job.fold is None else traffic.fold(recording, job.share, job.fold)
    )
    if job.spread is not None:
        parts = traffic.with_freeways(parts, job.share, job.spread, on_us101=job.on_us101)
    designs = dpfuse.train_many(
        parts.training,
        parts.validation,
        job.guarantees,
        seeds=range(job.num_seeds),
        spending=jobs.SPENDING.get(job.kind, "adaptive"),
        method="ppo" if job.kind == "ppo" else "pathwise",
        horizon=job.horizon,
        stationary=job.horizon is None,
        architecture=chosen.architecture,
        optimisation=optimisation,
        ppo=dpfuse.PPO(**job.ppo),
        progress=True,
    )
    rows = [test(design, parts.test) for design in designs]
    for design in designs[:: job.num_seeds]:
        budget = design.guarantee.budget if design.guarantee else 0
        design.save(design_path(job, budget, folder))
    result = {
        "job": job.name,
        "features": chosen.features,
        "dimension": designs[0].structure.dimension,
        "device": jax.devices()[0].device_kind,
        "seconds": round(time.perf_counter() - began, 1),
        "designs": rows,
    }
    path_of(job, folder / WHO_REPORTS).unlink(missing_ok=True)
    write(path_of(job, folder), result)


def retest(plan: list[Job], folder: Path) -> None:
    """Test the first seeds again, with more choices of reporting vehicles."""
    dpfuse.use_all_cores()
    elsewhere = folder / WHO_REPORTS
    waiting = [job for job in plan if not path_of(job, elsewhere).exists()]
    (share,) = {job.share for job in plan}
    again = traffic.paper_split(dpfuse.Trajectories.load(folder / RECORDING), share, traffic.MORE_TESTS).test
    for number, job in enumerate(waiting, 1):
        designs = [dpfuse.load(design_path(job, budget, folder)) for budget in jobs.LONG]
        write(path_of(job, elsewhere), {"job": job.name, "designs": [test(design, again) for design in designs]})
        print(f"{number} of {len(waiting)} tested again: {job.name}", file=sys.stderr, flush=True)


def test(design: dpfuse.Design, recording: dpfuse.Trajectories) -> dict[str, Any]:
    """Errors, spending and coverage of one design, window by window and step by step."""
    report = dpfuse.evaluate(design, recording)
    figures = report.to_dict()
    kept = ("mse", "mse_per_step", "budget_per_step", "budget_spent_max", "within_budget", "coverage", "prior_mse")
    return {
        "budget": design.guarantee.budget if design.guarantee else None,
        "seed": design.training["seed"],
        "validation_mse": design.training["validation_mse"],
        "epsilon": report.epsilon.get("gdp"),
        **{name: _rounded(figures[name]) for name in kept},
        "window_errors": _rounded(report.window_errors.tolist()),
        "window_starts": [window.start for window in report.origins],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write(path: Path, result: dict[str, Any]) -> None:
    """Write the file at once: a job whose file exists is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(result))
    whole.replace(path)


def choose(job: Job, folder: Path) -> Job:
    """The job with the features that did best on validation, among those of its kind and traffic."""
    rivals = [
        rival
        for rival in [*jobs.candidates(), *jobs.guided_candidates()]
        if (rival.adjacency, rival.accounting, rival.is_enlarged, rival.guided)
        == (job.adjacency, job.accounting, job.is_enlarged, job.guided)
    ]
    assert len(rivals) == len(CANDIDATES[job.adjacency, job.accounting])
    best = min(rivals, key=lambda rival: validation_error(path_of(rival, folder)))
    return replace(job, features=best.features, dimension=best.dimension)


def validation_error(path: Path) -> float:
    """The geometric mean over budgets and seeds: each budget counts alike."""
    designs = json.loads(path.read_text())["designs"]
    return float(np.exp(np.mean([np.log(design["validation_mse"]) for design in designs])))
