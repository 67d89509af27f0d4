"""The results as tables in README.md and as a figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

_BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- /results -->)", re.S)
# Colour-blind safe (Okabe and Ito); baselines are dashed, designs solid.
_STYLES = {
    "local": ("#999999", "v", "--"),
    "output": ("#56B4E9", "s", "--"),
    "input": ("#CC79A7", "^", "--"),
    "matrix": ("black", "D", "--"),
    "two-stage": ("#D55E00", "P", "--"),
    "classical": ("#E69F00", "o", "-"),
    "adaptive": ("#0072B2", "o", "-"),
    "individual": ("#009E73", "o", "-"),
}


def tables(results: dict[str, Any]) -> str:
    """A table for each system: squared error and its 95% interval by mechanism and budget."""
    parts = []
    for system, found in results["systems"].items():
        by_budget = found["budgets"].values()
        rows = [
            [f"**{system}** [{found['unit']}]", *(f"B = {budget}" for budget in found["budgets"])],
            ["---"] * (1 + len(by_budget)),
        ]
        for name in _STYLES:
            rows.append([name, *(_cell(each["mechanisms"][name]) for each in by_budget)])
        for name in ("classical", "adaptive", "individual"):
            ratios = [(each["over_best_baseline"][name], each["best_baseline"]) for each in by_budget]
            rows.append([f"{name} over the best baseline", *(_ratio(ratio, best) for ratio, best in ratios)])
        rows.append(["no releases (prior)", *[_short(found["prior_mse"])] * len(by_budget)])
        parts.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(parts) + "\n"


def _cell(figures: dict[str, Any]) -> str:
    mse, low, high = (_short(value) for value in (figures["mse"], *figures["ci95"]))
    return f"{mse} ({low} to {high})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(comparison: dict[str, Any], best: str) -> str:
    return f"{comparison['ratio']:.2f} ({comparison['ci95'][0]:.2f} to {comparison['ci95'][1]:.2f}), {best}"


def write_page(page: Path, results: dict[str, Any]) -> None:
    """Put the tables between the marks in the page."""
    page.write_text(_BLOCK.sub(lambda _: tables(results), page.read_text()))


def draw(results: dict[str, Any]) -> Figure:
    """Squared error over the budget, a panel for each system, with 95% intervals."""
    systems = results["systems"]
    figure = Figure(figsize=(4 * len(systems) + 1.5, 4.2), layout="constrained")
    axes = figure.subplots(1, len(systems), squeeze=False)[0]
    for axis, (system, found) in zip(axes, systems.items(), strict=True):
        budgets = [float(budget) for budget in found["budgets"]]
        for number, (name, (colour, marker, line)) in enumerate(_STYLES.items()):
            figures = [each["mechanisms"][name] for each in found["budgets"].values()]
            # Side by side rather than on top of each other.
            places = [budget * 1.035 ** (number - len(_STYLES) / 2) for budget in budgets]
            mse = [each["mse"] for each in figures]
            spread = [[abs(each["ci95"][end] - each["mse"]) for each in figures] for end in (0, 1)]
            axis.errorbar(places, mse, spread, color=colour, marker=marker, linestyle=line, markersize=5, label=name)
        axis.axhline(found["prior_mse"], color="black", linewidth=0.8, linestyle=":", label="no releases")
        axis.set(xscale="log", yscale="log", xlabel="budget B at order 2", title=system)
        axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axis.minorticks_off()
        axis.set_ylabel(f"squared error [{found['unit']}]")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(frameon=False, bbox_to_anchor=(1, 0.5), loc="center left")
    return figure
