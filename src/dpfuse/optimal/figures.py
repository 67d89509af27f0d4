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
    """Cost to go at the first step, and spending at the first and the middle step.

    For two states they are drawn by budget left and belief, for three states by belief at the full budget.
    """
    from matplotlib.figure import Figure

    num_states = solution.problem.num_states
    if num_states > 3:
        raise ValueError(f"plot_solution draws two or three states, got {num_states}; plot_path draws any number")
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    middle = solution.problem.horizon // 2
    draw = _draw_square if num_states == 2 else _draw_triangle
    draw(axes[0], solution, solution.cost_to_go[0], f"cost to go, step 1 of {solution.problem.horizon}", "viridis")
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = 100 * solution.spending / solution.budgets[:, None]
    for axis, step in [(axes[1], 0), (axes[2], middle)]:
        draw(axis, solution, shares[step], f"spent at step {step + 1} [% of the budget left]", "magma", largest=100.0)
    if num_states == 2:
        axes[0].set_ylabel("belief that the state is 1,\nbefore the release")
    return figure


def _draw_square(
    axis: Axes,
    solution: Solution | GeneralSolution,
    values: np.ndarray,
    title: str,
    colours: str,
    largest: float | None = None,
) -> None:
    # At budget 0 the share is undefined: that node is left out.
    over = solution.budgets[1:], solution.beliefs[:, 1], values[1:].T
    mesh = axis.pcolormesh(*over, cmap=colours, vmin=0, vmax=largest, shading="gouraud")
    if largest is None:
        axis.contour(*over, 8, colors="white", linewidths=0.6)
    axis.set(title=title, xlabel="budget left")
    axis.figure.colorbar(mesh, ax=axis)


def _draw_triangle(
    axis: Axes,
    solution: Solution | GeneralSolution,
    values: np.ndarray,
    title: str,
    colours: str,
    largest: float | None = None,
) -> None:
    # One node for each belief: where state 0 is certain, all values of the second angle are the same belief.
    _, nodes = np.unique(solution.beliefs.round(12), axis=0, return_index=True)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])
    x, y = (solution.beliefs[nodes] @ corners).T
    mesh = axis.tripcolor(x, y, values[-1, nodes], cmap=colours, vmin=0, shading="gouraud")
    if largest is None:
        axis.tricontour(x, y, values[-1, nodes], 8, colors="white", linewidths=0.6)
    for state, (across, up) in enumerate(corners):
        axis.text(across, up + (0.03 if up else -0.03), f"state {state}", ha="center", va="bottom" if up else "top")
    axis.set(title=title, aspect="equal", xlim=(-0.1, 1.1), ylim=(-0.12, 1.0))
    axis.axis("off")
    axis.figure.colorbar(mesh, ax=axis)


def plot_path(solution: Solution | GeneralSolution, *, seed: int = 0) -> Figure:
    """State, estimate and spending of one run: among runs in which the state changes, the run of median cost."""
    from matplotlib.figure import Figure

    runs = solution.simulate(num_runs=_RUNS_TO_CHOOSE_FROM, seed=seed)
    changes = (np.diff(runs.state, axis=1) != 0).any(axis=1)
    candidates = np.flatnonzero(changes if changes.any() else ~changes)
    run = candidates[np.argsort(runs.costs[candidates])[len(candidates) // 2]]
    step = np.arange(1, solution.problem.horizon + 1)
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.step(step, runs.state[run], where="mid", color="black", linewidth=1.2, label="state")
    is_binary = solution.problem.num_states == 2
    label = "belief after the release" if is_binary else "estimate after the release"
    above.plot(step, runs.estimate[run], color=_BLUE, marker="o", markersize=4, label=label)
    highest = solution.problem.num_states - 1
    above.set(ylabel="probability of state 1" if is_binary else "state", ylim=(-0.05 * highest, 1.05 * highest))
    below.bar(step, runs.loss[run], color=_ORANGE, label="loss of the step")
    below.step(step, runs.budget_left[run], where="mid", color=_GREEN, label="budget left")
    below.set(xlabel="step", ylabel="Rényi loss", xticks=step[:: max(1, len(step) // 10)])
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure
