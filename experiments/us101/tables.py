"""The tables of the case study, from its results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tools.markdown import make_table
from tools.results import read_results

# The names of designs in tables; in the results they are named by how they are trained.
LABELS = {"ppo": "Algorithm 2", "pathwise": "adaptive"}
SIMULATED = "with simulated traffic"

Rows = list[dict[str, Any]]
Groups = dict[str, dict[str, Rows]]


def make_errors(groups: Groups, heading: str) -> str:
    """The error of each design, and after a comma its ratio to the reference with a 95% interval."""
    every = [row["budget"] for kinds in groups.values() for rows in kinds.values() for row in rows]
    budgets = sorted(set(every))
    lines = []
    for group, kinds in groups.items():
        for kind, rows in kinds.items():
            cells = {row["budget"]: _cell(row) for row in rows}
            lines.append([group, _label(kind), *(cells.get(budget, "") for budget in budgets)])
    return make_table([heading, "design", *(f"B = {budget:g}" for budget in budgets)], lines)


def _label(kind: str) -> str:
    name, *rest = kind.split(", ")
    return ", ".join([LABELS.get(name, name), *rest])


def _cell(row: dict[str, Any]) -> str:
    text = f"{row['mse']:.0f}"
    if "ratio" in row:
        interval = row["ratio_ci95"]
        text += f", {row['ratio']:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else "")
    return text


def split(results: dict[str, Any]) -> str:
    """Every design at every budget, on the paper's split."""
    without = f"{_without_noise(results)} Without releases it is {results['prior_mse']:,.0f}.\n"
    return make_errors(results["split"], "adjacency") + without


def _without_noise(results: dict[str, Any]) -> str:
    return f"\nWithout noise and bounds the error is {results['floor']['mse']:.0f} (the floor)."


def folds(results: dict[str, Any]) -> str:
    """Five folds in time."""
    return make_errors(results["folds"], "adjacency")


def guided(results: dict[str, Any]) -> str:
    """Guided designs on the paper's split."""
    tables = results["guided"]["tables"]
    groups = {name: tables[f"{name}, the paper's split, guided"] for name in results["split"]}
    return f"{make_errors(groups, 'adjacency')}{_without_noise(results['guided'])}\n"


def enlarged(results: dict[str, Any]) -> str:
    """Training on US-101 and on simulated traffic, on the paper's split."""
    tables = results["enlarged"]["tables"]
    groups = {name: tables[f"{name}, {SIMULATED}"] for name in results["split"]}
    return f"{make_errors(groups, 'adjacency')}{_without_noise(results['enlarged'])}\n"


def horizons(results: dict[str, Any]) -> str:
    """A horizon of 60 s, and none."""
    minute, endless = "300 steps, 30% report", "stationary, over the whole test part"
    more = results["enlarged"]["tables"]
    return make_errors(
        {
            "60 s": results["sensitivity"][minute],
            "60 s, guided": results["guided"]["tables"][f"remove-one, {minute}, guided"],
            f"60 s, {SIMULATED}": more[f"remove-one, {minute}, {SIMULATED}"],
            "no end": results["sensitivity"][endless],
            f"no end, {SIMULATED}": more[f"remove-one, {endless}, {SIMULATED}"],
        },
        "horizon",
    )


def shares(results: dict[str, Any]) -> str:
    """Fewer and more vehicles that report."""
    found = results["sensitivity"]
    return make_errors({share: found[f"100 steps, {share} report"] for share in ("10%", "100%")}, "share that reports")


def simulated(results: dict[str, Any]) -> str:
    """Training on simulated traffic alone."""
    found = results["sensitivity"]
    groups = {f"within {s}": found[f"trained on simulated traffic, give or take {s}"] for s in ("10%", "20%")}
    return make_errors(groups, "simulated roads")


def choices(results: dict[str, Any]) -> str:
    """What changes with 16 choices of the vehicles that report, for the first seed of each design."""
    more = {title: kinds for title, kinds in results["guided"]["tables"].items() if ", 16 choices" in title}
    ratios, exceptions = [], []
    for title, kinds in (results["who_reports"] | more).items():
        for kind, rows in kinds.items():
            ratios += [row["mse"] / row["usual_mse"] for row in rows]
            if not kind.startswith("classical"):
                unclear = [row["budget"] for row in rows if row["ratio_ci95"][1] >= 1]
                exceptions += [f"{_label(kind)}, {title.split(',')[0]}, B = {budget:g}" for budget in unclear]
    return (
        "How well 30% of the vehicles show the density depends on which 30% report. With 16 random choices instead of "
        f"two the errors of the first seeds, those of the later sections included, are {min(ratios) - 1:.0%} to "
        f"{max(ratios) - 1:.0%} higher. All intervals of adaptive and individual designs are below 1 but for: "
        f"{'; '.join(exceptions)}.\n"
    )


def ablation(results: dict[str, Any]) -> str:
    """Validation and test error of Algorithm 2, as it is and with one setting changed."""
    budgets = [row["budget"] for row in results["ablation"][0]["designs"]]
    rows = []
    for tried in results["ablation"]:
        name = ", ".join(f"{setting} = {value}" for setting, value in tried["changes"].items())
        rows.append([name or "as it is", *(f"{r['validation_mse']:.0f} / {r['mse']:.0f}" for r in tried["designs"])])
    return make_table(["Algorithm 2, validation / test", *(f"B = {budget:g}" for budget in budgets)], rows)


def summary(results: dict[str, Any]) -> str:
    """The table of README: five designs under remove-one adjacency, at four budgets."""
    budgets = 0.07, 0.15, 0.5, 1.5
    own = results["split"]["remove-one"]
    followed = results["guided"]["tables"]["remove-one, the paper's split, guided"]
    designs = {
        "classical": own["classical"],
        "the paper's Algorithm 2 (PPO)": own["ppo"],
        "adaptive, with the paper's features": own["pathwise"],
        "adaptive": followed["pathwise, guided"],
        "individual": followed["individual, guided"],
    }
    lines = []
    for name, rows in designs.items():
        kept = [row for row in rows if row["budget"] in budgets]
        cells = [f"{row['mse']:.0f}" + (f" ({row['ratio']:.2f})" if "ratio" in row else "") for row in kept]
        lines.append([name, *cells])
    more = results["enlarged"]["tables"][f"remove-one, {SIMULATED}"]["individual"]
    lower = ", ".join(f"{row['mse']:.0f}" for row in more if row["budget"] in budgets)
    return (
        make_table(["squared error [(veh/km)^2]", *(f"B = {budget:g}" for budget in budgets)], lines)
        + "\n*Remove-one adjacency; in brackets the error over that of a classical design trained in the same run. "
        + f"Without noise the error is {results['floor']['mse']:.0f}, without releases {results['prior_mse']:.0f}. "
        + "Individual designs with the paper's features that are also trained on ten hours of simulated traffic, and "
        + f"twice as long, have {lower} (without noise {results['enlarged']['floor']['mse']:.0f}). `make us101`, kept "
        + "in `experiments/us101/results.json`.*\n"
    )


_TABLES = (summary, split, folds, choices, guided, horizons, shares, simulated, enlarged, ablation)


def _quote(table: Callable[[dict[str, Any]], str]) -> str:
    return table(read_results("us101"))


QUOTES = {f"us101 {table.__name__}": partial(_quote, table) for table in _TABLES}
