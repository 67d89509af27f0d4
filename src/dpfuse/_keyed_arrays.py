"""Arrays with one row for each key, for tens of thousands of keys in one call.

A Python dictionary takes a cache miss or two for each key. `KeyedArrays` looks up all keys together, in a hash table
with linear probing: each turn of its loop moves the keys that are not found yet to the next slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfuse._arrays import Booleans, Integers

ABSENT = -1
"""The row of a key that is not stored."""

_FIRST_CAPACITY = 64  # rows; a power of two, and doubled when more are needed
_SLOTS_PER_ROW = 2  # a table that is at most half full needs few turns
# Odd 64-bit numbers without a pattern, one for each half of a key.
_FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def hash_keys(second: Integers, num_bits: int, first: Integers | None = None) -> Integers:
    """A pseudo-random slot below 2^num_bits for each key, shape (n,); a key is (first, second), or `second` alone."""
    mixed = second.view(np.uint64) * _FACTORS[0]
    if first is not None:
        mixed += first.view(np.uint64) * _FACTORS[1]
    # Every bit of a key reaches the highest bits, so keys that are a power of two apart get different slots.
    mixed >>= np.uint64(64 - num_bits)
    return mixed.view(np.int64)


class KeyedArrays:
    """Named arrays with one row for each key. A key is a pair of int64, of which the second is 0 or more.

        spent = KeyedArrays(spent=np.int64(0))
        rows = spent.find_or_add(stream, sensors)
        spent["spent"][rows] += costs

    A new key has the next free row. It keeps that row until it is removed; later another key may have the row.
    Take an array anew after each call that adds keys, as the arrays are replaced when they grow.

    Args:
        initial: the name of each array, and what a row holds before it is written to, with dtype and shape.
    """

    def __init__(self, **initial: ArrayLike) -> None:
        self._initial = {name: np.asarray(value) for name, value in initial.items()}
        self._arrays = {name: _filled(_FIRST_CAPACITY, value) for name, value in self._initial.items()}
        self._slots = np.full(_SLOTS_PER_ROW * _FIRST_CAPACITY, ABSENT)  # the row that each slot points to
        self._keys = np.full((2, _FIRST_CAPACITY), -1)  # of each row; (-1, -1) where there is none
        self._free = np.arange(_FIRST_CAPACITY)  # rows that were never used since the table was built

    @property
    def capacity(self) -> int:
        """The length of the arrays."""
        return self._keys.shape[1]

    def __len__(self) -> int:
        """The number of keys."""
        return int(np.count_nonzero(self._keys[1] >= 0))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def find(self, first: Integers, second: Integers) -> Integers:
        """The row of each key, shape (n,); `ABSENT` for a key that is not stored."""
        slot = self._first_slot(first, second)
        found = self._slots[slot]
        further = self._is_other(found, first, second)
        pending = np.flatnonzero(further)
        while len(pending):
            first, second, slot = first[further], second[further], (slot[further] + 1) & (len(self._slots) - 1)
            row = self._slots[slot]
            found[pending] = row
            further = self._is_other(row, first, second)
            pending = pending[further]
        return found

    def _is_other(self, row: Integers, first: Integers, second: Integers) -> Booleans:
        """Whether the slot holds the row of another key."""
        is_other: Booleans = self._keys[1].take(row, mode="wrap") != second
        is_other |= self._keys[0].take(row, mode="wrap") != first
        is_other &= row != ABSENT
        return is_other

    def add(self, first: Integers, second: Integers) -> Integers:
        """The rows of new keys, shape (n,). The keys must differ, and none may be stored."""
        if len(second) > len(self._free):
            self._rebuild(len(second))
        rows, self._free = self._free[: len(second)], self._free[len(second) :]
        self._keys[:, rows] = first, second
        self._enter(rows)
        return rows

    def find_or_add(self, first: Integers, second: Integers) -> Integers:
        """The row of each key, shape (n,). Keys that are not stored are added in ascending order."""
        rows = self.find(first, second)
        new = np.flatnonzero(rows == ABSENT)
        if len(new):
            new = new[np.lexsort((second[new], first[new]))]
            keys = np.stack([first[new], second[new]])
            is_first = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(0))  # of several equal keys
            rows[new] = self.add(*keys[:, is_first])[np.cumsum(is_first) - 1]
        return rows

    def remove(self, rows: Integers) -> None:
        """Remove the keys of these rows, and reset the rows."""
        self._keys[:, rows] = -1
        for name, value in self._initial.items():
            self._arrays[name][rows] = value

    def grow(self) -> None:
        """Make room now if an eighth more keys would not fit, so that a later `add` is quick."""
        if len(self._free) < (wanted := self.capacity // 8):
            self._rebuild(wanted)

    def keys(self) -> tuple[Integers, Integers, Integers]:
        """The rows in use, in ascending order, and both halves of their keys."""
        rows = np.flatnonzero(self._keys[1] >= 0)
        return rows, self._keys[0][rows], self._keys[1][rows]

    def _first_slot(self, first: Integers, second: Integers) -> Integers:
        return hash_keys(second, len(self._slots).bit_length() - 1, first)

    def _enter(self, rows: Integers) -> None:
        """Store the rows in the table."""
        slot = self._first_slot(*self._keys[:, rows])
        while len(rows):
            is_empty = self._slots[slot] == ABSENT
            self._slots[slot[is_empty]] = rows[is_empty]  # of several rows for one slot the last one stays
            further = self._slots[slot] != rows
            rows, slot = rows[further], (slot[further] + 1) & (len(self._slots) - 1)

    def _rebuild(self, num_more: int) -> None:
        """Free the rows that were removed, and double the capacity until at least as many more keys fit."""
        used, _, _ = self.keys()
        capacity = self.capacity
        while 2 * (len(used) + num_more) > capacity:
            capacity *= 2
        if (added := capacity - self.capacity) > 0:
            self._keys = np.concatenate([self._keys, np.full((2, added), -1)], axis=1)
            for name, value in self._initial.items():
                self._arrays[name] = np.concatenate([self._arrays[name], _filled(added, value)])
        self._slots = np.full(_SLOTS_PER_ROW * capacity, ABSENT)
        self._enter(used)
        self._free = np.flatnonzero(self._keys[1] < 0)


def _filled(num_rows: int, value: NDArray[Any]) -> NDArray[Any]:
    return np.full((num_rows, *value.shape), value, value.dtype)
