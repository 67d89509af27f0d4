"""The rows of a file: one for each vehicle and time, in SI units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Booleans, Floats32, Integers

TICK_MS = 100

# Within a period the frames follow the clock. The starts of two periods of a site differ by 10 seconds or more.
_SAME_PERIOD_MS = 1000


class Rows(NamedTuple):
    """Columns of equal length, 25 bytes a row."""

    vehicle: NDArray[np.int32]
    frame: NDArray[np.int32]  # in tenths of a second, from the start of the period
    time_ms: Integers  # since 1970
    lane: NDArray[np.int8]
    position: Floats32  # of the front, in m from the start of the recorded stretch
    speed: Floats32  # m/s

    def take(self, index: Integers | Booleans) -> Rows:
        """The rows with these indices, or where the mask is true."""
        return Rows._make(column[index] for column in self)


def concatenate(parts: list[Rows]) -> Rows:
    """All rows, in this order."""
    return Rows._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def periods_of(rows: Rows) -> list[Rows]:
    """The rows of each period. In each period the numbers of vehicles start again, and frame 0 has another time."""
    starts = rows.time_ms - TICK_MS * rows.frame.astype(np.int64)
    known = np.unique(starts)
    cuts = known[1:][np.diff(known) > _SAME_PERIOD_MS]
    if not len(cuts):
        return [rows]
    number = np.searchsorted(cuts, starts, side="right")
    return [rows.take(number == each) for each in range(len(cuts) + 1)]
