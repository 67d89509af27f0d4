"""Figures of a recording: the density over time, and the vehicles in space and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpfuse.data.recording import SECTION_M, Recording, clock, first_tick_of, period_of
from dpfuse.types import Trajectories

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DOT_TICKS = 10
_LABEL_TICKS = 3000  # 5 minutes
_FASTEST_SHOWN_MPS = 18.0


def plot_density(data: Trajectories, first_tick: int) -> Figure:
    """The density of a section by the time of day, for a run that starts at this tick."""
    figure, (axis,) = _subplots(1, height=3.4)
    tick = first_tick + np.arange(data.num_steps) * 10 * data.interval_s
    axis.plot(tick, data.state[0, :, 0], color="black", linewidth=0.8)
    axis.set(ylabel="density [veh/km]", xlabel="time of day", xlim=(tick[0], tick[-1]))
    _show_clock(axis)
    return figure


def plot_space_time(recording: Recording, section: tuple[float, float] = SECTION_M) -> Figure:
    """Every vehicle on the main lanes, once a second, coloured by speed; one period a panel."""
    is_shown = recording.on_main_lanes & (recording.tick % _DOT_TICKS == 0)
    tick, position, speed = (column[is_shown] for column in (recording.tick, recording.position, recording.speed))
    period = period_of(tick)
    panels = np.unique(period).tolist()
    figure, axes = _subplots(len(panels), height=2.4 * len(panels) + 0.6)
    for axis, panel in zip(axes, panels, strict=True):
        own = period == panel
        dots = axis.scatter(
            tick[own],
            position[own],
            c=speed[own],
            s=0.7,
            linewidths=0,
            cmap="viridis",
            vmin=0,
            vmax=_FASTEST_SHOWN_MPS,
        )
        for bound in section:
            axis.axhline(bound, color="black", linewidth=0.8, linestyle="--")
        axis.set(xlim=(first_tick_of(panel), first_tick_of(panel + 1)), ylabel="position [m]")
        _show_clock(axis)
    axes[-1].set_xlabel("time of day; dashed: the section")
    figure.colorbar(dots, ax=list(axes), label="speed [m/s]", fraction=0.04, extend="max")
    return figure


def _show_clock(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    axis.xaxis.set_major_locator(MultipleLocator(_LABEL_TICKS))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: clock(tick, "%H:%M")))


def _subplots(rows: int, height: float) -> tuple[Figure, list[Axes]]:
    # Not pyplot: it keeps every figure in memory and may need a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    axes = list(figure.subplots(rows, 1, squeeze=False)[:, 0])
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes
