"""Sensors that come and go, in as few slots as hold them."""

from __future__ import annotations

import heapq

import numpy as np

from dpfuse._arrays import Integers


def assign_slots(entered: Integers, stay: Integers) -> Integers:
    """For each vehicle the lowest slot that is free for `stay` steps from the one at which it entered."""
    slots = np.empty(len(entered), np.int64)
    free: list[int] = []
    taken: list[tuple[int, int]] = []
    for vehicle in np.argsort(entered, kind="stable"):
        now = int(entered[vehicle])
        while taken and taken[0][0] <= now:
            heapq.heappush(free, heapq.heappop(taken)[1])
        slots[vehicle] = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (now + int(stay[vehicle]), int(slots[vehicle])))
    return slots
