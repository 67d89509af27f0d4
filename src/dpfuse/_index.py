"""A dictionary in arrays: numbers for pairs of integers, for tens of thousands of them at once.

A Python dictionary of that size takes a cache miss or two for every key. Here all keys are looked for together, with
open addressing and linear probing: each turn of the loop takes those that are not settled one place further.
"""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Integers

ABSENT = -1
"""The number of a key that is not there."""

_FEWEST_PLACES = 128  # a power of two, and so is what it is doubled to
# Odd numbers of 64 bits without a pattern, one for either half of a key.
_FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


def spread(second: Integers, num_bits: int, first: Integers | None = None) -> Integers:
    """A place for each key, or each `second` alone, below 2^num_bits: as if drawn at random, always the same."""
    mixed = second.view(np.uint64) * _FACTORS[0]
    if first is not None:
        mixed += first.view(np.uint64) * _FACTORS[1]
    # The highest bits: every bit of a key reaches them, so that keys a power of two apart do not meet.
    mixed >>= np.uint64(64 - num_bits)
    return mixed.view(np.int64)


class Index:
    """Keys, pairs of int64 of which the second is not negative, and their numbers: 0, 1, 2, ... as they come.

    A number stays with its key until it is removed, and then goes to another.
    """

    def __init__(self) -> None:
        self._places = np.full(_FEWEST_PLACES, ABSENT)  # the number that is stored at each place
        self._keys = np.full((2, _FEWEST_PLACES // 2), -1)  # of each number; (-1, -1) for one that was removed
        self._free = np.arange(_FEWEST_PLACES // 2)  # all others

    @property
    def size(self) -> int:
        """Every number is below this: how long an array is that holds something for each."""
        return self._keys.shape[1]

    def find(self, first: Integers, second: Integers) -> Integers:
        """The number of each key, shape (n,), `ABSENT` for one that is not there."""
        found = np.full(len(second), ABSENT)
        seeking, place = np.arange(len(second)), self._home(first, second)
        while len(seeking):
            number = self._places[place]
            is_own = (self._keys[0][number] == first) & (self._keys[1][number] == second) & (number != ABSENT)
            found[seeking[is_own]] = number[is_own]
            further = ~is_own & (number != ABSENT)  # at an empty place the search is over
            seeking, first, second = seeking[further], first[further], second[further]
            place = (place[further] + 1) & (len(self._places) - 1)
        return found

    def add(self, first: Integers, second: Integers) -> Integers:
        """Numbers for keys that are not there, each of them once, shape (n,)."""
        if len(second) > len(self._free):
            self._make_room(len(second))
        numbers, self._free = self._free[: len(second)], self._free[len(second) :]
        self._keys[:, numbers] = first, second
        self._store(numbers)
        return numbers

    def remove(self, numbers: Integers) -> None:
        """Forget the keys with these numbers."""
        self._keys[:, numbers] = -1

    def tidy(self) -> None:
        """Make room now if little is left, so that `add` need not at a worse moment."""
        if len(self._free) < (wanted := self.size // 8):
            self._make_room(wanted)

    def keys(self) -> tuple[Integers, Integers, Integers]:
        """The numbers in use, and both halves of their keys."""
        numbers = np.flatnonzero(self._keys[1] >= 0)
        return numbers, self._keys[0][numbers], self._keys[1][numbers]

    def _home(self, first: Integers, second: Integers) -> Integers:
        """Where the search for a key begins."""
        return spread(second, len(self._places).bit_length() - 1, first)

    def _store(self, numbers: Integers) -> None:
        place = self._home(*self._keys[:, numbers])
        while len(numbers):
            is_free = self._places[place] == ABSENT
            self._places[place[is_free]] = numbers[is_free]  # of several at one place one stays
            further = self._places[place] != numbers
            numbers, place = numbers[further], (place[further] + 1) & (len(self._places) - 1)

    def _make_room(self, num_keys: int) -> None:
        """Clear away what was removed, in twice the room if there is little to clear away."""
        used, _, _ = self.keys()
        size = self.size
        while 2 * (len(used) + num_keys) > size:
            size *= 2
        keys, self._keys = self._keys, np.full((2, size), -1)
        self._keys[:, : keys.shape[1]] = keys
        self._places = np.full(2 * size, ABSENT)
        self._store(used)
        self._free = np.flatnonzero(self._keys[1] < 0)
