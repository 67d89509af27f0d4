"""Figures of recordings, estimates, spending and errors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse._stats import Z95
from dpfuse.evaluation.report import Report, compare
from dpfuse.evaluation.simulate import simulate_windows
from dpfuse.policy.design import Design
from dpfuse.trajectories import Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito); the truth is black.
_COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def save_figures(figures: Mapping[str, Figure], folder: str | os.PathLike[str]) -> list[Path]:
    """The paths of the figures, each written into the folder as a PNG."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        paths.append(Path(folder) / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths


def plot_recording(data: Trajectories, *, run: int = 0, state_name: str = "state", duration_s: float = 900.0) -> Figure:
    """The state over time, and below it the first channel of every sensor, coloured by its second channel."""
    figure, (above, below) = _subplots(2, height=6.5, sharex=True)
    shown = min(data.num_steps, round(duration_s / data.interval_s))
    minutes = np.arange(shown) * data.interval_s / 60
    above.plot(minutes, data.state[run, :shown], color="black", linewidth=1)
    above.set_ylabel(state_name)
    step, slot = np.nonzero(data.present[run, :shown])
    keep = slice(None, None, max(1, len(step) // 60_000))
    values = data.measurements[run, step[keep], slot[keep]]
    colour = values[:, 1] if values.shape[1] > 1 else values[:, 0]
    dots = below.scatter(minutes[step[keep]], values[:, 0], c=colour, s=0.6, cmap="viridis", linewidths=0)
    figure.colorbar(dots, ax=[above, below], label="speed [m/s]" if values.shape[1] > 1 else "", fraction=0.04)
    below.set(xlabel="time [min]", ylabel="position [m]" if values.shape[1] > 1 else "measurement")
    return figure


def plot_estimates(
    designs: Mapping[str, Design],
    data: Trajectories,
    *,
    state_name: str | Sequence[str] = "state",
    duration_s: float = 240.0,
) -> Figure:
    """True and estimated state with the estimator's 95% band, in windows of one horizon that follow each other.

    Args:
        designs: by name; each has a plot for every coordinate of the state.
        data: its first run is shown.
        state_name: one name, or one for each coordinate.
        duration_s: how much of the run is shown.
    """
    first = next(iter(designs.values()))
    length = first.structure.horizon or data.num_steps
    count = max(1, min(data.num_steps // length, round(duration_s / (length * data.interval_s))))
    windows = data.runs([0]).windows(length).runs(np.arange(count))
    num_states = windows.state.shape[-1]
    if isinstance(state_name, str):
        state_name = [state_name] if num_states == 1 else [f"{state_name} {n + 1}" for n in range(num_states)]
    rows = len(designs) * num_states
    figure, axes = _subplots(rows, height=2.2 * rows + 0.8, sharex=True, sharey=num_states == 1)
    unit_s, unit = _time_unit(count * length * data.interval_s)
    times = np.arange(count * length) * data.interval_s / unit_s
    for number, ((name, design), colour) in enumerate(zip(designs.items(), cycle(_COLOURS), strict=False)):
        batches = list(simulate_windows(design, windows, num_draws=1, seed=1))
        mean, std = (np.concatenate([_in_order(getattr(b.result, part)) for b in batches]) for part in ("mean", "std"))
        for n, axis in enumerate(axes[number * num_states : (number + 1) * num_states]):
            low, high = mean[:, n] - Z95 * std[:, n], mean[:, n] + Z95 * std[:, n]
            axis.plot(times, windows.state[..., n].ravel(), color="black", linewidth=1.2, label="true")
            axis.plot(times, mean[:, n], color=colour, linewidth=1.2, label=name)
            axis.fill_between(times, low, high, color=colour, alpha=0.2, linewidth=0)
            for start in range(1, count):
                axis.axvline(times[start * length], color="0.85", linewidth=0.8, zorder=0)
            axis.legend(loc="upper right", ncols=2, frameon=False)
            axis.set_ylabel(state_name[n])
    axes[-1].set_xlabel(f"time [{unit}]" + ("; grey lines: a new window starts" if count > 1 else ""))
    return figure


def _longest_s(reports: Mapping[str, Report]) -> float:
    return max((report.interval_s * len(report.mse_per_step) for report in reports.values()), default=0.0)


def _time_unit(duration_s: float) -> tuple[float, str]:
    """The unit of a time axis in seconds, and its name: the largest that the duration has ten of."""
    units = (86400.0, "days"), (3600.0, "h"), (60.0, "min")
    return next(((unit_s, name) for unit_s, name in units if duration_s >= 10 * unit_s), (1.0, "s"))


def _in_order(values: np.ndarray) -> np.ndarray:
    """All windows in order, shape (windows * K, n_x), from shape (K, windows, n_x)."""
    return np.concatenate(list(np.asarray(values).swapaxes(0, 1)))


def plot_budget(reports: Mapping[str, Report]) -> Figure:
    """The Rényi loss of each step."""
    figure, (axis,) = _subplots(1, height=3.6)
    unit_s, unit = _time_unit(_longest_s(reports))
    for (name, report), colour in zip(reports.items(), cycle(_COLOURS), strict=False):
        if report.budget_per_step is not None:
            times = report.interval_s / unit_s * np.arange(1, len(report.budget_per_step) + 1)
            axis.semilogy(times, report.budget_per_step, color=colour, label=name)
    axis.set(xlabel=f"time [{unit}]", ylabel="loss per step\n(individual: mean over sensors present)")
    axis.legend(frameon=False)
    return figure


def plot_error(reports: Mapping[str, Report]) -> Figure:
    """The squared error of each step, with its 95% interval."""
    figure, (axis,) = _subplots(1, height=3.6)
    unit_s, unit = _time_unit(_longest_s(reports))
    for (name, report), colour in zip(reports.items(), cycle(_COLOURS), strict=False):
        times = report.interval_s / unit_s * np.arange(1, len(report.mse_per_step) + 1)
        axis.semilogy(times, report.mse_per_step, color=colour, label=f"{name} ({report.mse:.4g})")
        if report.ci95_per_step is not None:
            axis.fill_between(times, *report.ci95_per_step, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel=f"time [{unit}]", ylabel="squared error")
    axis.legend(frameon=False)
    return figure


def plot_error_against_budget(reports: Mapping[str, Sequence[Report]]) -> Figure:
    """The squared error at each budget, a line for each name.

    Dots are single reports. Where several share a budget (seeds, say), the line goes through their mean. Bars are means
    of the 95% intervals of the reports. Reports without a guarantee, and the error without any release, are levels.
    """
    figure, (axis,) = _subplots(1, height=4.2)
    for (name, several), colour in zip(reports.items(), cycle(_COLOURS), strict=False):
        if floor := [report.mse for report in several if report.guarantee is None]:
            axis.axhline(
                float(np.mean(floor)), color=colour, linestyle="--", linewidth=1, label=f"{name} (no guarantee)"
            )
        by_budget: dict[float, list[Report]] = {}
        for report in several:
            if report.guarantee is not None:
                by_budget.setdefault(report.guarantee.budget, []).append(report)
        if not by_budget:
            continue
        budgets = sorted(by_budget)
        means = [np.mean([report.mse for report in by_budget[budget]]) for budget in budgets]
        axis.plot(budgets, means, color=colour, linewidth=1.2, label=name)
        for budget, mean in zip(budgets, means, strict=True):
            own = by_budget[budget]
            axis.plot([budget] * len(own), [r.mse for r in own], "o", color=colour, markersize=3.5, alpha=0.7)
            bounds = [report.ci95 for report in own if report.ci95 is not None]
            if bounds:
                low, high = np.mean(bounds, axis=0)
                axis.errorbar(budget, mean, [[max(mean - low, 0)], [max(high - mean, 0)]], color=colour, capsize=3)
    prior = next(report.prior_mse for several in reports.values() for report in several)
    axis.axhline(prior, color="0.5", linestyle=":", linewidth=1, label="no releases (prior)")
    budgets = sorted({r.guarantee.budget for several in reports.values() for r in several if r.guarantee is not None})
    axis.set(xscale="log", yscale="log", xlabel="Rényi budget", ylabel="squared error")
    axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
    axis.set_xticks([], minor=True)
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_calibration(reports: Mapping[str, Report]) -> Figure:
    """How often intervals of the estimator contain the state, against the level that they claim."""
    figure, (axis,) = _subplots(1, height=4.6, width=5.4)
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="as claimed")
    for (name, report), colour in zip(reports.items(), cycle(_COLOURS), strict=False):
        if report.calibration:
            levels, shares = zip(*report.calibration.items(), strict=True)
            axis.plot(levels, shares, color=colour, marker="o", markersize=3.5, linewidth=1.2, label=name)
    axis.set(xlabel="level that the interval claims", ylabel="share of steps inside", xlim=(0, 1), ylim=(0, 1.02))
    axis.legend(frameon=False, loc="upper left")
    return figure


def plot_seeds(reports: Mapping[str, Sequence[Report]]) -> Figure:
    """The squared error of each report (a seed, say) as a dot with its 95% interval, and the mean of each name."""
    figure, (axis,) = _subplots(1, height=0.9 + 0.55 * len(reports))
    for row, ((_, several), colour) in enumerate(zip(reports.items(), cycle(_COLOURS), strict=False)):
        places = row + (np.arange(len(several)) - (len(several) - 1) / 2) * min(0.12, 0.6 / len(several))
        for place, report in zip(places, several, strict=True):
            if report.ci95 is not None:
                axis.plot(report.ci95, [place, place], color=colour, linewidth=1, alpha=0.5)
            axis.plot(report.mse, place, "o", color=colour, markersize=4)
        mean = np.mean([report.mse for report in several])
        axis.plot([mean, mean], [row - 0.35, row + 0.35], color="black", linewidth=1.2)
    axis.set(yticks=range(len(reports)), yticklabels=list(reports), xlabel="squared error (black: mean)")
    axis.invert_yaxis()
    return figure


def plot_price_of_privacy(reports: Mapping[str, Sequence[Report]], floors: Sequence[Report]) -> Figure:
    """The squared error over that of the floor, at each epsilon: what the guarantee costs; 1 is no price.

    Dots are single reports, each with the paired 95% interval of its ratio, and the line goes through the means.

    Args:
        reports: with a guarantee, by name.
        floors: on designs without a guarantee, on the same windows; their mean is the floor.
    """
    figure, (axis,) = _subplots(1, height=4.2)
    errors = np.mean([report.window_errors for report in floors], axis=0)
    floor = replace(floors[0], mse=float(np.mean([report.mse for report in floors])), window_errors=errors)
    for (name, several), colour in zip(reports.items(), cycle(_COLOURS), strict=False):
        by_epsilon: dict[float, list[float]] = {}
        for report in several:
            epsilon, price = min(report.epsilon.values()), compare(report, floor)
            by_epsilon.setdefault(epsilon, []).append(price.ratio)
            axis.plot(epsilon, price.ratio, "o", color=colour, markersize=3.5, alpha=0.7)
            if price.ci95 is not None:
                axis.plot([epsilon, epsilon], price.ci95, color=colour, linewidth=1, alpha=0.5)
        epsilons = sorted(by_epsilon)
        axis.plot(epsilons, [np.mean(by_epsilon[e]) for e in epsilons], color=colour, linewidth=1.2, label=name)
    axis.axhline(1, color="black", linewidth=1, linestyle="--", label="no guarantee")
    delta = next(report.delta for several in reports.values() for report in several)
    axis.set(xscale="log", yscale="log", xlabel=f"epsilon at delta = {delta:g}", ylabel="squared error / floor")
    axis.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def plot_training(designs: Mapping[str, Design]) -> Figure:
    """The validation error against the updates made: where a curve has not levelled off, more updates may help."""
    figure, (axis,) = _subplots(1, 3.5)
    for name, design in designs.items():
        history = design.training.get("validation_history", [])
        every = design.training.get("optimisation", {}).get("validate_every", 1)
        axis.semilogy(every * np.arange(1, len(history) + 1), history, marker=".", label=name)
    axis.set(xlabel="updates", ylabel="squared error on the validation part")
    axis.legend(frameon=False)
    return figure


def _subplots(rows: int, height: float, width: float = 8, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    # pyplot would keep every figure in memory and may need a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, **options)[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
