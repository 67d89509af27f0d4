"""Density, speed and flow of a section in each published period."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpfuse.data.sites import US101, Site
from dpfuse.trajectories import Trajectories


class Period(NamedTuple):
    """A period of a run: densities in vehicles per km, main lanes together, mean speed and flow."""

    name: str
    num_vehicles: int
    density_mean: float
    density_std: float
    density_min: float
    density_max: float
    speed_mps: float  # the space-mean speed: the mean over vehicles and steps
    flow_per_h: float


def periods(data: Trajectories, first_tick: int, site: Site = US101) -> list[Period]:
    """The 15-minute periods of a run that starts at this tick, and all of them together."""
    tick = first_tick + np.arange(data.num_steps) * round(10 * data.interval_s)
    cuts = [0, *(1 + np.flatnonzero(np.diff(site.period_of(tick)))).tolist(), data.num_steps]
    numbers = site.period_of(tick[cuts[:-1]]).tolist()
    parts = [
        _summarise(_name(number, site), data, slice(start, stop))
        for number, start, stop in zip(numbers, cuts, cuts[1:], strict=False)
    ]
    return [*parts, _summarise("all", data, slice(None))]


def _name(number: int, site: Site) -> str:
    return "-".join(site.clock(site.first_tick_of(each), "%H:%M") for each in (number, number + 1))


def _summarise(name: str, data: Trajectories, steps: slice) -> Period:
    density = data.state[0, steps, 0].astype(np.float64)
    present = data.present[0, steps]
    speed = float(data.measurements[0, steps, :, 1][present].mean(dtype=np.float64)) if present.any() else 0.0
    return Period(
        name,
        len(np.unique(data.sensors[0, steps][present])),
        float(density.mean()),
        float(density.std()),
        float(density.min()),
        float(density.max()),
        speed,
        float(density.mean()) * speed * 3.6,
    )
