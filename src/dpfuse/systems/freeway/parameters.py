"""The parameters of a freeway: the road, its drivers and its bottleneck."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import numpy as np

from dpfuse import _check

LARGEST_WAVE_DEPTH = 0.85

_ROAD = ("num_lanes", "road_m", "section_start_m", "section_m")
_MAY_BE_ZERO = (
    "section_start_m",
    "driver_spread",
    "noise_mps2",
    "bottleneck_drift",
    "bottleneck_ripple",
    "truck_share",
    "lane_spread",
)
# Within these limits every drawn speed, length and time gap is positive.
_LARGEST = {
    "driver_spread": 0.3,
    "bottleneck_drift": 0.4,
    "bottleneck_ripple": 0.4,
    "wave_depth": LARGEST_WAVE_DEPTH,
    "truck_share": 0.9,
    "lane_spread": 1.0,
}


@dataclass(frozen=True, kw_only=True)
class Freeway:
    """A road, its drivers and its bottleneck; the defaults reproduce US-101.

    The bottleneck at the end of the road sets the speed of the first vehicle of each lane: `bottleneck_speed_mps`, with
    drift and ripple. Once in every `wave_interval_s`, at a random time, a wave reduces this speed by the share
    `wave_depth`, along a bell curve whose width at half depth is `wave_duration_s`. Depth and duration differ between
    waves.

    Attributes:
        num_lanes: lanes; vehicles stay in their lane.
        road_m: length of the road, from x = 0 to the bottleneck.
        section_start_m: x where the recorded section starts.
        section_m: length of the recorded section. To record the whole road with the same traffic, use
            `replace(freeway, section_start_m=0, section_m=freeway.road_m)`.
        vehicle_length_m: mean length of a vehicle.
        standstill_gap_m: s_0, the gap in a standing queue.
        time_gap_s: T, mean over drivers.
        desired_speed_mps: v_0, mean over drivers.
        acceleration_mps2: a, mean over drivers.
        braking_mps2: b, comfortable braking.
        driver_spread: relative standard deviation of length, T, v_0 and a over vehicles.
        noise_mps2: standard deviation of the random part of the acceleration, which is constant for one second.
        bottleneck_speed_mps: speed at the end of the road between waves.
        bottleneck_drift: relative standard deviation of its changes over minutes.
        bottleneck_ripple: relative standard deviation of its changes over seconds.
        wave_interval_s: mean time between waves.
        wave_duration_s: mean time for which a wave reduces the speed by more than half of its depth.
        wave_depth: mean share by which a wave reduces the speed.
        lane_spread: standard deviation of the logarithm of the bottleneck's speed over lanes.
        truck_share: share of the vehicles that are trucks: three times as long, slower, with half the acceleration.
        demand_per_h: vehicles that arrive in an hour on each lane. By default None: as many as the bottleneck lets
            pass, so that the road is always full.
    """

    num_lanes: int = 5
    road_m: float = 700.0
    section_start_m: float = 120.0
    section_m: float = 400.0
    vehicle_length_m: float = 4.8
    standstill_gap_m: float = 3.4
    time_gap_s: float = 1.38
    desired_speed_mps: float = 30.0
    acceleration_mps2: float = 2.0
    braking_mps2: float = 3.0
    driver_spread: float = 0.12
    noise_mps2: float = 0.15
    bottleneck_speed_mps: float = 12.7
    bottleneck_drift: float = 0.23
    bottleneck_ripple: float = 0.33
    wave_interval_s: float = 160.0
    wave_duration_s: float = 22.0
    wave_depth: float = 0.71
    lane_spread: float = 0.0
    truck_share: float = 0.0
    demand_per_h: float | None = None

    def __post_init__(self) -> None:
        _check.is_count("num_lanes", self.num_lanes)
        for field in fields(self):
            value = getattr(self, field.name)
            is_unset = (field.name in _MAY_BE_ZERO and value == 0) or (field.name == "demand_per_h" and value is None)
            if field.name != "num_lanes" and not is_unset:
                _check.is_positive(field.name, value)
        for name, limit in _LARGEST.items():
            if getattr(self, name) > limit:
                raise ValueError(f"{name} must be at most {limit}, got {getattr(self, name)}")
        if self.section_end_m > self.road_m:
            raise ValueError(f"road_m must reach the end of the section at {self.section_end_m} m, got {self.road_m}")
        if self.bottleneck_speed_mps >= self.desired_speed_mps:
            raise ValueError(
                f"bottleneck_speed_mps must be below desired_speed_mps, {self.desired_speed_mps}, "
                f"got {self.bottleneck_speed_mps}; a faster bottleneck would not slow down any vehicle"
            )

    @property
    def section_end_m(self) -> float:
        return self.section_start_m + self.section_m

    def randomised(self, seed: int, spread: float = 0.2) -> Freeway:
        """The same road with other drivers and another bottleneck, for training on many kinds of traffic.

        Args:
            seed: equal seeds give equal freeways.
            spread: each parameter is multiplied by a number drawn uniformly from 1 - spread to 1 + spread, and kept
                within its limits.
        """
        _check.is_positive("spread", spread)
        if spread > 0.5:
            raise ValueError(f"spread must be at most 0.5, got {spread}; beyond it most roads jam or have free flow")
        rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
        names = [
            field.name for field in fields(self) if field.name not in _ROAD and getattr(self, field.name) is not None
        ]
        factors = rng.uniform(1 - spread, 1 + spread, len(names))
        drawn = {
            name: min(getattr(self, name) * float(factor), _LARGEST.get(name, math.inf))
            for name, factor in zip(names, factors, strict=True)
        }
        drawn["bottleneck_speed_mps"] = min(drawn["bottleneck_speed_mps"], 0.8 * drawn["desired_speed_mps"])
        return replace(self, **drawn)

    def check_same_road(self, others: Iterable[Freeway]) -> None:
        """Refuse freeways with other lanes, another road or another section than this one."""
        for name in _ROAD:
            if any(getattr(other, name) != getattr(self, name) for other in others):
                raise ValueError(f"freeway must have one {name} for all runs; simulate other roads on their own")
