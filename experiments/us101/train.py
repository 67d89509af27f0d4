"""How the designs of one job are trained and tested."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dpfuse
from experiments.running import write_json
from experiments.us101 import jobs, traffic
from experiments.us101.job_results import figures, first_design
from experiments.us101.jobs import CANDIDATES, RECORDING, WHO_REPORTS, Job, path_of

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


def setting(job: Job, folder: Path, optimisation: dpfuse.Optimisation) -> dict[str, Any]:
    """How the designs of the job are trained, as a sweep takes it."""
    chosen = job if job.features or job.kind == "floor" else choose(job, folder)
    return {
        "recordings": [job.recording],
        "guarantees": job.guarantees,
        "seeds": range(job.num_seeds),
        "spending": jobs.SPENDING.get(job.kind, "adaptive"),
        "method": "ppo" if job.kind == "ppo" else "pathwise",
        "horizon": job.horizon,
        "stationary": job.horizon is None,
        "architecture": chosen.architecture,
        "optimisation": optimisation,
        "ppo": dict(job.ppo),
    }


def make_parts(job: Job, folder: Path) -> traffic.Parts:
    """What the job trains and tests on."""
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    if job.fold is None:
        parts = traffic.paper_split(recording, job.share)
    else:
        parts = traffic.fold(recording, job.share, job.fold)
    return parts if job.spread is None else traffic.with_freeways(parts, job.share, job.spread, on_us101=job.on_us101)


def retest(plan: list[Job], folder: Path) -> None:
    """Test the first seeds again, with more choices of reporting vehicles."""
    dpfuse.use_all_cores()
    elsewhere = folder / WHO_REPORTS
    waiting = [job for job in plan if not path_of(job, elsewhere).exists()]
    (share,) = {job.share for job in plan}
    again = traffic.paper_split(dpfuse.Trajectories.load(folder / RECORDING), share, traffic.MORE_TESTS).test
    for number, job in enumerate(waiting, 1):
        rows = [first_design(job, budget, folder) for budget in jobs.LONG]
        designs = [figures(row, dpfuse.evaluate(dpfuse.load(row["design"]), again)) for row in rows]
        write_json(path_of(job, elsewhere), {"job": job.name, "designs": designs})
        print(f"{number} of {len(waiting)} tested again: {job.name}", file=sys.stderr, flush=True)


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
