"""Figures of a solved problem: cost to go, spending, and the beliefs along one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpfuse.optimal.general import GeneralSolution
from dpfuse.optimal.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _ORANGE, _GREEN = "#0072B2", "#E69F00", "#009E73"
_RUNS_TO_CHOOSE_FROM = 200


def plot_solution(solution: Solution | GeneralSolution) -> Figure:
    """Cost to go at the first step, and spending at the first and the middle step, by budget left and belief."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    middle = solution.problem.horizon // 2
    _draw(axes[0], solution, solution.cost_to_go[0], f"cost to go, step 1 of {solution.problem.horizon}", "viridis")
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = 100 * solution.spending / solution.budgets[:, None]
    for axis, step in [(axes[1], 0), (axes[2], middle)]:
        _draw(axis, solution, shares[step], f"spent at step {step + 1} [% of the budget left]", "magma", largest=100.0)
    axes[0].set_ylabel("belief that the state is 1,\nbefore the release")
    return figure


def _draw(
    axis: Axes,
    solution: Solution | GeneralSolution,
    values: np.ndarray,
    title: str,
    colours: str,
    largest: float | None = None,
) -> None:
    # At budget 0 the share is undefined: that node is left out.
    mesh = axis.pcolormesh(
        solution.budgets[1:], solution.beliefs, values[1:].T, cmap=colours, vmin=0, vmax=largest, shading="gouraud"
    )
    if largest is None:
        axis.contour(solution.budgets[1:], solution.beliefs, values[1:].T, 8, colors="white", linewidths=0.6)
    axis.set(title=title, xlabel="budget left")
    axis.figure.colorbar(mesh, ax=axis)


def plot_path(solution: Solution | GeneralSolution, *, seed: int = 0) -> Figure:
    """State, belief and spending of one run: among runs in which the state changes, the run of median cost."""
    from matplotlib.figure import Figure

    runs = solution.simulate(num_runs=_RUNS_TO_CHOOSE_FROM, seed=seed)
    changes = (np.diff(runs.state, axis=1) != 0).any(axis=1)
    candidates = np.flatnonzero(changes if changes.any() else ~changes)
    run = candidates[np.argsort(runs.costs[candidates])[len(candidates) // 2]]
    step = np.arange(1, solution.problem.horizon + 1)
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.step(step, runs.state[run], where="mid", color="black", linewidth=1.2, label="state")
    above.plot(step, runs.belief[run], color=_BLUE, marker="o", markersize=4, label="belief after the release")
    above.set(ylabel="probability of state 1", ylim=(-0.05, 1.05))
    below.bar(step, runs.loss[run], color=_ORANGE, label="loss of the step")
    below.step(step, runs.budget_left[run], where="mid", color=_GREEN, label="budget left")
    below.set(xlabel="step", ylabel="Rényi loss", xticks=step[:: max(1, len(step) // 10)])
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
