"""The tables of the study with default settings. What was not run is said so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.us101.tables import LABELS, make_errors
from experiments.us101_defaults.jobs import LONG
from tools.markdown import make_table
from tools.results import read_results

# Errors to be at or below at the budgets of `LONG`, and those of individual designs on folds in the study before.
ENDLESS, FINITE = (165, 125, 98, 88), (200, 155, 120, 108)
BEFORE = {0.15: 328.0, 0.5: 246.0, 1.5: 219.0}
_NOT_RUN = "Not run yet.\n"


def split(results: dict[str, Any]) -> str:
    """Every design that was trained, at every budget, on the paper's split."""
    floor = results["floors"]["K = 100"]
    seeds = f"\nWithout noise and bounds the error is {floor['mse']:.0f} (the floor)."
    seeds += f" The worst of its five seeds has {floor['worst_seed']:.0f}.\n"
    return make_errors(results["split"], "adjacency") + seeds


def worst(results: dict[str, Any]) -> str:
    """The worst seed over the mean."""
    lines = []
    for adjacency, kinds in results["split"].items():
        for kind, rows in kinds.items():
            ratio = max(row["worst_seed"] / row["mse"] for row in rows)
            lines.append([adjacency, LABELS.get(kind, kind), f"{ratio:.2f}", f"{min(r['coverage'] for r in rows):.0%}"])
    return make_table(["adjacency", "design", "worst seed over the mean, at most", "95% band covers at least"], lines)


def folds(results: dict[str, Any]) -> str:
    """Five folds in time."""
    return make_errors({"remove-one": results["folds"]}, "adjacency") if results["folds"] else _NOT_RUN


def endless(results: dict[str, Any]) -> str:
    """Designs without end, over the whole test part."""
    floor = results["floors"].get("without end")
    if not floor or not results["endless"]:
        return _NOT_RUN
    rows = []
    for row in results["endless"]["individual"]:
        cells = [f"{row['mse']:.0f}", f"{row['worst_seed']:.0f}", f"{row['mse'] / floor['mse']:.2f}"]
        rows.append([f"B = {row['budget']:g}", *cells, f"{row['coverage']:.0%}"])
    rows.append(["floor", f"{floor['mse']:.0f}", f"{floor['worst_seed']:.0f}", "1", f"{floor['coverage']:.0%}"])
    return make_table(["budget", "error", "worst seed", "over the floor", "band covers"], rows)


def filters(results: dict[str, Any]) -> str:
    """The other f."""
    return make_errors({"the other f": results["filters"]}, "f") if results["filters"] else _NOT_RUN


def recorded(results: dict[str, Any]) -> str:
    """Training on US-101 alone, against training with simulated traffic too."""
    return make_errors({"US-101 alone": results["recorded"]}, "trained on") if results["recorded"] else _NOT_RUN


def aims(results: dict[str, Any]) -> str:
    """What was aimed at, and what the run has."""
    floor = results["floors"].get("without end", {}).get("mse")
    endless = _by_budget(results["endless"])
    finite, on_folds = _by_budget(results["split"]["remove-one"]), _by_budget(results["folds"])
    lines = []
    for budget, most in zip(LONG, ENDLESS, strict=True):
        lines.append(_aim(f"without end, B = {budget:g}", endless.get(budget, {}).get("mse"), most))
    lines.append(_aim("without end, floor", floor, 86))
    for budget, most in zip(LONG, FINITE, strict=True):
        found = finite.get(budget, {}).get("few_mse")
        lines.append(_aim(f"individual, K = 100, two choices, B = {budget:g}", found, most))
    for budget, before in BEFORE.items():
        lines.append(_aim(f"individual, folds, B = {budget:g}", on_folds.get(budget, {}).get("mse"), 0.85 * before))
    return make_table(["what", "aim: at most", "found", ""], lines)


def _by_budget(kinds: dict[str, Any]) -> dict[float, Any]:
    return {row["budget"]: row for row in kinds.get("individual", [])}


def _aim(what: str, found: float | None, most: float) -> list[str]:
    if found is None:
        return [what, f"{most:.0f}", "", "not run"]
    return [what, f"{most:.0f}", f"{found:.0f}", "met" if found <= most else "**missed**"]


_TABLES = (split, worst, folds, endless, filters, recorded, aims)


def _quote(table: Callable[[dict[str, Any]], str]) -> str:
    return table(read_results("us101_defaults"))


QUOTES = {f"us101_defaults {table.__name__}": partial(_quote, table) for table in _TABLES}
