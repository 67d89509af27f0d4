"""What the test of a job's designs showed: errors with intervals, and ratios to other designs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse import Report
from dpfuse._arrays import Floats, Integers
from dpfuse.evaluation.bootstrap import block_interval
from dpfuse.sweeps import SweepResult
from experiments.running import rounded, write_json
from experiments.us101.jobs import WHO_REPORTS, Job, path_of
from experiments.us101.traffic import INTERVAL_S

# Windows that start within one block are resampled together: 30 s of the short test part, which has nine such blocks,
# and 3 minutes of the folds, which is the length of a wave.
BLOCK_S, FOLD_BLOCK_S = 30.0, 180.0


def write_jobs(result: SweepResult, plan: Iterable[Job], folder: Path) -> None:
    """Write a file for each job, with the figures of its designs. A new one makes later tests of them void."""
    for job in plan:
        own = result.select(setting=job.name)
        seconds = {took: round(sum(row[took] for row in own.rows), 1) for took in ("training_s", "test_s")}
        designs = [figures(*pair) for pair in zip(own.rows, own.reports, strict=True)]
        content = {"job": job.name, "device": own.rows[0]["device"].partition(" x ")[2], **seconds, "designs": designs}
        path = path_of(job, folder)
        if not path.exists() or json.loads(path.read_text()) != content:
            write_json(path, content)
            path_of(job, folder / WHO_REPORTS).unlink(missing_ok=True)


def figures(row: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Errors, spending and coverage of one design, window by window and step by step."""
    found = report.to_dict()
    of_row = ("budget", "seed", "validation_mse", "design")
    kept = ("mse", "mse_per_step", "budget_per_step", "budget_spent_max", "within_budget", "coverage", "prior_mse")
    return rounded(
        {name: row[name] for name in of_row if name in row}
        | {name: found[name] for name in kept}
        | {"epsilon": report.epsilon.get("gdp"), "window_errors": report.window_errors.tolist()}
        | {"window_starts": [window.start for window in report.origins]}
    )


def first_design(job: Job, budget: float, folder: Path) -> dict[str, Any]:
    """The figures of the first seed at a budget; `design` names its file."""
    return next(row for row in json.loads(path_of(job, folder).read_text())["designs"] if row["budget"] == budget)


class JobResults:
    """The tested designs of one job, or of the same job on all folds."""

    def __init__(self, folder: Path, job: Job, num_folds: int | None = None) -> None:
        numbers: list[int | None] = [job.fold] if num_folds is None else list(range(num_folds))
        parts = [json.loads(path_of(replace(job, fold=number), folder).read_text()) for number in numbers]
        self.designs = {
            budget: [[d for d in part["designs"] if d["budget"] == budget] for part in parts]
            for budget in dict.fromkeys(design["budget"] for design in parts[0]["designs"])
        }
        first = [next(iter(of_fold)) for of_fold in next(iter(self.designs.values()))]
        starts = np.concatenate([np.asarray(design["window_starts"]) for design in first])
        block_s = BLOCK_S if num_folds is None else FOLD_BLOCK_S
        self.blocks = np.unique(starts // round(block_s / INTERVAL_S), return_inverse=True)[1]
        self.prior_mse = float(np.mean([design["prior_mse"] for design in first]))

    def errors(self, budget: float | None) -> Floats:
        """Squared error of each window, the mean over seeds."""
        by_fold = self.designs[budget]
        return np.concatenate([np.mean([d["window_errors"] for d in designs], axis=0) for designs in by_fold])

    def mean(self, budget: float | None, name: str) -> Any:
        """The mean over seeds and folds of a figure, or of one for each step."""
        return np.mean([design[name] for of_fold in self.designs[budget] for design in of_fold], axis=0)

    def row(self, budget: float | None, reference: JobResults | None = None) -> dict[str, Any]:
        """The figures at one budget; with a reference also the ratio to it, paired window by window."""
        own = self.errors(budget)
        seeds = np.mean([[design["mse"] for design in of_fold] for of_fold in self.designs[budget]], axis=0)
        spent = [design["budget_spent_max"] for of_fold in self.designs[budget] for design in of_fold]
        row = {
            "budget": budget,
            "mse": float(own.mean()),
            "ci95": _interval(own[:, None], self.blocks, lambda m: m[:, 0]),
            "seed_std": float(np.std(seeds, ddof=1)) if len(seeds) > 1 else None,
            "validation_mse": float(self.mean(budget, "validation_mse")),
            "coverage": float(self.mean(budget, "coverage")),
        }
        if budget is not None:
            over = [not d["within_budget"] for of_fold in self.designs[budget] for d in of_fold]
            epsilon = self.designs[budget][0][0]["epsilon"]
            row |= {"most_spent": max(spent), "num_over_budget": sum(over), "epsilon": epsilon}
        if reference is not None and reference is not self:
            pairs = np.stack([own, reference.errors(budget)], axis=1)
            row |= {
                "ratio": float(pairs[:, 0].mean() / pairs[:, 1].mean()),
                "ratio_ci95": _interval(pairs, self.blocks, lambda m: m[:, 0] / m[:, 1]),
                "difference_ci95": _interval(pairs, self.blocks, lambda m: m[:, 0] - m[:, 1]),
            }
        return row

    def rows(self, reference: JobResults | None = None) -> list[dict[str, Any]]:
        """The figures at every budget."""
        return [self.row(budget, reference) for budget in self.designs]


def against_classical(found: dict[str, JobResults]) -> dict[str, Any]:
    """Rows of each kind of design, with the ratio to the classical one among them."""
    return {kind: results.rows(found.get("classical")) for kind, results in found.items() if kind != "floor"}


def _interval(values: Floats, blocks: Integers, statistic: Any) -> list[float] | None:
    interval = block_interval(values, blocks, statistic)
    return None if interval is None else interval.tolist()
