"""The figure of the experiment: solved and learned spending rules against the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from tools.experiment_quotes import SPENDING


def plot_gaps(presets: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The cost of each spending rule above the optimum, solved and learned, a panel for each problem.

    Args:
        presets: for each problem, `solved`: the cost by spending rule, and `learned`: the fields of `Gap` by rule.
    """
    figure = Figure(figsize=(3 * max(2, len(presets)), 3.4), layout="constrained")
    axes = figure.subplots(1, len(presets), squeeze=False)[0]
    places = np.arange(len(SPENDING))
    for axis, (name, preset) in zip(axes, presets.items(), strict=True):
        solved = np.array([preset["solved"][rule] for rule in SPENDING]) / preset["solved"]["adaptive"] - 1
        learned = [preset["learned"][rule] for rule in SPENDING]
        margins = [(own["ci95"][1] - own["ci95"][0]) / 2 for own in learned]
        axis.bar(places - 0.2, 100 * solved, 0.36, color="0.75", label="solved")
        heights = 100 * np.array([own["total"] for own in learned])
        axis.bar(places + 0.2, heights, 0.36, yerr=100 * np.array(margins), capsize=3, color="#0072B2", label="learned")
        axis.set(title=name, xticks=places, xticklabels=SPENDING.values())
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("squared error over the optimum [%]")
    axes[0].legend(frameon=False)
    return figure
