"""The traffic on the section, recorded as `Trajectories` or watched step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats32, Integers
from dpfuse._slots import assign_slots
from dpfuse.systems.freeway.car_following import STEP_S, Traffic, drive
from dpfuse.systems.freeway.parameters import Freeway
from dpfuse.trajectories import NOBODY, Trajectories

_LEG_S = 2700.0


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
        freeway: one for all runs, or one for each run on the same road; by default US-101, `Freeway()`.
        duration_s: recorded time, after a warm-up that fills the road with waves.
        interval_s: time between recorded steps, a multiple of 0.1 s. The traffic is the same for every interval.
        num_runs: independent runs. A run is the same for every number of runs.
        seed: equal seeds give equal traffic.

    Returns:
        `state` (N, K, 1) is the density in vehicles per km, all lanes together. `measurements` (N, K, m, 2) are
        the position in metres from the start of the section and the speed in m/s. The lane of a vehicle is the
        remainder of its id in `sensors` by `num_lanes`. In a lane, the id of a vehicle is larger than the id of the
        vehicle ahead.
    """
    freeways = _one_for_each_run(Freeway() if freeway is None else freeway, num_runs)
    steps_each, num_steps = _count_steps(duration_s, interval_s)
    _check.is_count("seed", seed, minimum=0)
    traffic = drive(freeways, num_steps, steps_each, [seed])
    return _record(freeways[0], traffic, (len(freeways), num_steps), interval_s)


class Moment(NamedTuple):
    """The section at one step.

    Attributes:
        state: the density in vehicles per km, shape (1,).
        sensors: the ids of the vehicles, shape (m,).
        measurements: position and speed of each vehicle, shape (m, 2), as in `simulate`.
    """

    state: Floats32
    sensors: Integers
    measurements: Floats32


def watch(freeway: Freeway | None = None, *, interval_s: float = 0.2, seed: int = 0) -> Iterator[Moment]:
    """Traffic without end, simulated step by step. The memory in use stays constant.

    Every 45 minutes the next drivers and the course of the bottleneck are drawn anew, while the vehicles on the road
    drive on. The first 45 minutes are those of `simulate` with that duration and the same interval and seed.
    """
    road = Freeway() if freeway is None else freeway
    steps_each, num_steps = _count_steps(_LEG_S, interval_s)
    traffic: Traffic | None = None
    for leg in itertools.count():
        # Seeds that `simulate` never uses.
        entropy = [seed, leg, 1] if leg else [_check.is_count("seed", seed, minimum=0)]
        for now in drive([road], num_steps, steps_each, entropy, traffic):
            traffic = now
            vehicle, position, speed = _on_section(road, now)
            density = np.array([len(vehicle) * (1000 / road.section_m)], np.float32)
            # A single run has one row for each lane, so the number of a vehicle is its id.
            yield Moment(density, vehicle, np.stack([position, speed], axis=-1))


def _count_steps(duration_s: float, interval_s: float) -> tuple[int, int]:
    """Steps of the simulation in each recorded step, and recorded steps."""
    steps_each = round(_check.is_positive("interval_s", interval_s) / STEP_S)
    if steps_each < 1 or abs(steps_each * STEP_S - interval_s) > 1e-9 * steps_each:
        raise ValueError(f"interval_s must be a multiple of {STEP_S}, got {interval_s}")
    num_steps = round(_check.is_positive("duration_s", duration_s) / interval_s)
    if num_steps < 1:
        raise ValueError(f"duration_s must be at least interval_s, {interval_s}, got {duration_s}")
    return steps_each, num_steps


def _one_for_each_run(freeway: Freeway | Sequence[Freeway], num_runs: int) -> list[Freeway]:
    _check.is_count("num_runs", num_runs)
    freeways = [freeway] * num_runs if isinstance(freeway, Freeway) else list(freeway)
    if not freeways or not all(isinstance(each, Freeway) for each in freeways):
        raise TypeError("freeway must be a Freeway or a sequence of them, one for each run")
    if num_runs not in (1, len(freeways)):
        raise ValueError(f"num_runs must be the number of freeways, {len(freeways)}, got {num_runs}; leave it out")
    freeways[0].check_same_road(freeways)
    return freeways


def _on_section(freeway: Freeway, traffic: Traffic) -> tuple[Integers, Floats32, Floats32]:
    """Number, position on the section and speed of the vehicles on it. A number is rows * (count in its row) + row."""
    position = traffic.position[1:].ravel()
    index = np.flatnonzero((position >= freeway.section_start_m) & (position < freeway.section_end_m))
    on_section = position[index] - np.float32(freeway.section_start_m)
    return traffic.vehicle.ravel()[index], on_section, traffic.speed[1:].ravel()[index]


def _record(freeway: Freeway, traffic: Iterable[Traffic], shape: tuple[int, int], interval_s: float) -> Trajectories:
    """The traffic of (runs, steps), in as many slots as the fullest step has vehicles."""
    num_runs, num_steps = shape
    lanes = freeway.num_lanes
    seen = [_on_section(freeway, now) for now in traffic]
    step = np.repeat(np.arange(num_steps), [len(each[0]) for each in seen])
    vehicle, position, speed = (np.concatenate(each) for each in zip(*seen, strict=True))
    number, row = np.divmod(np.arange(vehicle.max(initial=0) + 1), num_runs * lanes)
    run, lane = np.divmod(row, lanes)
    stay = np.bincount(vehicle, minlength=len(run))
    entered = np.full(len(run), num_steps)
    np.minimum.at(entered, vehicle, step)
    slot = np.zeros_like(run)
    for each in range(num_runs):
        there = np.flatnonzero((run == each) & (stay > 0))
        slot[there] = assign_slots(entered[there], stay[there])
    num_slots = int(slot.max()) + 1
    place = (run * num_steps * num_slots + slot)[vehicle] + step * num_slots
    ids = np.full(num_runs * num_steps * num_slots, NOBODY)
    ids[place] = (number * lanes + lane)[vehicle]
    measurements = np.zeros((len(ids), 2), np.float32)
    measurements[place, 0] = position
    measurements[place, 1] = speed
    sensors = ids.reshape(num_runs, num_steps, num_slots)
    present = sensors != NOBODY
    return Trajectories(
        state=present.sum(-1, keepdims=True) * (1000 / freeway.section_m),
        measurements=measurements.reshape(num_runs, num_steps, num_slots, 2),
        present=present,
        sensors=sensors,
        interval_s=interval_s,
    )
