"""Baselines and designs at equal guarantees on three systems: `make baselines`, results beside this file."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpfuse
from experiments.baselines import mechanisms
from experiments.baselines.figures import draw
from experiments.baselines.systems import SYSTEMS, Parts
from tools.results import results_path, write_results

BUDGETS = (0.15, 0.5, 1.5)
GUARANTEE = dpfuse.Guarantee(order=2.0, budget=1.0, adjacency="remove-one")
DESIGNS = {
    "classical": ("constant", "total"),
    "adaptive": ("adaptive", "total"),
    "individual": ("adaptive", "individual"),
}


def train_designs(system: str, parts: Parts, updates: int, folder: Path) -> dpfuse.SweepResult:
    """Our designs, trained and tested; those already in the folder are read."""
    horizon = SYSTEMS[system].horizon
    common = {
        "horizon": horizon,
        "recurrent_filter": "gru",  # the paper's f, for all alike
        "num_updates": updates,
        "patience": updates,
    }
    settings = {
        name: common
        | {
            "spending": spending,
            "guarantees": [replace(GUARANTEE, budget=budget, accounting=accounting) for budget in BUDGETS],
        }
        for name, (spending, accounting) in DESIGNS.items()
    }
    found = dpfuse.sweep(
        {system: parts}, GUARANTEE, settings=settings, evaluation={"stride": horizon // 2}, out=folder, progress=True
    )
    if found.failures:
        raise SystemExit("not every design was made; run the same command again for what is missing")
    return found


def compare_on(system: str, updates: int | None, folder: Path) -> dict[str, Any]:
    """Every mechanism at every budget on one system, on the same test windows."""
    parts, horizon = SYSTEMS[system].simulate(), SYSTEMS[system].horizon
    updates = updates or SYSTEMS[system].updates
    designs = train_designs(system, parts, updates, folder)
    result: dict[str, Any] = {"unit": SYSTEMS[system].unit, "horizon": horizon, "updates": updates, "budgets": {}}
    for budget in BUDGETS:
        reports, settings = {}, {}
        for name in mechanisms.BASELINES:
            guarantee = replace(GUARANTEE, budget=budget)
            mechanism = mechanisms.fit(name, parts.training, parts.validation, guarantee, horizon=horizon)
            reports[name] = mechanisms.evaluate(mechanism, parts.test, stride=horizon // 2)
            settings[name] = dict(mechanism.settings)
        best = min(reports, key=lambda name: reports[name].mse)
        for name in DESIGNS:
            (reports[name],) = designs.select(setting=name, budget=budget).reports
        result["prior_mse"] = reports[best].prior_mse
        result["budgets"][str(budget)] = {
            "mechanisms": {name: _figures(report, settings.get(name)) for name, report in reports.items()},
            "best_baseline": best,
            "over_best_baseline": {name: dpfuse.compare(reports[name], reports[best])._asdict() for name in DESIGNS},
        }
        print(f"{system}, budget {budget}: " + ", ".join(f"{name} {r.mse:.4g}" for name, r in reports.items()))
    return result


def _figures(report: dpfuse.Report, settings: dict[str, Any] | None) -> dict[str, Any]:
    figures = {
        "mse": report.mse,
        "ci95": report.ci95,
        "coverage": report.coverage,
        "budget_spent_max": report.budget_spent_max,
        "within_budget": report.within_budget,
    }
    return figures | ({"settings": settings} if settings else {})


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare on every system and write results.json and figure.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, help="gradient steps for each design, by default those of the system")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="others stay as they are")
    parser.add_argument("--designs", type=Path, default=Path("out/baselines"), help="folder that keeps the designs")
    parser.add_argument(
        "--out", type=Path, default=results_path("baselines").parent, help="folder for results and figure"
    )
    options = parser.parse_args(arguments)
    for folder in (options.out, options.designs):
        folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    file = options.out / "results.json"
    systems = json.loads(file.read_text())["results"]["systems"] if file.exists() else {}
    systems |= {name: compare_on(name, options.updates, options.designs) for name in options.systems}
    results = {
        "seconds": round(time.perf_counter() - began),
        "guarantee": {"order": GUARANTEE.order, "adjacency": GUARANTEE.adjacency},
        "systems": {name: systems[name] for name in SYSTEMS if name in systems},
    }
    write_results(file, results, command="make baselines", seeds=[0], packages=("cvxpy", "jax-privacy"))
    draw(results).savefig(options.out / "figure.png", dpi=120)


if __name__ == "__main__":
    main()
