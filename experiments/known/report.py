"""Results of the suite: the results file, the figure, the tables of the page, and which aims were missed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.known.run import FAULTS, KINDS, SEEDS
from experiments.known.systems import BUDGETS, SYSTEMS
from tools.markdown import make_table
from tools.results import read_results, results_path, write_results

COMMAND = "python -m experiments.known.run --jobs 14"
PRIVATE = ("classical", "adaptive", "ppo", "individual")
NAMES = {"ppo": "adaptive, Algorithm 2", "robust": "individual, trained with faults"}
# Aims: worst seed over best seed, share of the prior, floor over filter, coverage, coverage and error under faults.
SPREAD, NEAR_PRIOR, COVERAGE, COVERAGE_FAULTS, WORSE_UNDER_FAULTS = 1.25, 0.9, (0.92, 0.98), 0.88, 1.5
FLOOR = {"Kalman": 1.1, "forward": 1.1, "particle": 2.0}
# Of the prior, for every seed at B = 1.5.
TRACKING = {"classical": 0.40, "adaptive": 0.28, "individual": 0.20}


def write(path: Path, note: str | None = None) -> None:
    """Write results.json and figure.png from the file that the run left; a kind may be missing on some systems."""
    found = json.loads(path.read_text())
    results = {"updates": found["updates"], "systems": {name: gather(name, found["jobs"]) for name in SYSTEMS}}
    designs = [design for job in found["jobs"].values() for design in job.get("designs", ())]
    results["job_seconds"] = round(sum(design["training_s"] + design["test_s"] for design in designs))
    into = results_path("known")
    write_results(into, results, command=COMMAND, seeds=SEEDS, machine=found["machine"], note=note)
    plot(results["systems"]).savefig(into.parent / "figure.png", dpi=120)


def gather(name: str, jobs: Mapping[str, Any]) -> dict[str, Any]:
    """What was found for one system."""
    kinds = {kind: jobs[f"{name}_{kind}"]["designs"] for kind in KINDS if f"{name}_{kind}" in jobs}
    known = jobs[f"{name}_filter"]
    system = SYSTEMS[name]
    return {
        "unit": system.unit,
        "horizon": system.horizon,
        "prior_mse": kinds["floor"][0]["prior_mse"],
        "filter": {"name": system.filter_name, "mse": known["filter_mse"]} if system.filter_error else None,
        "solved": known["solved"],
        "floor": _column(kinds["floor"], "mse"),
        "floor_coverage": _column(kinds["floor"], "coverage"),
        "kinds": {
            kind: {f"{budget:g}": _at_budget(designs, budget) for budget in BUDGETS}
            for kind, designs in kinds.items()
            if kind != "floor"
        },
    }


def _at_budget(designs: list[Any], budget: float) -> dict[str, Any]:
    own = [design for design in designs if design["budget"] == budget]
    faulty = [design["faults"] for design in own if design["faults"]]
    figures = {name: _column(own, name) for name in ("mse", "coverage", "budget_spent_max")}
    figures["faults"] = {
        fault: {name: float(np.mean([one[fault][name] for one in faulty])) for name in ("mse", "coverage")}
        for fault in FAULTS
        if faulty
    }
    return figures | {"within_budget": all(design["within_budget"] for design in own)}


def _column(designs: list[Any], name: str) -> list[float]:
    return [design[name] for design in designs]


def plot(systems: Mapping[str, Any]) -> Figure:
    """Squared error over the prior's against the budget, a panel for each system; a dot for each seed."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    colours = dict(zip(PRIVATE, ("0.5", "#0072B2", "#E69F00", "#009E73"), strict=True))
    for axis, (name, system) in zip(figure.subplots(2, 3).flat, systems.items(), strict=True):
        prior = system["prior_mse"]
        for number, kind in enumerate(PRIVATE):
            shares = np.array([system["kinds"][kind][f"{budget:g}"]["mse"] for budget in BUDGETS]) / prior
            axis.plot(BUDGETS, shares.mean(1), color=colours[kind], label=NAMES.get(kind, kind))
            places = np.array(BUDGETS)[:, None] * 1.04 ** (number - 1.5)
            axis.plot(np.broadcast_to(places, shares.shape), shares, ".", color=colours[kind], markersize=4)
        axis.axhline(np.mean(system["floor"]) / prior, color="k", linewidth=0.8, label="floor, no noise")
        if system["filter"]:
            axis.axhline(system["filter"]["mse"] / prior, color="k", linestyle=":", linewidth=1, label="true model")
        if system["solved"]:
            solved = [system["solved"][f"{budget:g}"] / prior for budget in BUDGETS]
            axis.plot(BUDGETS, solved, "k+", label="solved optimum")
        axis.set(title=name, xscale="log", yscale="log", xticks=BUDGETS, xticklabels=[f"{b:g}" for b in BUDGETS])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("budget")
    figure.supylabel("squared error over the prior's")
    figure.axes[1].legend(frameon=False, fontsize="small")
    return figure


def known() -> str:
    """Squared errors by system, kind and budget, as shares of the prior's."""
    found = read_results("known")["systems"]
    rows = []
    for name, system in found.items():
        prior = system["prior_mse"]
        for kind in PRIVATE:
            shares = [np.array(system["kinds"][kind][f"{budget:g}"]["mse"]) / prior for budget in BUDGETS]
            rows.append([name, NAMES.get(kind, kind), *map(_spread, shares)])
        if system["solved"]:
            rows.append([name, "solved optimum", *(f"{system['solved'][f'{b:g}'] / prior:.3f}" for b in BUDGETS)])
    return make_table(["system", "design", *(f"B = {budget:g}" for budget in BUDGETS)], rows)


def known_floors() -> str:
    """The prior, the filter that knows the model, and the floor."""
    rows = []
    for name, system in read_results("known")["systems"].items():
        model = system["filter"]
        over = _spread(np.array(system["floor"]) / model["mse"]) if model else ""
        shown = f"{model['name']}: {model['mse']:.4g}" if model else ""
        floor = np.array(system["floor"])
        rows.append([name, f"{system['prior_mse']:.4g}", shown, f"{floor.mean():.4g}", over])
    return make_table(["system", "prior", "filter with the true model", "floor", "floor over filter"], rows)


def known_faults() -> str:
    """Error and coverage under faults at B = 0.5: designs trained without them and, where there are any, with them."""
    rows = []
    for name, system in read_results("known")["systems"].items():
        usual, robust = (system["kinds"].get(kind, {}).get("0.5") for kind in ("individual", "robust"))
        for fault, own in usual["faults"].items():
            cells = [f"{own['mse'] / np.mean(usual['mse']):.2f}", f"{own['coverage']:.0%}", "", ""]
            if robust:
                ratio = own["mse"] / robust["faults"][fault]["mse"]
                cells[2:] = [f"{ratio:.2f}", f"{robust['faults'][fault]['coverage']:.0%}"]
            rows.append([name, fault, *cells])
    header = ["system", "fault", "error over that without", "band covers"]
    return make_table([*header, "error over that of a design trained with faults", "whose band covers"], rows)


def _spread(shares: np.ndarray) -> str:
    return f"{shares.mean():.3f} ({shares.min():.3f} to {shares.max():.3f})"


def known_misses() -> str:
    """Every aim of the suite that the run missed."""
    missed = misses(read_results("known")["systems"])
    return "".join(f"- {line}\n" for line in missed) or "- none\n"


def misses(systems: Mapping[str, Any]) -> list[str]:
    """The aims that were missed, in words."""
    lines = []
    for name, system in systems.items():
        lines += _floor_misses(name, system)
        for budget in (f"{budget:g}" for budget in BUDGETS):
            for kind in PRIVATE:
                lines += _kind_misses(name, system, kind, budget)
            lines += _fault_misses(name, system, budget)
    if "tracking" in systems:
        for kind, limit in TRACKING.items():
            worst = max(systems["tracking"]["kinds"][kind]["1.5"]["mse"]) / systems["tracking"]["prior_mse"]
            if worst > limit:
                lines.append(f"tracking, {kind}, B = 1.5: worst seed {worst:.3f} of the prior, aim {limit:g}")
    return lines


def _floor_misses(name: str, system: Mapping[str, Any]) -> list[str]:
    error, where = np.array(system["floor"]), f"{name}, floor"
    lines = _spread_misses(where, error)
    if system["filter"]:
        worst, limit = error.max() / system["filter"]["mse"], FLOOR[system["filter"]["name"]]
        if worst > limit:
            lines.append(f"{where}: worst seed {worst:.2f} times the filter, aim {limit:g}")
    return lines + _coverage_misses(where, system["floor_coverage"])


def _kind_misses(name: str, system: Mapping[str, Any], kind: str, budget: str) -> list[str]:
    own, where = system["kinds"][kind][budget], f"{name}, {NAMES.get(kind, kind)}, B = {budget}"
    error, prior = np.array(own["mse"]), system["prior_mse"]
    lines = _spread_misses(where, error)
    near = system["solved"] and system["solved"][budget] > NEAR_PRIOR * prior
    if error.max() > NEAR_PRIOR * prior and not near:
        lines.append(f"{where}: worst seed {error.max() / prior:.2f} of the prior, aim {NEAR_PRIOR:g}")
    if worse := int((error > np.array(system["kinds"]["classical"][budget]["mse"])).sum()):
        lines.append(f"{where}: {worse} of {len(error)} seeds above classical, aim 0")
    return lines + _coverage_misses(where, own["coverage"])


def _spread_misses(where: str, error: np.ndarray) -> list[str]:
    if error.max() <= SPREAD * error.min():
        return []
    return [f"{where}: worst seed {error.max() / error.min():.2f} times the best, aim {SPREAD:g}"]


def _coverage_misses(where: str, covered: list[float]) -> list[str]:
    low, high = COVERAGE
    if low <= min(covered) and max(covered) <= high:
        return []
    return [
        f"{where}: the 95% band covers {min(covered):.1%} to {max(covered):.1%} by seed, aim {low:.0%} to {high:.0%}"
    ]


def _fault_misses(name: str, system: Mapping[str, Any], budget: str) -> list[str]:
    usual = system["kinds"]["individual"][budget]["faults"]
    robust = system["kinds"].get("robust", {}).get(budget, {}).get("faults", {})
    where = f"{name}, individual, B = {budget}"
    lines = [f"{where}: no design was trained with faults to compare with"] if usual and not robust else []
    for fault in usual:
        if robust and (ratio := usual[fault]["mse"] / robust[fault]["mse"]) > WORSE_UNDER_FAULTS:
            lines.append(
                f"{where}, {fault}: {ratio:.2f} times a design trained with faults, aim {WORSE_UNDER_FAULTS:g}"
            )
        for design, faults in (("", usual), (", trained with faults", robust)):
            if faults and (covered := faults[fault]["coverage"]) < COVERAGE_FAULTS:
                lines.append(f"{where}{design}, {fault}: the 95% band covers {covered:.1%}, aim {COVERAGE_FAULTS:.0%}")
    return lines


QUOTES = {quote.__name__: quote for quote in (known, known_floors, known_faults, known_misses)}


if __name__ == "__main__":
    write(Path(sys.argv[1]), *sys.argv[2:3])
