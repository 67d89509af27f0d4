"""What is remembered of each sensor in each stream, wherever it is stored."""

from __future__ import annotations

from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from dpfuse.types import NOBODY

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]

NOWHERE = -1
"""The place of a sensor that is not remembered."""


class Memory:
    """An array for each sensor and stream. Private: never to be shown.

    A place is storage only: it goes to whoever comes next, and nothing that is computed depends on its number.
    """

    def __init__(self, *shape: int) -> None:
        self._place_of: dict[tuple[int, int], int] = {}
        self._owners: list[tuple[int, int]] = []
        self._free: list[int] = []
        self._last_step = np.zeros(0, np.int64)
        self._values = np.zeros((1, *shape), np.float32)

    def find(self, stream: Integers, ids: Integers) -> Integers:
        """The place of each sensor, shape (rows,), or `NOWHERE`."""
        owners = zip(stream.tolist(), ids.tolist(), strict=True)
        return np.fromiter(map(self._place_of.get, owners, repeat(NOWHERE)), np.int64, len(ids))

    def read(self, places: Integers) -> Floats:
        """What is stored there, shape (rows, ...); anything for `NOWHERE`."""
        return np.asarray(self._values[places])

    def write(self, step: int, stream: Integers, ids: Integers, places: Integers, values: Floats) -> None:
        """Remember the values; of several rows of one sensor the first counts, and nobody is remembered."""
        owned = places.copy()
        for row in np.flatnonzero((places == NOWHERE) & (ids > NOBODY)).tolist():
            owned[row] = self._place_for((int(stream[row]), int(ids[row])))
        rows = np.flatnonzero(owned != NOWHERE)[::-1]  # of what is assigned to one place, the last stays
        self._values[owned[rows]] = values[rows]
        self._last_step[owned[rows]] = step

    def forget(self, before: int) -> None:
        """Drop what was last written before that step."""
        for place in np.flatnonzero(self._last_step[: len(self._owners)] < before).tolist():
            self._last_step[place] = np.iinfo(np.int64).max  # free: nothing to drop
            self._free.append(place)
            del self._place_of[self._owners[place]]

    def __len__(self) -> int:
        return len(self._place_of)

    def __repr__(self) -> str:
        return "Memory()"

    def _place_for(self, owner: tuple[int, int]) -> int:
        if (place := self._place_of.get(owner)) is not None:
            return place  # an earlier row of the same sensor
        if self._free:
            place = self._free.pop()
            self._owners[place] = owner
        else:
            place = len(self._owners)
            self._owners.append(owner)
            if place >= len(self._last_step):
                self._grow()
        self._place_of[owner] = place
        return place

    def _grow(self) -> None:
        """Twice as many places, so that growing costs little in all."""
        size = max(64, 2 * len(self._last_step))
        self._last_step, last_step = np.zeros(size, np.int64), self._last_step
        self._values, values = np.zeros((size, *self._values.shape[1:]), np.float32), self._values
        self._last_step[: len(last_step)], self._values[: len(values)] = last_step, values
