"""The traffic: every vehicle follows the vehicle ahead by the intelligent driver model.

The model is Treiber, Hennecke and Helbing 2000, Congested traffic states in empirical observations and microscopic
simulations, Physical Review E 62:

    dv/dt = a (1 - (v / v_0)^4 - (s* / s)^2) + noise,    s* = s_0 + max(0, v T + v dv / (2 sqrt(a b)))

with the gap s to the rear of the vehicle ahead and the approach rate dv. The first vehicle of a lane follows the speed
of the bottleneck. The waves start there and travel upstream. Where a demand is set, the road may be nearly empty: the
first vehicle of a lane then follows an imagined one that passes the bottleneck at its speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Floats32, Integers
from dpfuse.systems.freeway.bottleneck import draw_bottleneck
from dpfuse.systems.freeway.parameters import Freeway

STEP_S = 0.1

_WARM_UP_S = 400.0  # a wave takes less than half of it from the bottleneck to the start of the road
_NOISE_HELD_S = 1.0
_SMALLEST_GAP_M = 0.5
# A truck's length, desired speed and acceleration beside a car's.
_TRUCK = np.array([3.0, 0.8, 0.5])


class Drivers(NamedTuple):
    """Vehicles and their drivers; each field has shape (vehicles, rows), where a row is a lane of a run."""

    inverse_desired_speed: Floats32
    time_gap: Floats32
    standstill_gap: Floats32
    acceleration: Floats32
    approach_factor: Floats32  # 1 / (2 sqrt(a b))
    length: Floats32
    surplus: Floats32  # at its arrival, the free road ahead relative to the mean


def _draw_drivers(freeway: Freeway, num_vehicles: int, rng: np.random.Generator) -> Drivers:
    """All vehicles of one run, in the order in which they join each lane."""
    shape = (num_vehicles, freeway.num_lanes, 4)
    more_rng = rng.spawn(1)[0]
    factor = 1 + freeway.driver_spread * np.clip(rng.standard_normal(shape), -2, 2)
    desired_speed, time_gap, acceleration, length = np.moveaxis(factor, -1, 0)
    is_truck = more_rng.uniform(size=shape[:2]) < freeway.truck_share
    length, desired_speed, acceleration = (
        np.where(is_truck, ratio * value, value)
        for ratio, value in zip(_TRUCK, (length, desired_speed, acceleration), strict=True)
    )
    acceleration = acceleration * freeway.acceleration_mps2
    columns = (
        1 / (desired_speed * freeway.desired_speed_mps),
        time_gap * freeway.time_gap_s,
        np.full(shape[:2], freeway.standstill_gap_m),
        acceleration,
        0.5 / np.sqrt(acceleration * freeway.braking_mps2),
        length * freeway.vehicle_length_m,
        more_rng.exponential(size=shape[:2]),
    )
    return Drivers(*(column.astype(np.float32) for column in columns))


def _equilibrium_gap(drivers: Drivers, speed: Floats32) -> Floats32:
    """The gap at which drivers keep the speed of the vehicle ahead."""
    ratio = np.minimum(speed * drivers.inverse_desired_speed, np.float32(0.9))
    gap: Floats32 = (drivers.standstill_gap + speed * drivers.time_gap) / np.sqrt(1 - np.square(np.square(ratio)))
    return gap


class Traffic:
    """All vehicles of all runs, moved in place.

    A row is a lane of a run. Its vehicles are in a ring of slots: the follower of a vehicle is in the next slot. When a
    vehicle passes the bottleneck, its slot goes to a new vehicle behind the last one. So the queue has no upstream end
    that would reflect waves. Positions (of the front), rears and speeds have shape (1 + slots, rows). Entry 0 repeats
    the last slot, so that the vehicles ahead of [1:] are [:-1].
    """

    def __init__(self, freeways: Sequence[Freeway], drivers: Drivers, num_slots: int) -> None:
        def by_row(name: str) -> Floats32:
            return np.repeat([np.float32(getattr(each, name)) for each in freeways], freeways[0].num_lanes)

        self.road = np.float32(freeways[0].road_m)
        self.num_slots = num_slots
        self.joining, self.joining_from = drivers, np.zeros(drivers.length.shape[1], np.int64)
        self.drivers = Drivers(*(column[:num_slots].copy() for column in drivers))
        self.braking = by_row("braking_mps2")
        headways = [0.0 if each.demand_per_h is None else 3600 / each.demand_per_h for each in freeways]
        self.headway = np.repeat(np.asarray(headways, np.float32), freeways[0].num_lanes)
        self.is_full = self.headway == 0
        self.rows = np.arange(len(self.braking))
        self.num_joined = np.full(len(self.rows), num_slots)
        self.vehicle = np.arange(num_slots * len(self.rows)).reshape(num_slots, -1)
        self.speed = np.tile(by_row("bottleneck_speed_mps"), (1 + num_slots, 1))
        self.position = np.empty_like(self.speed)
        spacing = self.drivers.length + _equilibrium_gap(self.drivers, self.speed[1:])
        self.position[1:] = self.road - np.cumsum(spacing, axis=0)
        self.rear = np.empty_like(self.speed)

    def continue_with(self, drivers: Drivers) -> None:
        """Let these vehicles join the queue from now on."""
        self.joining, self.joining_from = drivers, self.num_joined.copy()

    @property
    def first(self) -> tuple[Integers, Integers]:
        """The first vehicles of all rows, as an index into arrays of shape (slots, rows)."""
        return self.num_joined % self.num_slots, self.rows

    def gaps(self) -> Floats32:
        """From each front to the rear ahead, shape (slots, rows); the length of the road for the first vehicles."""
        np.subtract(self.position[1:], self.drivers.length, out=self.rear[1:])
        self.rear[0] = self.rear[-1]
        gap: Floats32 = self.rear[:-1] - self.position[1:]
        gap[self.first] = self.road
        return gap

    def advance(self, bottleneck_speed: Floats32, noise: Floats32) -> None:
        """Move all vehicles by one step, given the speed at the end of each row and noise of shape (slots, rows)."""
        drivers, dt, first = self.drivers, np.float32(STEP_S), self.first
        gap = self.gaps()
        self.speed[0] = self.speed[-1]
        speed = self.speed[1:]
        wanted = speed - self.speed[:-1]
        if not self.is_full.all():
            ahead = np.where(self.is_full, gap[first], self._to_imagined(bottleneck_speed))
            gap[first], wanted[first] = ahead, speed[first] - bottleneck_speed
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
        at_bottleneck = np.maximum(catching_up, -self.braking * dt)
        change[first] = np.where(self.is_full, at_bottleneck, change[first])
        speed += change
        # At this speed a vehicle stays behind the present place of the vehicle ahead, even if that one stops at once.
        gap -= np.float32(_SMALLEST_GAP_M)
        gap *= 1 / dt
        np.minimum(speed, gap, out=speed)
        np.maximum(speed, 0, out=speed)
        self.position[1:] += speed * dt
        self._replace_first()

    def _to_imagined(self, bottleneck_speed: Floats32) -> Floats32:
        """The gap from each first vehicle to the imagined one ahead of it, which is in balance at the bottleneck."""
        own = Drivers(*(column[self.first] for column in self.drivers))
        left = self.road - self.position[1:][self.first]
        gap: Floats32 = np.maximum(left, 0) + _equilibrium_gap(own, bottleneck_speed)
        return gap

    def _replace_first(self) -> None:
        """Give the slots of vehicles past the bottleneck to new vehicles at the end of the queue."""
        first, rows = self.first
        passed = self.position[1 + first, rows] > self.road
        if not passed.any():
            return
        slot, row, number = first[passed], rows[passed], self.num_joined[passed]
        last = (slot - 1) % self.num_slots
        speed = self.speed[1 + last, row]
        rear = self.position[1 + last, row] - self.drivers.length[last, row]
        joining = Drivers(*(column[number - self.joining_from[row], row] for column in self.joining))
        for column, value in zip(self.drivers, joining, strict=True):
            column[slot, row] = value
        gap = _equilibrium_gap(joining, speed)
        free = np.maximum(self.headway[row] * speed - self.drivers.length[last, row] - gap, 0)
        self.position[1 + slot, row] = rear - gap - free * joining.surplus
        self.speed[1 + slot, row] = speed
        self.vehicle[slot, row] = number * len(rows) + row
        self.num_joined[row] += 1


def drive(
    freeways: Sequence[Freeway], num_steps: int, steps_each: int, seed: Sequence[int], before: Traffic | None = None
) -> Iterator[Traffic]:
    """The traffic at each recorded step. It moves on when the next step is requested.

    Args:
        freeways: one for each run, all of the same road.
        num_steps: recorded steps.
        steps_each: steps of the simulation in each recorded step.
        seed: of the drivers, the bottleneck and the noise.
        before: the traffic to continue; by default fresh traffic after a warm-up.
    """
    warm_up, hold = round(_WARM_UP_S / STEP_S) if before is None else 0, round(_NOISE_HELD_S / STEP_S)
    total = warm_up + num_steps * steps_each
    # Even in a standing queue the vehicles reach back to the start of the road.
    num_slots = max(math.ceil(each.road_m / (each.vehicle_length_m + each.standstill_gap_m)) for each in freeways) + 5
    # No flow exceeds one vehicle per time gap.
    num_vehicles = 2 * num_slots + math.ceil(total * STEP_S / min(each.time_gap_s for each in freeways))
    rngs = [np.random.default_rng([*seed, run]).spawn(3) for run in range(len(freeways))]
    drivers = [_draw_drivers(each, num_vehicles, rng[0]) for each, rng in zip(freeways, rngs, strict=True)]
    speeds = [draw_bottleneck(each, total, STEP_S, rng[1]) for each, rng in zip(freeways, rngs, strict=True)]
    joining = Drivers(*(np.concatenate(column, axis=1) for column in zip(*drivers, strict=True)))
    traffic = Traffic(freeways, joining, num_slots) if before is None else before
    if before is not None:
        before.continue_with(joining)
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
