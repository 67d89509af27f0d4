"""A freeway of several lanes with stop-and-go waves, calibrated to US-101 on the morning of 15 June 2005.

Every vehicle follows the one ahead by the intelligent driver model (Treiber, Hennecke and Helbing 2000,
Congested traffic states in empirical observations and microscopic simulations, Physical Review E 62):

    dv/dt = a (1 - (v / v_0)^4 - (s* / s)^2) + noise,    s* = s_0 + max(0, v T + v dv / (2 sqrt(a b)))

with gap s to the rear of the vehicle ahead and approach rate dv. Where the road ends, a bottleneck sets the
speed of the vehicle that leads its lane and every few minutes nearly stops it. The waves start there and travel
upstream.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats32, Integers
from dpfuse._slots import assign_slots
from dpfuse.types import NOBODY, Trajectories

_STEP_S = 0.1
_LEG_S = 2700.0
_WARM_UP_S = 400.0  # a wave needs less than half of it from the bottleneck to the start of the road
_NOISE_HELD_S = 1.0
_SMALLEST_GAP_M = 0.5

_RIPPLE_S = 12.0
# Whole numbers of periods in 45 minutes, so that runs of that length hardly differ in their mean speed.
_DRIFT_PERIODS_S = np.array([2700.0, 1350.0, 900.0])
_WAVE_SPREAD = 0.3  # relative standard deviation of depth and duration from wave to wave
_WAVE_IRREGULARITY = 0.7  # share of an interval within which the moment of its wave is drawn
_WAVE_LAG_S = 2.0  # standard deviation between lanes

_SAME_ROAD = ("num_lanes", "road_m", "section_start_m", "section_m")
_MAY_BE_ZERO = ("section_start_m", "driver_spread", "noise_mps2", "bottleneck_drift", "bottleneck_ripple")
# Under these limits what is drawn for the drivers and the bottleneck is always positive.
_LARGEST = {"driver_spread": 0.3, "bottleneck_drift": 0.4, "bottleneck_ripple": 0.4, "wave_depth": 0.85}


@dataclass(frozen=True, kw_only=True)
class Freeway:
    """A road, its drivers and its bottleneck; the defaults reproduce US-101.

    The bottleneck lets vehicles go at `bottleneck_speed_mps`, give or take its drift and ripple. Once in
    every `wave_interval_s`, at an irregular moment, it takes away the share `wave_depth` of that speed, along a
    bell curve whose width at half depth is `wave_duration_s`. Each wave has a depth and duration of its own around
    these. The equations are at the top of the module.

    Attributes:
        num_lanes: lanes, without changes between them.
        road_m: from the start of the road, x = 0, to the bottleneck.
        section_start_m: x where the section that is recorded starts.
        section_m: length of that section. For a picture of the whole road, record it as one section:
            `replace(freeway, section_start_m=0, section_m=freeway.road_m)` has the same traffic.
        vehicle_length_m: mean length of a vehicle.
        standstill_gap_m: s_0, the gap in a standing queue.
        time_gap_s: T, mean over drivers.
        desired_speed_mps: v_0, mean over drivers.
        acceleration_mps2: a, mean over drivers.
        braking_mps2: b, comfortable braking.
        driver_spread: relative standard deviation of length, T, v_0 and a from vehicle to vehicle.
        noise_mps2: standard deviation of a driver's error in the acceleration, which is held for a second.
        bottleneck_speed_mps: speed at the end of the road between waves.
        bottleneck_drift: relative standard deviation of its changes over minutes.
        bottleneck_ripple: relative standard deviation of its changes over seconds.
        wave_interval_s: mean time between waves.
        wave_duration_s: mean time for which a wave holds the bottleneck below half of its depth.
        wave_depth: mean share of the speed that a wave takes away.
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

    def __post_init__(self) -> None:
        _check.is_count("num_lanes", self.num_lanes)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "num_lanes" and not (field.name in _MAY_BE_ZERO and value == 0):
                _check.is_positive(field.name, value)
        for name, limit in _LARGEST.items():
            if getattr(self, name) > limit:
                raise ValueError(f"{name} must be at most {limit}, got {getattr(self, name)}")
        end = self.section_start_m + self.section_m
        if end > self.road_m:
            raise ValueError(f"road_m must reach the end of the section at {end} m, got {self.road_m}")
        if self.bottleneck_speed_mps >= self.desired_speed_mps:
            raise ValueError(
                f"bottleneck_speed_mps must be below desired_speed_mps, {self.desired_speed_mps}, "
                f"got {self.bottleneck_speed_mps}; a faster one would not hold anybody up"
            )

    def randomised(self, seed: int, spread: float = 0.2) -> Freeway:
        """The same road with other drivers and another bottleneck, for training on many kinds of traffic.

        Args:
            seed: equal seeds give equal freeways.
            spread: each parameter is multiplied by a number drawn uniformly from 1 - spread to 1 + spread,
                and kept within what is allowed.
        """
        _check.is_positive("spread", spread)
        if spread > 0.5:
            raise ValueError(f"spread must be at most 0.5, got {spread}; beyond it most roads jam or run free")
        rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
        names = [field.name for field in fields(self) if field.name not in _SAME_ROAD]
        factors = rng.uniform(1 - spread, 1 + spread, len(names))
        drawn = {
            name: min(getattr(self, name) * float(factor), _LARGEST.get(name, math.inf))
            for name, factor in zip(names, factors, strict=True)
        }
        drawn["bottleneck_speed_mps"] = min(drawn["bottleneck_speed_mps"], 0.8 * drawn["desired_speed_mps"])
        return replace(self, **drawn)


def simulate(
    freeway: Freeway | Sequence[Freeway] | None = None,
    *,
    duration_s: float = 2700.0,
    interval_s: float = 0.2,
    num_runs: int = 1,
    seed: int = 0,
) -> Trajectories:
    """Recorded traffic on the section: its density, and the position and speed of every vehicle on it.

    Args:
        freeway: one for all runs, or one for each of them on the same road; by default US-101, `Freeway()`.
        duration_s: recorded time, after a warm-up that fills the road with waves.
        interval_s: time between recorded steps, a multiple of 0.1 s. It does not change the traffic.
        num_runs: independent runs. The traffic of one does not depend on how many there are.
        seed: equal seeds give equal traffic.

    Returns:
        `state` (N, K, 1) is the density in vehicles per km, all lanes together. `measurements` (N, K, m, 2) are
        the position in metres from the start of the section and the speed in m/s. The lane of a vehicle is the
        remainder of its id in `sensors` by `num_lanes`; along a lane ids grow from vehicle to follower.
    """
    freeways = _one_each(Freeway() if freeway is None else freeway, num_runs)
    steps_each, num_steps = _count_steps(duration_s, interval_s)
    _check.is_count("seed", seed, minimum=0)
    seen = _watch(freeways[0], _drive(freeways, num_steps, steps_each, [seed]))
    return _to_trajectories(freeways[0], seen, (len(freeways), num_steps), interval_s)


class Moment(NamedTuple):
    """The section at one step: its density, and id, position and speed of every vehicle, as `simulate` has them."""

    state: Floats32
    sensors: Integers
    measurements: Floats32


def watch(freeway: Freeway | None = None, *, interval_s: float = 0.2, seed: int = 0) -> Iterator[Moment]:
    """Traffic without an end, step by step, simulated as it is asked for; memory does not grow with time.

    Every 45 minutes the drivers still to come and the course of the bottleneck are drawn anew; whoever is on the road
    drives on. The first 45 minutes are those of `simulate` with that duration, interval and seed.
    """
    road = Freeway() if freeway is None else freeway
    steps_each, num_steps = _count_steps(_LEG_S, interval_s)
    start, end = road.section_start_m, road.section_start_m + road.section_m
    traffic: _Traffic | None = None
    for leg in itertools.count():
        # Numbers that no run of `simulate` has.
        entropy = [seed, leg, 1] if leg else [_check.is_count("seed", seed, minimum=0)]
        for now in _drive([road], num_steps, steps_each, entropy, traffic):
            traffic = now
            vehicle, position, speed = _on_section(now, start, end)
            density = np.array([len(vehicle) * (1000 / road.section_m)], np.float32)
            # A single run has one row for each lane, which makes the number of a vehicle its id.
            yield Moment(density, vehicle, np.stack([position - np.float32(start), speed], axis=-1))


def _count_steps(duration_s: float, interval_s: float) -> tuple[int, int]:
    """Steps of the simulation in each recorded one, and recorded steps."""
    steps_each = round(_check.is_positive("interval_s", interval_s) / _STEP_S)
    if steps_each < 1 or abs(steps_each * _STEP_S - interval_s) > 1e-9 * steps_each:
        raise ValueError(f"interval_s must be a multiple of {_STEP_S}, got {interval_s}")
    num_steps = round(_check.is_positive("duration_s", duration_s) / interval_s)
    if num_steps < 1:
        raise ValueError(f"duration_s must be at least interval_s, {interval_s}, got {duration_s}")
    return steps_each, num_steps


def _one_each(freeway: Freeway | Sequence[Freeway], num_runs: int) -> list[Freeway]:
    _check.is_count("num_runs", num_runs)
    freeways = [freeway] * num_runs if isinstance(freeway, Freeway) else list(freeway)
    if not freeways or not all(isinstance(each, Freeway) for each in freeways):
        raise TypeError("freeway must be a Freeway or a sequence of them, one for each run")
    if num_runs not in (1, len(freeways)):
        raise ValueError(f"num_runs must be the number of freeways, {len(freeways)}, got {num_runs}; leave it out")
    for name in _SAME_ROAD:
        if len({getattr(each, name) for each in freeways}) > 1:
            raise ValueError(f"freeway must have one {name} for all runs; simulate other roads on their own")
    return freeways


class _Drivers(NamedTuple):
    """Vehicles and their drivers; each field has shape (vehicles, rows), where a row is a lane of a run."""

    inverse_desired_speed: Floats32
    time_gap: Floats32
    standstill_gap: Floats32
    acceleration: Floats32
    approach_factor: Floats32  # 1 / (2 sqrt(a b))
    length: Floats32


def _draw_drivers(freeway: Freeway, num_vehicles: int, rng: np.random.Generator) -> _Drivers:
    """All vehicles of one run, in the order in which they join each lane."""
    shape = (num_vehicles, freeway.num_lanes, 4)
    factor = 1 + freeway.driver_spread * np.clip(rng.standard_normal(shape), -2, 2)
    desired_speed, time_gap, acceleration, length = np.moveaxis(factor, -1, 0)
    acceleration = acceleration * freeway.acceleration_mps2
    columns = (
        1 / (desired_speed * freeway.desired_speed_mps),
        time_gap * freeway.time_gap_s,
        np.full(shape[:2], freeway.standstill_gap_m),
        acceleration,
        0.5 / np.sqrt(acceleration * freeway.braking_mps2),
        length * freeway.vehicle_length_m,
    )
    return _Drivers(*(column.astype(np.float32) for column in columns))


def _draw_bottleneck(freeway: Freeway, num_steps: int, rng: np.random.Generator) -> Floats32:
    """The speed at the end of each lane, shape (num_steps, num_lanes)."""
    ripple_rng, moment_rng, wave_rng = rng.spawn(3)
    second = np.arange(math.ceil(num_steps * _STEP_S) + 1.0)
    phase = rng.uniform(0, 2 * np.pi, len(_DRIFT_PERIODS_S))
    drift = np.sin(2 * np.pi * second[:, None] / _DRIFT_PERIODS_S + phase).sum(1) * math.sqrt(2 / len(phase))
    knots = np.clip(ripple_rng.standard_normal(math.ceil(second[-1] / _RIPPLE_S) + 1), -2, 2)
    ripple = np.interp(second / _RIPPLE_S, np.arange(len(knots)), knots)
    between = freeway.bottleneck_speed_mps * (1 + freeway.bottleneck_drift * drift)
    between *= 1 + freeway.bottleneck_ripple * ripple

    num_waves = math.ceil(second[-1] / freeway.wave_interval_s) + 2
    moment = np.arange(num_waves) - rng.uniform() + _WAVE_IRREGULARITY * moment_rng.uniform(size=num_waves)
    waves = np.clip(wave_rng.standard_normal((num_waves, 2 + freeway.num_lanes)), -2, 2)
    depth = np.minimum(freeway.wave_depth * (1 + _WAVE_SPREAD * waves[:, 0]), _LARGEST["wave_depth"])
    duration = freeway.wave_duration_s * (1 + _WAVE_SPREAD * waves[:, 1])
    speed = np.empty((num_steps, freeway.num_lanes), np.float32)
    for lane in range(freeway.num_lanes):
        centre = freeway.wave_interval_s * moment + _WAVE_LAG_S * waves[:, 2 + lane]
        # The bell curve is at half its height half a duration before and after its centre.
        left = np.prod(1 - depth * np.exp2(-4 * np.square((second[:, None] - centre) / duration)), axis=1)
        speed[:, lane] = np.interp(_STEP_S * np.arange(num_steps), second, between * left)
    return speed


def _equilibrium_gap(drivers: _Drivers, speed: Floats32) -> Floats32:
    """The gap at which drivers keep the speed of the vehicle ahead."""
    ratio = np.minimum(speed * drivers.inverse_desired_speed, np.float32(0.9))
    gap: Floats32 = (drivers.standstill_gap + speed * drivers.time_gap) / np.sqrt(1 - np.square(np.square(ratio)))
    return gap


class _Traffic:
    """All vehicles of all runs, moved in place.

    A row is a lane of a run. Its vehicles lie in a ring of slots: the follower of a vehicle is in the next slot,
    and the slot of one that passes the bottleneck goes to a new one behind the last. The queue thus has no
    upstream end to reflect waves. Positions (of the front), rears and speeds have shape (1 + slots, rows); entry
    0 repeats the last slot, so that the vehicles ahead of [1:] are in [:-1].
    """

    def __init__(self, freeways: Sequence[Freeway], drivers: _Drivers, num_slots: int) -> None:
        def by_row(name: str) -> Floats32:
            return np.repeat([np.float32(getattr(each, name)) for each in freeways], freeways[0].num_lanes)

        self.road = np.float32(freeways[0].road_m)
        self.num_slots = num_slots
        self.coming, self.coming_from = drivers, np.zeros(drivers.length.shape[1], np.int64)
        self.drivers = _Drivers(*(column[:num_slots].copy() for column in drivers))
        self.braking = by_row("braking_mps2")
        self.rows = np.arange(len(self.braking))
        self.joined = np.full(len(self.rows), num_slots)
        self.vehicle = np.arange(num_slots * len(self.rows)).reshape(num_slots, -1)
        self.speed = np.tile(by_row("bottleneck_speed_mps"), (1 + num_slots, 1))
        self.position = np.empty_like(self.speed)
        spacing = self.drivers.length + _equilibrium_gap(self.drivers, self.speed[1:])
        self.position[1:] = self.road - np.cumsum(spacing, axis=0)
        self.rear = np.empty_like(self.speed)

    def go_on_with(self, drivers: _Drivers) -> None:
        """Let these join the queue from now on."""
        self.coming, self.coming_from = drivers, self.joined.copy()

    @property
    def first(self) -> tuple[Integers, Integers]:
        """Where the vehicles are that lead their lanes, as an index into arrays of shape (slots, rows)."""
        return self.joined % self.num_slots, self.rows

    def gaps(self) -> Floats32:
        """From each front to the rear ahead, the length of the road if nobody is, shape (slots, rows)."""
        np.subtract(self.position[1:], self.drivers.length, out=self.rear[1:])
        self.rear[0] = self.rear[-1]
        gap: Floats32 = self.rear[:-1] - self.position[1:]
        gap[self.first] = self.road
        return gap

    def advance(self, bottleneck_speed: Floats32, noise: Floats32) -> None:
        """Move all by one step, given the speed at the end of each row and noise of shape (slots, rows)."""
        drivers, dt, first = self.drivers, np.float32(_STEP_S), self.first
        gap = self.gaps()
        self.speed[0] = self.speed[-1]
        speed = self.speed[1:]
        wanted = speed - self.speed[:-1]
        wanted *= drivers.approach_factor
        wanted += drivers.time_gap
        wanted *= speed
        np.maximum(wanted, 0, out=wanted)
        wanted += drivers.standstill_gap
        wanted /= gap
        np.square(wanted, out=wanted)
        change = speed * drivers.inverse_desired_speed
        np.square(change, out=change)
        np.square(change, out=change)
        np.subtract(1, change, out=change)
        change -= wanted
        change *= drivers.acceleration
        change += noise
        change *= dt
        catching_up = np.minimum(bottleneck_speed - speed[first], drivers.acceleration[first] * dt)
        change[first] = np.maximum(catching_up, -self.braking * dt)
        speed += change
        # At this speed nobody reaches the place where the vehicle ahead is now, even if that one stops dead.
        gap -= np.float32(_SMALLEST_GAP_M)
        gap *= 1 / dt
        np.minimum(speed, gap, out=speed)
        np.maximum(speed, 0, out=speed)
        self.position[1:] += speed * dt
        self._replace_first()

    def _replace_first(self) -> None:
        """Give the slots of vehicles past the bottleneck to new ones that join the end of the queue."""
        first, rows = self.first
        passed = self.position[1 + first, rows] > self.road
        if not passed.any():
            return
        slot, row, number = first[passed], rows[passed], self.joined[passed]
        last = (slot - 1) % self.num_slots
        speed = self.speed[1 + last, row]
        rear = self.position[1 + last, row] - self.drivers.length[last, row]
        joining = _Drivers(*(column[number - self.coming_from[row], row] for column in self.coming))
        for column, value in zip(self.drivers, joining, strict=True):
            column[slot, row] = value
        self.position[1 + slot, row] = rear - _equilibrium_gap(joining, speed)
        self.speed[1 + slot, row] = speed
        self.vehicle[slot, row] = number * len(rows) + row
        self.joined[row] += 1


def _drive(
    freeways: Sequence[Freeway], num_steps: int, steps_each: int, seed: Sequence[int], before: _Traffic | None = None
) -> Iterator[_Traffic]:
    """The traffic at each recorded step, fresh or from where it is; it moves on when the next one is asked for."""
    warm_up, hold = round(_WARM_UP_S / _STEP_S) if before is None else 0, round(_NOISE_HELD_S / _STEP_S)
    total = warm_up + num_steps * steps_each
    # Even when all stand, the queue reaches back to the start of the road.
    num_slots = max(math.ceil(each.road_m / (each.vehicle_length_m + each.standstill_gap_m)) for each in freeways) + 5
    # No flow exceeds one vehicle per time gap.
    num_vehicles = 2 * num_slots + math.ceil(total * _STEP_S / min(each.time_gap_s for each in freeways))
    rngs = [np.random.default_rng([*seed, run]).spawn(3) for run in range(len(freeways))]
    drivers = [_draw_drivers(each, num_vehicles, rng[0]) for each, rng in zip(freeways, rngs, strict=True)]
    speeds = [_draw_bottleneck(each, total, rng[1]) for each, rng in zip(freeways, rngs, strict=True)]
    coming = _Drivers(*(np.concatenate(column, axis=1) for column in zip(*drivers, strict=True)))
    traffic = _Traffic(freeways, coming, num_slots) if before is None else before
    if before is not None:
        before.go_on_with(coming)
    bottleneck_speed = np.concatenate(speeds, axis=1)
    noise = np.empty((num_slots, len(traffic.rows)), np.float32)
    shape = (num_slots, freeways[0].num_lanes)
    for step in range(total):
        if step % hold == 0:
            draws = [
                rng[2].standard_normal(shape, np.float32) * np.float32(each.noise_mps2)
                for each, rng in zip(freeways, rngs, strict=True)
            ]
            np.concatenate(draws, axis=1, out=noise)
        if step >= warm_up and (step - warm_up) % steps_each == 0:
            yield traffic
        traffic.advance(bottleneck_speed[step], noise)


class _Sightings(NamedTuple):
    """Vehicles on the section, one entry for each vehicle and recorded step, in order of time."""

    step: Integers
    vehicle: Integers  # number of the vehicle in its row, times rows, plus row
    position: Floats32
    speed: Floats32


def _watch(freeway: Freeway, traffic: Iterable[_Traffic]) -> _Sightings:
    """Everyone on the section, step by step."""
    start, end = freeway.section_start_m, freeway.section_start_m + freeway.section_m
    seen = []
    for now in traffic:
        seen.append(_on_section(now, start, end))
    vehicle, position, speed = (np.concatenate(each) for each in zip(*seen, strict=True))
    step = np.repeat(np.arange(len(seen)), [len(each[0]) for each in seen])
    return _Sightings(step, vehicle, position - np.float32(start), speed)


def _on_section(traffic: _Traffic, start: float, end: float) -> tuple[Integers, Floats32, Floats32]:
    """Number, position on the road and speed of those between start and end."""
    position = traffic.position[1:].ravel()
    index = np.flatnonzero((position >= start) & (position < end))
    return traffic.vehicle.ravel()[index], position[index], traffic.speed[1:].ravel()[index]


def _to_trajectories(freeway: Freeway, seen: _Sightings, shape: tuple[int, int], interval_s: float) -> Trajectories:
    """The sightings of (runs, steps) in as few slots as hold the vehicles of the fullest step."""
    num_runs, num_steps = shape
    lanes = freeway.num_lanes
    number, row = np.divmod(np.arange(seen.vehicle.max(initial=0) + 1), num_runs * lanes)
    run, lane = np.divmod(row, lanes)
    stay = np.bincount(seen.vehicle, minlength=len(run))
    entered = np.full(len(run), num_steps)
    np.minimum.at(entered, seen.vehicle, seen.step)
    slot = np.zeros_like(run)
    for each in range(num_runs):
        there = np.flatnonzero((run == each) & (stay > 0))
        slot[there] = assign_slots(entered[there], stay[there])
    num_slots = int(slot.max()) + 1
    place = (run * num_steps * num_slots + slot)[seen.vehicle] + seen.step * num_slots
    ids = np.full(num_runs * num_steps * num_slots, NOBODY)
    ids[place] = (number * lanes + lane)[seen.vehicle]
    measurements = np.zeros((len(ids), 2), np.float32)
    measurements[place, 0] = seen.position
    measurements[place, 1] = seen.speed
    sensors = ids.reshape(num_runs, num_steps, num_slots)
    present = sensors != NOBODY
    return Trajectories(
        state=present.sum(-1, keepdims=True) * (1000 / freeway.section_m),
        measurements=measurements.reshape(num_runs, num_steps, num_slots, 2),
        present=present,
        sensors=sensors,
        interval_s=interval_s,
    )
