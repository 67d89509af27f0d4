"""Collect the results of the jobs, write results.json, and draw the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from experiments.us101 import figures, jobs, tables
from experiments.us101.job_results import JobResults, against_classical
from experiments.us101.jobs import ADJACENCIES, WHO_REPORTS, Job, path_of
from experiments.us101.tables import SIMULATED
from experiments.us101.traffic import MORE_TESTS, NUM_TESTS
from tools.results import read_results, results_path, write_results


def write_report(folder: Path, *, only_guided: bool = False) -> None:
    """Write results.json and the figures beside this file; if `only_guided`, the other results stay."""
    path = results_path("us101")
    part = "guided" if only_guided else None
    plan = [*jobs.guided_candidates(), *jobs.guided()] if only_guided else None
    write_results(
        path,
        collect_guided(folder) if only_guided else collect(folder),
        command=f"make us101{'-guided' if only_guided else ''} DATA=DIR",
        seeds=range(5),
        devices=sorted({found["device"] for found in _read_jobs(folder, plan)}),
        part=part,
    )
    figures.draw(read_results("us101"), folder, path.parent / "figures", only_guided=only_guided)
    print(f"Results and figures are in {path.parent}/")


def write_quick(folder: Path) -> None:
    """Print a table of one budget and one seed, and write it with its figure into the folder."""
    found = {job.label: JobResults(folder, job) for job in jobs.quick()}
    results = {"split": {"remove-one": against_classical(found)}} | _yardsticks(found["floor"])
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    figures.draw(results, folder, folder)
    print(f"{tables.split(results)}\nResults and figures are in {folder}/")


def collect(folder: Path) -> dict[str, Any]:
    """The results of the whole study."""
    split = {
        adjacency: {job.kind: JobResults(folder, job) for job in jobs.headline() if _is_private(job, adjacency)}
        for adjacency in ADJACENCIES
    }
    (floor,) = (JobResults(folder, job) for job in jobs.headline() if job.kind == "floor")
    results = _times(folder) | {"choice": _choice(folder, jobs.candidates())} | _yardsticks(floor)
    results["split"] = {adjacency: against_classical(found) for adjacency, found in split.items()}
    results["per_step"] = {adjacency: _per_step(found) for adjacency, found in split.items()}
    folds: dict[str, dict[Any, JobResults]] = {adjacency: {} for adjacency in ADJACENCIES}
    for job in jobs.folds():
        if job.fold == 0:
            folds[job.adjacency][job.kind] = JobResults(folder, job, num_folds=5)
    results["folds"] = {adjacency: against_classical(found) for adjacency, found in folds.items()}
    results["sensitivity"] = _sensitivity(folder, split["remove-one"])
    results["enlarged"] = _enlarged(folder)
    results["who_reports"] = _who_reports(folder, jobs.retested())
    results["ablation"] = [
        {"changes": dict(job.ppo), "designs": JobResults(folder, job).rows()} for job in jobs.ablation()
    ]
    results["guided"] = collect_guided(folder)
    return results


def _is_private(job: Job, adjacency: str) -> bool:
    return job.kind != "floor" and job.adjacency == adjacency


def collect_guided(folder: Path) -> dict[str, Any]:
    """The results of guided designs, each table against the classical design in it."""
    groups: dict[str, dict[str, JobResults]] = {}
    floor: dict[str, Any] = {}
    for job in jobs.guided():
        if job.kind == "floor":
            floor = JobResults(folder, job).row(None)
        else:
            where = "the paper's split" if job.horizon == 100 else _title(job)
            groups.setdefault(f"{job.adjacency}, {where}, guided", {})[job.label] = JobResults(folder, job)
    found = {title: against_classical(group) for title, group in groups.items()}
    return {
        **_times(folder, [*jobs.guided_candidates(), *jobs.guided()]),
        "choice": _choice(folder, jobs.guided_candidates()),
        "floor": floor,
        "tables": found | _who_reports(folder, jobs.guided_retested(), ", guided"),
    }


def _sensitivity(folder: Path, trained_on_us101: dict[Any, JobResults]) -> dict[str, Any]:
    """Other shares, horizons and training data; designs trained on simulated traffic against those of US-101."""
    groups: dict[str, list[Job]] = {}
    for job in jobs.sensitivity():
        groups.setdefault(_title(job), []).append(job)
    found = {}
    for title, group in groups.items():
        results = {job.kind: JobResults(folder, job) for job in group}
        if group[0].on_us101:
            found[title] = against_classical(results)
        else:
            found[title] = {kind: own.rows(trained_on_us101[kind]) for kind, own in results.items()}
    return found


def _enlarged(folder: Path) -> dict[str, Any]:
    """Training on US-101 and simulated traffic, each table against the classical design in it."""
    groups: dict[str, dict[Any, JobResults]] = {}
    floor: dict[str, Any] = {}
    for job in jobs.enlarged():
        if job.kind == "floor":
            floor = JobResults(folder, job).row(None)
        else:
            title = job.adjacency if job.horizon == 100 else f"{job.adjacency}, {_title(job)}"
            groups.setdefault(f"{title}, {SIMULATED}", {})[job.kind] = JobResults(folder, job)
    return {"floor": floor, "tables": {title: against_classical(found) for title, found in groups.items()}}


def _who_reports(folder: Path, plan: list[Job], ending: str = "") -> dict[str, Any]:
    """The first seeds with more choices of reporting vehicles; `usual_mse` is with the usual ones, which come first."""
    groups: dict[str, dict[Any, JobResults]] = {}
    for job in plan:
        title = f"{job.adjacency}, {MORE_TESTS} choices{f', {SIMULATED}' if job.is_enlarged else ending}"
        groups.setdefault(title, {})[job.label] = JobResults(folder / WHO_REPORTS, job)
    results = {title: against_classical(found) for title, found in groups.items()}
    for title, found in groups.items():
        for kind, own in found.items():
            for row in results[title][kind]:
                errors = own.errors(row["budget"])
                row["usual_mse"] = float(errors[: len(errors) * NUM_TESTS // MORE_TESTS].mean())
    return results


def _title(job: Job) -> str:
    if not job.on_us101:
        return f"trained on simulated traffic, give or take {job.spread:.0%}"
    if job.horizon is None:
        return "stationary, over the whole test part"
    return f"{job.horizon} steps, {job.share:.0%} report"


def _yardsticks(floor: JobResults) -> dict[str, Any]:
    return {"floor": floor.row(None), "prior_mse": floor.prior_mse}


def _per_step(found: dict[Any, JobResults]) -> dict[str, Any]:
    names = ("mse_per_step", "budget_per_step")
    return {kind: {name: np.round(own.mean(1.5, name), 6).tolist() for name in names} for kind, own in found.items()}


def _choice(folder: Path, candidates: list[Job]) -> list[dict[str, Any]]:
    """Validation error of every feature set that was tried."""
    tried = []
    for job in candidates:
        rows = JobResults(folder, job).rows()
        tried.append(
            {
                "adjacency": job.adjacency,
                "accounting": job.accounting,
                "simulated_traffic": job.is_enlarged,
                "features": job.features,
                "dimension": job.dimension,
                **{name: {f"{row['budget']:g}": row[name] for row in rows} for name in ("validation_mse", "mse")},
            }
        )
    return tried


def _times(folder: Path, plan: list[Job] | None = None) -> dict[str, Any]:
    found = _read_jobs(folder, plan)
    return {
        "num_designs": sum(len(job["designs"]) for job in found),
        "job_seconds": {job["job"]: round(job["training_s"] + job["test_s"], 1) for job in found},
    }


def _read_jobs(folder: Path, plan: list[Job] | None) -> list[dict[str, Any]]:
    """The files of the jobs, by default of all."""
    paths = (folder / "jobs").glob("*.json") if plan is None else [path_of(job, folder) for job in plan]
    return [json.loads(path.read_text()) for path in sorted(paths)]
