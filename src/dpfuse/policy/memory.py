"""What is remembered of each sensor in each stream, wherever it is stored."""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Floats32, Integers
from dpfuse._index import ABSENT, Index
from dpfuse.types import NOBODY

_NEVER = np.iinfo(np.int64).max


class Memory:
    """An array for each sensor and stream. Private: never to be shown.

    A place is storage only: it goes to whoever comes next, and nothing that is computed depends on its number.
    """

    def __init__(self, *shape: int) -> None:
        self._index = Index()
        self._last_step = np.full(self._index.size, _NEVER)
        self._values = np.zeros((self._index.size, *shape), np.float32)

    def find(self, stream: Integers, ids: Integers) -> Integers:
        """The place of each sensor, shape (rows,), `ABSENT` for one that is not remembered."""
        return self._index.find(stream, ids)

    def read(self, places: Integers) -> Floats32:
        """What is stored there, shape (rows, ...); anything for `ABSENT`."""
        return np.asarray(self._values[places])

    def write(self, step: int, stream: Integers, ids: Integers, places: Integers, values: Floats32) -> None:
        """Remember the values; of several rows of one sensor the first counts, and nobody is remembered."""
        places = self._settle(stream, ids, places)
        if (places == ABSENT).any() or np.bincount(places, minlength=1).max() > 1:
            rows = np.flatnonzero(places != ABSENT)[::-1]  # of what is assigned to one place, the last stays
            places, values = places[rows], values[rows]
        self._values[places] = values
        self._last_step[places] = step

    def forget(self, before: int) -> None:
        """Drop what was last written before that step."""
        places = np.flatnonzero(self._last_step < before)
        if len(places):
            self._last_step[places] = _NEVER
            self._index.remove(places)

    def tidy(self) -> None:
        """Make room for more sensors while there is time."""
        self._index.tidy()
        self._fill_room()

    def __repr__(self) -> str:
        return "Memory()"

    def _settle(self, stream: Integers, ids: Integers, places: Integers) -> Integers:
        """The places, with one for each newcomer."""
        new = np.flatnonzero((places == ABSENT) & (ids > NOBODY))
        if not len(new):
            return places
        owners = np.unique(np.stack([stream[new], ids[new]]), axis=1)
        self._index.add(*owners)
        self._fill_room()
        settled = places.copy()
        settled[new] = self._index.find(stream[new], ids[new])
        return settled

    def _fill_room(self) -> None:
        """Something at every place that the index may give."""
        if (room := self._index.size - len(self._last_step)) > 0:
            self._last_step = np.concatenate([self._last_step, np.full(room, _NEVER)])
            more = np.zeros((room, *self._values.shape[1:]), np.float32)
            self._values = np.concatenate([self._values, more])
