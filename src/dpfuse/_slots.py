"""Slots for sensors that come and go."""

from __future__ import annotations

import heapq

import numpy as np

from dpfuse._arrays import Booleans, Floats, Floats32, Integers

_NOBODY = -1


def assign_slots(entered: Integers, stay: Integers) -> Integers:
    """The lowest slot that is free for `stay` steps from step `entered` on, for each sensor."""
    slots = np.empty(len(entered), np.int64)
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    for sensor in np.argsort(entered, kind="stable"):
        now = int(entered[sensor])
        while taken and taken[0][0] <= now:
            heapq.heappush(free, heapq.heappop(taken)[1])
        slots[sensor] = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (now + int(stay[sensor]), int(slots[sensor])))
    return slots


def in_slots(
    step: Integers, sensor: Integers, values: Floats32 | Floats, num_steps: int
) -> tuple[Floats32, Booleans, Integers]:
    """Measurements, presence and ids by step and slot. From its first to its last step a sensor keeps its slot."""
    ids, which = np.unique(sensor, return_inverse=True)
    entered, left = np.full(len(ids), num_steps), np.zeros(len(ids), np.int64)
    np.minimum.at(entered, which, step)
    np.maximum.at(left, which, step + 1)
    slot = assign_slots(entered, left - entered)
    shape = num_steps, int(slot.max(initial=0)) + 1
    measurements = np.zeros((*shape, values.shape[1]), np.float32)
    measurements[step, slot[which]] = values
    present = np.zeros(shape, bool)
    present[step, slot[which]] = True
    sensors = np.full(shape, _NOBODY)
    for each, first, last, number in zip(slot, entered, left, ids, strict=True):
        sensors[first:last, each] = number
    return measurements, present, sensors


def pack_stays(sensors: Integers) -> Integers:
    """The lowest free slot for each stay of a sensor, shape (K, m), -1 where the slot is empty."""
    arrived = np.ones(sensors.shape, bool)
    arrived[1:] = sensors[1:] != sensors[:-1]
    stays = []
    for slot in range(sensors.shape[1]):
        bounds = np.append(np.nonzero(arrived[:, slot])[0], len(sensors))
        stays += [(a, b, slot) for a, b in zip(bounds, bounds[1:], strict=False) if sensors[a, slot] != _NOBODY]
    stays.sort()
    starts, stops, _ = np.array(stays, np.int64).reshape(-1, 3).T
    slots = np.full(sensors.shape, -1)
    for (start, stop, slot), new in zip(stays, assign_slots(starts, stops - starts), strict=True):
        slots[start:stop, slot] = new
    return slots
