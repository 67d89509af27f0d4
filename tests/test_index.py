"""The dictionary in arrays, against a dictionary; and what is remembered, against one too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse._index import ABSENT, Index
from dpfuse.policy.memory import Memory
from dpfuse.types import NOBODY

LARGEST = 2**63 - 1
keys = st.tuples(
    st.sampled_from([0, 1, 2, 999]), st.one_of(st.integers(0, 30), st.sampled_from([2**32, 2**62, LARGEST]))
)
steps = st.lists(st.tuples(st.lists(keys, max_size=60), st.sets(keys, max_size=20)), max_size=8)


def halves(pairs):
    return np.array(list(pairs), np.int64).reshape(-1, 2).T.copy()


@given(steps=steps)
def test_numbers_stay_with_their_keys(steps):
    index, model = Index(), {}
    for wanted, gone in steps:
        assert index.find(*halves(wanted)).tolist() == [model.get(key, ABSENT) for key in wanted]
        new = [key for key in dict.fromkeys(wanted) if key not in model]
        numbers = index.add(*halves(new)).tolist()
        assert not set(numbers) & set(model.values()) and len(set(numbers)) == len(numbers)
        assert all(0 <= number < index.size for number in numbers)
        model.update(zip(new, numbers, strict=True))
        index.remove(np.array([model.pop(key) for key in gone if key in model], np.int64))
        index.tidy()
        found = zip(*(part.tolist() for part in index.keys()), strict=True)
        assert {(first, second): number for number, first, second in found} == model


@pytest.mark.parametrize("stride", [1, 2**32, 3 * 2**40])
def test_it_grows_and_clears_away_what_is_gone(stride):
    """Keys with a pattern, of which half leave at every turn."""
    index, alive = Index(), np.zeros(0, np.int64)
    for turn in range(20):
        new = (np.arange(500) + 500 * turn) * stride
        index.add(np.zeros_like(new), new)
        alive = np.concatenate([alive, new])
        index.remove(index.find(np.zeros_like(alive), alive)[::2])
        alive = alive[1::2]
        numbers = index.find(np.zeros_like(alive), alive)
        assert len(set(numbers.tolist())) == len(alive) and numbers.min() >= 0
    assert index.size < 4096  # and not 10,000: room is used again


@pytest.mark.parametrize("num_keys", range(500, 2100, 50))
def test_room_that_was_made_ahead_is_there(num_keys):
    """After `tidy` an eighth more fits as it is; without it, not for all of these numbers of keys."""
    index, new = Index(), np.arange(10_000)
    for key in new[:num_keys]:
        index.add(np.zeros(1, np.int64), key[None])
    index.tidy()
    size, stored = index.size, index._places
    more = new[num_keys : num_keys + size // 8]
    index.add(np.zeros_like(more), more)
    assert index.size == size and index._places is stored


@pytest.mark.parametrize("bits", range(63))
def test_keys_with_a_pattern_are_found_in_few_turns(bits):
    """Ids that are a power of two apart, or three times that: the farthest from the place where its search begins."""
    for stride in (2**bits, 3 * 2**bits):
        index = Index()
        second = np.arange(min(3000, LARGEST // stride + 1)) * np.int64(stride if stride < LARGEST else 0)
        numbers = index.add(np.zeros_like(second), second)
        home = index._home(np.zeros_like(second), second)
        place = np.argsort(index._places, kind="stable")[-len(second) :][numbers]
        assert (index._places[place] == numbers).all()
        assert ((place - home) % len(index._places)).max() < 16


class TestMemory:
    def write(self, memory, step, owners, value):
        stream, ids = halves(owners)
        values = np.full((len(ids), 1), value, np.float32)
        memory.write(step, stream, ids, memory.find(stream, ids), values)

    def read(self, memory, owner):
        places = memory.find(*halves([owner]))
        return None if places[0] == ABSENT else float(memory.read(places)[0, 0])

    def test_what_was_written_is_read_until_it_is_forgotten(self):
        memory = Memory(1)
        self.write(memory, 1, [(0, 5), (1, 5), (0, NOBODY)], 1.5)
        self.write(memory, 2, [(1, 5), (2, 9)], 2.5)
        assert [self.read(memory, owner) for owner in [(0, 5), (1, 5), (2, 9), (2, 5)]] == [1.5, 2.5, 2.5, None]
        memory.forget(before=2)
        assert [self.read(memory, owner) for owner in [(0, 5), (1, 5)]] == [None, 2.5]
        assert repr(memory) == "Memory()"

    def test_the_first_row_of_a_sensor_counts(self):
        memory, owners = Memory(1), halves([(0, 5), (0, 6), (0, 5)])
        for _ in range(2):  # as a newcomer, and known
            memory.write(1, *owners, memory.find(*owners), np.array([[1], [2], [3]], np.float32))
            assert self.read(memory, (0, 5)) == 1
