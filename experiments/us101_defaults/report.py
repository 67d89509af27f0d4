"""Collect the results of the jobs and write results.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from experiments.us101.job_results import JobResults
from experiments.us101.jobs import path_of
from experiments.us101_defaults import jobs
from experiments.us101_defaults.jobs import ADJACENCIES, Job
from experiments.us101_defaults.train import FEW_TESTS, NUM_TESTS
from tools.results import results_path, write_results

COMMAND = "make us101-defaults DATA=DIR"


def write(folder: Path, note: str | None = None) -> None:
    """Write results.json beside this file."""
    machine = json.loads((folder / "machine.json").read_text())
    machine.pop("updates")
    path = results_path("us101_defaults")
    results = collect(folder)
    write_results(path, results, command=COMMAND, seeds=range(5), machine=machine, note=note)
    print(f"Results are in {path}")


def collect(folder: Path) -> dict[str, Any]:
    """The results of the jobs that are done."""
    split = {
        adjacency: _read(folder, [job for job in jobs.split() if job.adjacency == adjacency])
        for adjacency in ADJACENCIES
    }
    usual, recorded = split["remove-one"], _read(folder, jobs.recorded())
    floors = {"without end": _read(folder, jobs.floors()[:1]), "K = 100": _read(folder, jobs.floors()[1:])}
    floors["K = 100, US-101 alone"] = {kind: own for kind, own in recorded.items() if kind == "floor"}
    folds = {kind: _folds(kind) for kind in jobs.COMPARED}
    return _times(folder) | {
        "floors": {name: rows(found["floor"])[0] for name, found in floors.items() if found},
        "split": {adjacency: _against_classical(found) for adjacency, found in split.items()},
        "endless": _against_classical(_read(folder, jobs.endless())),
        "filters": {label: rows(own, usual.get("classical")) for label, own in _read(folder, jobs.filters()).items()},
        "recorded": {kind: rows(own, usual.get(kind)) for kind, own in recorded.items() if kind != "floor"},
        "folds": _against_classical(
            {kind: JobResults(folder, own[0], len(own)) for kind, own in folds.items() if _are_done(folder, own)}
        ),
    }


def rows(own: JobResults, reference: JobResults | None = None) -> list[dict[str, Any]]:
    """The figures at every budget, with the worst seed and the error with the first few choices of vehicles."""
    found = []
    for row in own.rows(reference):
        by_fold, errors = own.designs[row["budget"]], own.errors(row["budget"])
        seeds = np.mean([[design["mse"] for design in designs] for designs in by_fold], axis=0)
        few = len(errors) if len(by_fold) > 1 else len(errors) * FEW_TESTS // NUM_TESTS
        found.append(row | {"worst_seed": float(seeds.max()), "few_mse": float(errors[:few].mean())})
    return found


def _against_classical(found: dict[str, JobResults]) -> dict[str, Any]:
    return {kind: rows(own, found.get("classical")) for kind, own in found.items()}


def _read(folder: Path, plan: list[Job]) -> dict[str, JobResults]:
    """The results of the jobs that are done, by label."""
    return {job.label: JobResults(folder, job) for job in plan if path_of(job, folder).exists()}


def _folds(kind: str) -> list[Job]:
    return [job for job in jobs.folds() if job.kind == kind]


def _are_done(folder: Path, plan: list[Job]) -> bool:
    return all(path_of(job, folder).exists() for job in plan)


def _times(folder: Path) -> dict[str, Any]:
    found = [json.loads(path.read_text()) for path in sorted((folder / "jobs").glob("*.json"))]
    return {
        "num_designs": sum(len(job["designs"]) for job in found),
        "job_seconds": {job["job"]: round(job["training_s"] + job["test_s"]) for job in found},
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
