"""The figures of the case study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

import dpfuse
from dpfuse.evaluation.figures import plot_estimates, save_figures
from experiments.us101.job_results import first_design
from experiments.us101.jobs import RECORDING, headline
from experiments.us101.traffic import INTERVAL_S

NAMES = {
    "classical": "classical (constant)",
    "schedule": "best fixed schedule",
    "ppo": "Algorithm 2 (PPO)",
    "pathwise": "adaptive, pathwise",
    "individual": "individual accounts",
}
# Colour-blind safe (Okabe and Ito).
COLOURS = dict(zip(NAMES, ("#E69F00", "#56B4E9", "#0072B2", "#009E73", "#CC79A7"), strict=True))


def draw(results: dict[str, Any], folder: Path, out: Path, *, only_guided: bool = False) -> None:
    """Write every figure that the results allow, or the one of guided designs, to `out`; designs are in `folder`."""
    if only_guided:
        save_figures({"error-budget-guided": plot_guided(results)}, out)
        return
    drawn = {"density": plot_density(folder)}
    if "per_step" in results:
        drawn |= {
            "error-budget": plot_error_against_budget(results["split"], results["floor"]["mse"]),
            "price": plot_price(results),
            "budget-per-step": plot_per_step(results, "budget_per_step", "Rényi loss of a step"),
            "error-per-step": plot_per_step(results, "mse_per_step", "squared error [(veh/km)$^2$]"),
        }
        drawn["estimates"] = plot_horizon(folder)
    if "enlarged" in results:
        found = results["enlarged"]
        split = {adjacency: found["tables"][f"{adjacency}, with simulated traffic"] for adjacency in results["split"]}
        drawn["error-budget-enlarged"] = plot_error_against_budget(split, found["floor"]["mse"])
    if "guided" in results:
        drawn["error-budget-guided"] = plot_guided(results)
    save_figures(drawn, out)


def plot_density(folder: Path) -> Figure:
    """The density over the recording, with the parts of the paper's split."""
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    figure, (axis,) = _panels(1, height=3.2)
    minutes = np.arange(recording.num_steps) * recording.interval_s / 60
    axis.plot(minutes, recording.state[0, :, 0], color="black", linewidth=0.8)
    for share, name in ((0.8, "validation"), (0.9, "test")):
        axis.axvspan(share * minutes[-1], (share + 0.1) * minutes[-1], color="0.9" if share < 0.9 else "0.8", zorder=0)
        axis.text((share + 0.05) * minutes[-1], 390, name, ha="center", va="top", fontsize=8)
    axis.set(xlabel="time from the start of the recording [min]", ylabel="density [veh/km]", ylim=(130, 395))
    return figure


def plot_error_against_budget(split: dict[str, Any], floor: float) -> Figure:
    """The paper's trade-off, for both adjacencies."""
    figure, axes = _panels(2, height=4.0, sharey=True)
    for axis, (adjacency, kinds) in zip(axes, split.items(), strict=True):
        _curves(axis, kinds, "budget", 0.0)
        axis.axhline(floor, color="0.4", linestyle="--", linewidth=1, label="no noise (floor)")
        axis.set(xlabel="budget $B_G$ at order 2", title=adjacency)
    axes[0].set_ylabel("squared error [(veh/km)$^2$]")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def plot_guided(results: dict[str, Any]) -> Figure:
    """Guided designs; dashed: the same designs with the paper's f."""
    figure, axes = _panels(2, height=4.0, sharey=True)
    for axis, (adjacency, kinds) in zip(axes, results["split"].items(), strict=True):
        guided = results["guided"]["tables"][f"{adjacency}, the paper's split, guided"]
        budgets = [row["budget"] for row in guided["classical"]]
        evenly = [row["mse"] for row in guided["classical"]]
        axis.loglog(budgets, evenly, color=COLOURS["classical"], marker="o", ms=3, label=NAMES["classical"])
        for kind in ("pathwise", "individual"):
            style = {"color": COLOURS[kind], "marker": "o", "ms": 3}
            own = [row["mse"] for row in kinds[kind] if row["budget"] in budgets]
            axis.loglog(budgets, own, linestyle="--", linewidth=1, label=NAMES[kind], **style)
            followed = [row["mse"] for row in guided[f"{kind}, guided"]]
            axis.loglog(budgets, followed, label=f"{NAMES[kind]}, guided", **style)
        _plain_numbers(axis)
        axis.set(xlabel="budget $B_G$ at order 2", title=adjacency)
    axes[0].set_ylabel("squared error [(veh/km)$^2$]")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def plot_price(results: dict[str, Any]) -> Figure:
    """Error above the floor against epsilon, at delta = 1e-5."""
    figure, axes = _panels(2, height=4.0, sharey=True)
    for axis, (adjacency, kinds) in zip(axes, results["split"].items(), strict=True):
        _curves(axis, kinds, "epsilon", results["floor"]["mse"])
        axis.set(xlabel=r"$\varepsilon$ at $\delta = 10^{-5}$ (exact Gaussian curve)", title=adjacency)
    axes[0].set_ylabel("squared error above the floor [(veh/km)$^2$]")
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def _curves(axis: Axes, kinds: dict[str, Any], over: str, floor: float) -> None:
    for kind, rows in kinds.items():
        across = [row[over] for row in rows]
        axis.loglog(
            across, [row["mse"] - floor for row in rows], color=COLOURS[kind], marker="o", ms=3, label=NAMES[kind]
        )
        if not floor and kind in ("classical", "individual"):
            bounds = np.array([row["ci95"] or (row["mse"], row["mse"]) for row in rows])
            axis.fill_between(across, *bounds.T, color=COLOURS[kind], alpha=0.12, linewidth=0)
    _plain_numbers(axis)


def _plain_numbers(axis: Axes) -> None:
    axis.yaxis.set_major_formatter(ScalarFormatter())
    axis.yaxis.set_minor_formatter(ScalarFormatter())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.tick_params(axis="y", which="minor", labelsize=7)


def plot_per_step(results: dict[str, Any], name: str, label: str) -> Figure:
    """A figure of each step at B = 1.5."""
    figure, axes = _panels(2, height=3.8, sharey=True)
    for axis, (adjacency, kinds) in zip(axes, results["per_step"].items(), strict=True):
        for kind, steps in kinds.items():
            seconds = INTERVAL_S * np.arange(1, len(steps[name]) + 1)
            axis.semilogy(seconds, steps[name], color=COLOURS[kind], label=NAMES[kind], linewidth=1.3)
        axis.set(xlabel="time [s]", title=f"{adjacency}, $B_G = 1.5$")
    axes[0].set_ylabel(label)
    axes[1].legend(frameon=False, fontsize=8)
    return figure


def plot_horizon(folder: Path) -> Figure:
    """Estimated and true density over the test part at B = 1.5."""
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    test = recording.between(round(0.9 * recording.num_steps), recording.num_steps).sample_sensors(0.3, 200)
    designs = {
        NAMES[job.kind]: dpfuse.load(first_design(job, 1.5, folder)["design"])
        for job in headline()
        if job.adjacency == "remove-one" and job.kind in ("classical", "ppo", "pathwise", "individual")
    }
    return plot_estimates(designs, test, state_name="density [veh/km]", duration_s=160.0)


def _panels(count: int, height: float, **options: Any) -> tuple[Figure, Any]:
    # Not pyplot: it keeps every figure alive and may want a screen.
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, **options)[0]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
