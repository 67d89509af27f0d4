"""Figures of recordings, estimates, spending and errors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse._stats import Z95
from dpfuse.evaluation.report import Report
from dpfuse.evaluation.simulate import simulate_windows
from dpfuse.policy.design import Design
from dpfuse.types import Trajectories

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
    designs: Mapping[str, Design], data: Trajectories, *, state_name: str = "state", duration_s: float = 240.0
) -> Figure:
    """True and estimated state with the estimator's 95% band, in windows of one horizon that follow each other."""
    first = next(iter(designs.values()))
    length = first.structure.horizon or data.num_steps
    count = max(1, min(data.num_steps // length, round(duration_s / (length * data.interval_s))))
    windows = data.runs([0]).windows(length).runs(np.arange(count))
    figure, axes = _subplots(len(designs), height=2.2 * len(designs) + 0.8, sharex=True, sharey=True)
    seconds = np.arange(count * length) * data.interval_s
    for axis, (name, design), colour in zip(axes, designs.items(), _COLOURS, strict=False):
        batches = list(simulate_windows(design, windows, num_draws=1, seed=1))
        mean, std = (np.concatenate([_in_order(getattr(b.result, part)) for b in batches]) for part in ("mean", "std"))
        axis.plot(seconds, windows.state[..., 0].ravel(), color="black", linewidth=1.2, label="true")
        axis.plot(seconds, mean, color=colour, linewidth=1.2, label=name)
        axis.fill_between(seconds, mean - Z95 * std, mean + Z95 * std, color=colour, alpha=0.2, linewidth=0)
        for start in range(1, count):
            axis.axvline(start * length * data.interval_s, color="0.85", linewidth=0.8, zorder=0)
        axis.legend(loc="upper right", ncols=2, frameon=False)
        axis.set_ylabel(state_name)
    axes[-1].set_xlabel("time [s]; grey lines: a new window starts")
    return figure


def _in_order(values: np.ndarray) -> np.ndarray:
    """The first coordinate of all windows in order, shape (windows * K,), from shape (K, windows, n_x)."""
    return np.asarray(values)[..., 0].T.ravel()


def plot_budget(reports: Mapping[str, Report]) -> Figure:
    """The Rényi loss of each step."""
    figure, (axis,) = _subplots(1, height=3.6)
    for (name, report), colour in zip(reports.items(), _COLOURS, strict=False):
        if report.budget_per_step is not None:
            seconds = report.interval_s * np.arange(1, len(report.budget_per_step) + 1)
            axis.semilogy(seconds, report.budget_per_step, color=colour, label=name)
    axis.set(xlabel="time [s]", ylabel="loss per step\n(individual: mean over sensors present)")
    axis.legend(frameon=False)
    return figure


def plot_error(reports: Mapping[str, Report]) -> Figure:
    """The squared error of each step, with its 95% interval."""
    figure, (axis,) = _subplots(1, height=3.6)
    for (name, report), colour in zip(reports.items(), _COLOURS, strict=False):
        seconds = report.interval_s * np.arange(1, len(report.mse_per_step) + 1)
        axis.semilogy(seconds, report.mse_per_step, color=colour, label=f"{name} ({report.mse:.4g})")
        if report.ci95_per_step is not None:
            axis.fill_between(seconds, *report.ci95_per_step, color=colour, alpha=0.15, linewidth=0)
    axis.set(xlabel="time [s]", ylabel="squared error")
    axis.legend(frameon=False)
    return figure


def _subplots(rows: int, height: float, **options: Any) -> tuple[Figure, Sequence[Axes]]:
    # pyplot would keep every figure in memory and may need a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, **options)[:, 0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
