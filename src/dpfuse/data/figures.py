"""Figures of a recording: the density over time, and the vehicles in space and time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.data.recording import Recording
from dpfuse.data.sites import US101, Site
from dpfuse.trajectories import Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TICKS_A_SECOND = 10
_LABEL_TICKS = 3000  # 5 minutes
_FASTEST_SHOWN_MPS = 18.0
_MOST_PANELS = 4
_MOST_DOTS = 40_000


def plot_density(data: Trajectories, first_tick: int, site: Site = US101) -> Figure:
    """The density of a section by the time of day, for a run that starts at this tick."""
    figure, (axis,) = _subplots(1, height=3.4)
    tick = first_tick + np.arange(data.num_steps) * 10 * data.interval_s
    axis.plot(tick, data.state[0, :, 0], color="black", linewidth=0.8)
    axis.set(ylabel="density [veh/km]", xlabel="time of day", xlim=(tick[0], tick[-1]))
    _show_clock(axis, site)
    return figure


def plot_space_time(recording: Recording, section: tuple[float, float] | None = None) -> Figure:
    """Every vehicle on the main lanes, once a second, coloured by speed; one period a panel."""
    site, ticks = recording.site, recording.ticks
    # The first instant of each second, whatever the rate of the recording.
    shown = ticks[np.unique(ticks // _TICKS_A_SECOND, return_index=True)[1]]
    is_shown = recording.on_main_lanes & np.isin(recording.tick, shown)
    tick, position, speed = (column[is_shown] for column in (recording.tick, recording.position, recording.speed))
    period = site.period_of(recording.tick[is_shown])
    panels = np.unique(period).tolist()
    figure, axes = _subplots(len(panels), height=2.4 * len(panels) + 0.6)
    for axis, panel in zip(axes, panels, strict=True):
        own = period == panel
        dots = _scatter(axis, tick[own], position[own], speed[own])
        dots.set_clim(0, _FASTEST_SHOWN_MPS)
        for bound in section or site.section:
            axis.axhline(bound, color="black", linewidth=0.8, linestyle="--")
        axis.set(xlim=(site.first_tick_of(panel), site.first_tick_of(panel + 1)), ylabel="position [m]")
        _show_clock(axis, site)
    axes[-1].set_xlabel("time of day; dashed: the section")
    figure.colorbar(dots, ax=list(axes), label="speed [m/s]", fraction=0.04, extend="max")
    return figure


def plot_state(data: Trajectories) -> Figure:
    """The first coordinate of the state over time, one run a panel; the first runs only."""
    figure, axes = _run_panels(data)
    for run, axis in enumerate(axes):
        axis.plot(_hours_or_seconds(data), data.state[run, :, 0], color="black", linewidth=0.8)
        axis.set_ylabel(data.labels.state[0] if data.labels else "state")
    return figure


def plot_reports(data: Trajectories) -> Figure:
    """The first channel of every report over time, coloured by the second; one run a panel; the first runs only."""
    names = data.labels.values if data.labels else tuple(f"channel {i}" for i in range(data.measurements.shape[-1]))
    figure, axes = _run_panels(data)
    time, shown = _hours_or_seconds(data), data.present[: len(axes)]
    has_colour = len(names) > 1
    largest = float(np.fmax.reduce(data.measurements[: len(axes)][shown][:, 1], initial=1e-3)) if has_colour else 0.0
    for run, axis in enumerate(axes):
        step, slot = np.nonzero(shown[run])
        chosen = slice(None, None, len(step) // _MOST_DOTS + 1)
        values = data.measurements[run, step[chosen], slot[chosen]]
        colour = values[:, 1] if has_colour else None
        # A few dots are large enough to be seen, and many do not hide each other.
        dots = _scatter(axis, time[step[chosen]], values[:, 0], colour, size=min(8.0, max(0.7, 8000 / len(values))))
        axis.set_ylabel(names[0])
        if has_colour:
            dots.set_clim(0, largest)
    if has_colour:
        figure.colorbar(dots, ax=list(axes), label=names[1], fraction=0.04)
    return figure


def _run_panels(data: Trajectories) -> tuple[Figure, list[Axes]]:
    shown = min(data.num_runs, _MOST_PANELS)
    figure, axes = _subplots(shown, height=2.2 * shown + 0.8)
    for run, axis in enumerate(axes):
        if data.num_runs > 1:
            axis.set_title(_name_of(data, run), fontsize="small", loc="left")
    unit = "s" if _unit_s(data) == 1 else "h"
    axes[-1].set_xlabel(f"time since the start of the run [{unit}]")
    return figure, axes


def _name_of(data: Trajectories, run: int) -> str:
    number, start = data.origins[run]
    names = data.labels.run_names if data.labels else None
    return f"{names[number] if names else f'run {number}'}, from {start * data.interval_s:g} s on"


def _unit_s(data: Trajectories) -> int:
    return 3600 if data.num_steps * data.interval_s > 6 * 3600 else 1


def _hours_or_seconds(data: Trajectories) -> Floats:
    return np.arange(data.num_steps) * data.interval_s / _unit_s(data)


def _scatter(axis: Axes, time: Any, values: Any, colour: Any, size: float = 0.7) -> Any:
    if colour is None:
        return axis.scatter(time, values, s=size, linewidths=0, color="black")
    return axis.scatter(time, values, s=size, linewidths=0, c=colour, cmap="viridis")


def _show_clock(axis: Axes, site: Site) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.xaxis.set_major_locator(MultipleLocator(_LABEL_TICKS))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: site.clock(tick, "%H:%M")))


def _subplots(rows: int, height: float) -> tuple[Figure, list[Axes]]:
    # Not pyplot: it keeps every figure in memory and may need a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    axes = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
