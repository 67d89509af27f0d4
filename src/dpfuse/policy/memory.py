"""What the centre remembers of each sensor in each stream."""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Floats32, Integers
from dpfuse._keyed_arrays import ABSENT, KeyedArrays
from dpfuse.trajectories import NOBODY

_NEVER = np.iinfo(np.int64).max


class Memory:
    """One array for each sensor and stream. Private: never shown.

    Args:
        shape: of the array of one sensor.
    """

    def __init__(self, *shape: int) -> None:
        self._sensors = KeyedArrays(last_step=np.int64(_NEVER), values=np.zeros(shape, np.float32))

    def find(self, stream: Integers, ids: Integers) -> Integers:
        """Where each sensor is stored, shape (rows,); `ABSENT` for one that is not."""
        return self._sensors.find(stream, ids)

    def read(self, places: Integers) -> Floats32:
        """The arrays stored at these places, shape (rows, ...); what is read for `ABSENT` has no meaning."""
        return np.asarray(self._sensors["values"][places])

    def write(self, step: int, stream: Integers, ids: Integers, places: Integers, values: Floats32) -> None:
        """Store the values of each sensor. The first row of a sensor counts; rows of `NOBODY` are left out.

        Args:
            places: what `find` returned, shape (rows,).
        """
        is_new = (places == ABSENT) & (ids > NOBODY)
        if is_new.any():
            places = places.copy()
            places[is_new] = self._sensors.find_or_add(stream[is_new], ids[is_new])
        if (places == ABSENT).any() or np.bincount(places, minlength=1).max() > 1:
            rows = np.flatnonzero(places != ABSENT)[::-1]  # of several values for one place the last one stays
            places, values = places[rows], values[rows]
        self._sensors["values"][places] = values
        self._sensors["last_step"][places] = step

    def forget(self, before: int) -> None:
        """Remove the sensors that were last written before that step."""
        places = np.flatnonzero(self._sensors["last_step"] < before)
        if len(places):
            self._sensors.remove(places)

    def grow(self) -> None:
        """Make room for more sensors now, so that a later step need not."""
        self._sensors.grow()

    def __repr__(self) -> str:
        return "Memory()"
