"""Train designs with the defaults on systems whose answers are known: `make known`.

Each job trains one kind of design on one system, for all budgets and seeds, and writes a file in the folder. A job
whose file exists is not run again, so a run that was stopped goes on where it was. On a GPU several jobs can run at the
same time (`--jobs`). At the end `experiments.known.report` writes results.json, figure.png and the tables.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import dpfuse
from experiments.known.systems import BUDGETS, SYSTEMS, System, solved_optimum
from experiments.running import rounded, run_jobs, write_json
from tools.results import describe_machine

SEEDS = (0, 1, 2, 3, 4)
FAULT_SEEDS = (0, 1)
FAULTS = ("skipped", "silent", "joined", "thinned", "all-silent", "share-10", "glitches")


class Kind(NamedTuple):
    """How designs of a kind are trained.

    Attributes:
        accounting: None for the floor.
        spending, method: of `dpfuse.train`.
        faults: share of the training windows with faults.
    """

    accounting: Any
    spending: Any = "adaptive"
    method: Any = "pathwise"
    faults: float = 0.0


KINDS = {
    "individual": Kind("individual"),
    "floor": Kind(None, "constant"),
    "classical": Kind("total", "constant"),
    "adaptive": Kind("total"),
    "ppo": Kind("total", method="ppo"),
    "robust": Kind("individual", faults=0.25),
}
# The longest first.
ORDER = ("freeway", "households", "tracking", "growth", "linear", "chain")
JOBS = [f"{system}_{kind}" for kind in (*KINDS, "filter") for system in ORDER]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/known"), help="folder for the files of the jobs")
    parser.add_argument("--jobs", type=int, default=1, help="jobs at the same time; 14 on a large GPU")
    parser.add_argument("--updates", type=int, help="gradient steps; by default those of `dpfuse.train`")
    parser.add_argument("--only", nargs="+", default=[""], help="only jobs with one of these in their names; no report")
    parser.add_argument("--until-s", type=float, help="start no job after so many seconds, and end those that run")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job is not None:
        write_json(given.out / f"{given.job}.json", rounded(run_one(given.job, given.updates)))
        return
    wanted = [name for name in JOBS if any(part in name for part in given.only)]
    missing = [name for name in wanted if not (given.out / f"{name}.json").exists()]
    common = ["-m", "experiments.known.run", "--out", str(given.out)]
    common += ["--updates", str(given.updates)] if given.updates else []
    left = run_jobs(missing, lambda name: [*common, "--job", name], at_once=given.jobs, until_s=given.until_s)
    whole = {path.stem: json.loads(path.read_text()) for path in sorted(given.out.glob("*_*.json"))}
    write_json(given.out / "all.json", {"machine": describe_machine(), "updates": given.updates, "jobs": whole})
    if left:
        raise SystemExit(f"these jobs failed or were left out: {', '.join(left)}; run the same command again")
    if given.only == [""]:
        from experiments.known import report

        report.write(given.out / "all.json")


def run_one(name: str, updates: int | None) -> dict[str, Any]:
    """One job: designs trained and tested, or a filter and what else is known."""
    dpfuse.use_all_cores()
    system_name, kind = name.split("_")
    system = SYSTEMS[system_name]
    began = time.perf_counter()
    found = known(system_name, system) if kind == "filter" else learned(system, KINDS[kind], updates)
    return found | {"seconds": time.perf_counter() - began}


def known(name: str, system: System) -> dict[str, Any]:
    """The errors of the filter that knows the model, and the solved optimum by budget."""
    filter_error = system.filter_error(system.simulate().test) if system.filter_error else None
    solved = {f"{budget:g}": solved_optimum(budget) for budget in BUDGETS} if name == "chain" else {}
    return {"filter_mse": filter_error, "solved": solved}


def learned(system: System, kind: Kind, updates: int | None) -> dict[str, Any]:
    """Designs for all budgets and seeds, and their errors on the test part."""
    parts = system.simulate()
    guarantees: list[dpfuse.Guarantee | None] = [None]
    if kind.accounting:
        common = {"order": 2.0, "adjacency": "remove-one", "accounting": kind.accounting}
        guarantees = [dpfuse.Guarantee(budget=budget, **common) for budget in BUDGETS]
    settings: dict[str, Any] = {"num_updates": updates} if updates else {}
    began = time.perf_counter()
    designs = dpfuse.train_many(
        parts.training,
        parts.validation,
        guarantees,
        seeds=SEEDS,
        spending=kind.spending,
        method=kind.method,
        horizon=system.horizon,
        optimisation=dpfuse.Optimisation(faults=kind.faults, **settings),
    )
    trained = time.perf_counter() - began
    return {"designs": [test(design, parts.test) for design in designs], "training_s": trained}


def test(design: dpfuse.Design, recording: dpfuse.Trajectories) -> dict[str, Any]:
    """Error, coverage and spending of a design; for some individual ones also error and coverage under each fault."""
    horizon = design.structure.horizon
    is_individual = design.guarantee is not None and design.guarantee.accounting == "individual"
    with_faults = is_individual and design.training["seed"] in FAULT_SEEDS
    report = dpfuse.evaluate(design, recording, stride=horizon, num_draws=2)
    faults = {}
    for fault in FAULTS if with_faults else ():
        under = dpfuse.evaluate(design, recording, stride=horizon, num_draws=1, fault=fault)
        faults[fault] = {"mse": under.mse, "coverage": under.coverage}
    return {
        "budget": design.guarantee.budget if design.guarantee else None,
        "seed": design.training["seed"],
        "validation_mse": design.training["validation_mse"],
        "mse": report.mse,
        "ci95": report.ci95,
        "prior_mse": report.prior_mse,
        "coverage": report.coverage,
        "budget_spent_max": report.budget_spent_max,
        "within_budget": report.within_budget,
        "faults": faults,
    }


if __name__ == "__main__":
    main()
