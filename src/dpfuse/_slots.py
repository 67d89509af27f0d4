"""Slots for sensors that come and go."""

from __future__ import annotations

import heapq

import numpy as np

from dpfuse._arrays import Integers


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
