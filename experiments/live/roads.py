"""Freeways of every kind, on which the design that comes with dpfuse is trained; none of them is US-101."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from dpfuse import Trajectories
from dpfuse.systems import freeway
from dpfuse.systems.freeway import Freeway

# Of each run, uniformly between the two. Drivers differ less from road to road than bottlenecks do.
_DRAWN = {
    "vehicle_length_m": (4.4, 5.2),
    "standstill_gap_m": (2.7, 4.1),
    "time_gap_s": (1.2, 1.55),
    "desired_speed_mps": (24.0, 42.0),
    "acceleration_mps2": (1.5, 2.5),
    "braking_mps2": (2.4, 3.6),
    "driver_spread": (0.06, 0.18),
    "noise_mps2": (0.1, 0.3),
    "bottleneck_drift": (0.05, 0.35),
    "bottleneck_ripple": (0.05, 0.4),
    "wave_interval_s": (80.0, 500.0),
    "wave_duration_s": (12.0, 40.0),
    "wave_depth": (0.1, 0.85),
    "lane_spread": (0.0, 0.9),
    "truck_share": (0.0, 0.2),
}
_LANES, _SECTION_M, _TO_BOTTLENECK_M = (2, 6), (200.0, 600.0), (50.0, 500.0)
# On full roads, and as a share of the desired speed on roads with a demand.
_BOTTLENECK_MPS, _BOTTLENECK_SHARE = (3.0, 18.0), (0.3, 0.95)
_WITH_DEMAND, _DEMAND_PER_H = 0.4, (500.0, 2300.0)
_SHARES = 0.1, 1.0
# Of more vehicles a smaller share reports; it bounds the memory of training.
_MOST_AT_ONCE = 160
# In this share of the runs the public input is not known.
_UNKNOWN = 0.15


def simulate(num_roads: int, runs_each: int, duration_s: float, seed: int) -> Trajectories:
    """Runs on roads of every kind; those of one road differ in drivers, bottleneck, demand and share of reports."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        parts = pool.map(_simulate_road, [(seed, road, runs_each, duration_s) for road in range(num_roads)])
        return Trajectories.join([run for part in parts for run in part])


def with_lanes(recording: Trajectories, num_lanes: int, section_m: float, share: float | None) -> Trajectories:
    """The recording with its density for each lane, and the public input; a `share` of None is not known.

    The public input is the length of all lanes of the section in km, times the share of the vehicles that report: so
    many vehicles report for a density of 1 vehicle per km and lane.
    """
    public = np.full((*recording.state.shape[:2], 1), np.nan, np.float32)
    if share is not None:
        public[:] = num_lanes * section_m / 1000 * share
    return replace(recording, state=recording.state / num_lanes, public=public, public_age=None)


def _simulate_road(job: tuple[int, int, int, float]) -> list[Trajectories]:
    seed, road, num_runs, duration_s = job
    rng = np.random.default_rng([seed, road])
    section, after = rng.uniform(*_SECTION_M), rng.uniform(*_TO_BOTTLENECK_M)
    start = Freeway.section_start_m
    length: dict[str, Any] = {"section_m": float(section), "road_m": float(start + section + after)}
    length["num_lanes"] = int(rng.integers(*_LANES, endpoint=True))
    roads = [Freeway(**length, **_draw_traffic(rng)) for _ in range(num_runs)]
    traffic = freeway.simulate(roads, duration_s=duration_s, seed=int(rng.integers(2**31)))
    return [_report(traffic.runs([run]), each, rng) for run, each in enumerate(roads)]


def _draw_traffic(rng: np.random.Generator) -> dict[str, Any]:
    """Drivers, bottleneck and demand, as fields of `Freeway`."""
    drawn: dict[str, Any] = {name: float(rng.uniform(*bounds)) for name, bounds in _DRAWN.items()}
    if rng.uniform() < _WITH_DEMAND:
        drawn["demand_per_h"] = float(rng.uniform(*_DEMAND_PER_H))
        drawn["bottleneck_speed_mps"] = float(rng.uniform(*_BOTTLENECK_SHARE)) * drawn["desired_speed_mps"]
    else:
        drawn["bottleneck_speed_mps"] = float(rng.uniform(*_BOTTLENECK_MPS))
    return drawn


def _report(run: Trajectories, road: Freeway, rng: np.random.Generator) -> Trajectories:
    """The reports of a share of the vehicles."""
    share = min(float(np.exp(rng.uniform(*np.log(_SHARES)))), _MOST_AT_ONCE / run.present.sum(-1).max())
    is_known = rng.uniform() >= _UNKNOWN
    reporting = run.sample_sensors(share, int(rng.integers(2**31))).compact()
    return with_lanes(reporting, road.num_lanes, road.section_m, share if is_known else None)
