"""What each sensor is charged for a commit, as it is stored beside the commit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Integers

_STORED = np.dtype("<i8")


class Debits(NamedTuple):
    """What each sensor is charged. Private; no message shows it.

    Attributes:
        sensors: ids in ascending order, each once, shape (m,).
        costs: in squared grid steps, above 0, shape (m,).
    """

    sensors: Integers
    costs: Integers

    @classmethod
    def from_bytes(cls, sensors: bytes, costs: bytes) -> Debits:
        """The inverse of `to_bytes`; a ValueError for anything else."""
        debits = cls(*(np.frombuffer(part, _STORED).astype(np.int64) for part in (sensors, costs)))
        is_ascending = (debits.sensors >= 0).all() and (np.diff(debits.sensors) > 0).all()
        if debits.sensors.shape != debits.costs.shape or not is_ascending or not (debits.costs > 0).all():
            raise ValueError("sensors and costs must be debits as `to_bytes` writes them; these bytes are damaged")
        return debits

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Sensors and costs, 8 bytes each, little-endian."""
        sensors, costs = (part.astype(_STORED, copy=False).tobytes() for part in self)
        return sensors, costs

    @property
    def total(self) -> int:
        """The exact sum of the costs."""
        return exact_sum(self.costs)


def exact_sum(amounts: Integers) -> int:
    """The exact sum. numpy's sum wraps for large amounts, so the high and the low bits are added separately."""
    return (int((amounts >> 31).sum()) << 31) + int((amounts & (2**31 - 1)).sum())


NO_DEBITS = Debits(np.zeros(0, np.int64), np.zeros(0, np.int64))
