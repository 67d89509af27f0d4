"""The figure of the comparison."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

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
