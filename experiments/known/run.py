"""Train designs with the defaults on systems whose answers are known: `make known`.

A sweep trains each kind of design on each system, for all budgets and seeds. What it makes is in the folder, so a run
that was stopped goes on where it was. On a GPU several groups of designs can be trained at the same time (`--jobs`). At
the end `experiments.known.report` writes results.json, figure.png and the tables.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import dpfuse
from experiments.known.systems import BUDGETS, SYSTEMS, solved_optimum
from experiments.running import rounded, train_all, write_json
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
JOBS = [f"{system}_{kind}" for system in ORDER for kind in KINDS]


def main() -> None:
    """Train and test what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/known"), help="folder for the designs and their tests")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="groups of designs at the same time, which share a GPU if there is one; 14 on a large",
    )
    parser.add_argument("--updates", type=int, help="gradient steps; by default those of `dpfuse.train`")
    parser.add_argument("--only", nargs="+", default=[""], help="only jobs with one of these in their names; no report")
    given = parser.parse_args()
    settings = {name: setting(name, given.updates) for name in JOBS if any(part in name for part in given.only)}
    names = dict.fromkeys(name.split("_")[0] for name in settings)
    recordings = {name: SYSTEMS[name].simulate for name in names}
    result = train_all(recordings, settings, at_once=given.jobs, seeds=SEEDS, test=under_faults, out=given.out)
    jobs = {name: {"designs": rounded(result.select(setting=name).rows)} for name in settings}
    jobs |= {f"{name}_filter": rounded(known(name)) for name in names}
    write_json(given.out / "all.json", {"machine": describe_machine(), "updates": given.updates, "jobs": jobs})
    if given.only == [""]:
        from experiments.known import report

        report.write(given.out / "all.json")


def setting(name: str, updates: int | None) -> dict[str, Any]:
    """How a kind of design is trained and tested on a system, for all budgets, as a sweep takes it."""
    system_name, kind_name = name.split("_")
    kind, horizon = KINDS[kind_name], SYSTEMS[system_name].horizon
    common = {"order": 2.0, "adjacency": "remove-one", "accounting": kind.accounting}
    return {
        "recordings": [system_name],
        "guarantees": [dpfuse.Guarantee(budget=b, **common) for b in BUDGETS] if kind.accounting else [None],
        "evaluation": {"stride": horizon, "num_draws": 2},
        "spending": kind.spending,
        "method": kind.method,
        "horizon": horizon,
        "faults": kind.faults,
        **({"num_updates": updates} if updates else {}),
    }


def under_faults(design: dpfuse.Design, recording: dpfuse.Trajectories) -> dict[str, Any]:
    """Error and coverage of some individual designs under each fault."""
    is_individual = design.guarantee is not None and design.guarantee.accounting == "individual"
    found = {}
    for fault in FAULTS if is_individual and design.training["seed"] in FAULT_SEEDS else ():
        report = dpfuse.evaluate(design, recording, stride=design.structure.horizon, num_draws=1, fault=fault)
        found[fault] = {"mse": report.mse, "coverage": report.coverage}
    return {"faults": found}


def known(name: str) -> dict[str, Any]:
    """The errors of the filter that knows the model of a system, and the solved optimum by budget."""
    system = SYSTEMS[name]
    filter_error = system.filter_error(system.simulate().test) if system.filter_error else None
    solved = {f"{budget:g}": solved_optimum(budget) for budget in BUDGETS} if name == "chain" else {}
    return {"filter_mse": filter_error, "solved": solved}


if __name__ == "__main__":
    main()
