"""Keyed arrays against a dictionary, and the memory of sensors that is built on them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse._keyed_arrays import ABSENT, KeyedArrays
from dpfuse.policy.memory import Memory
from dpfuse.trajectories import NOBODY

LARGEST = 2**63 - 1
keys = st.tuples(
    st.sampled_from([0, 1, 2, 999]), st.one_of(st.integers(0, 30), st.sampled_from([2**32, 2**62, LARGEST]))
)
steps = st.lists(st.tuples(st.lists(keys, max_size=60), st.sets(keys, max_size=20)), max_size=8)


def halves(pairs):
    return np.array(list(pairs), np.int64).reshape(-1, 2).T.copy()


@given(steps=steps)
def test_each_key_keeps_its_row_and_its_values_until_it_is_removed(steps):
    keyed, rows, values = KeyedArrays(value=np.int64(-7), pair=np.zeros(2, np.float32)), {}, {}
    for number, (wanted, gone) in enumerate(steps):
        assert keyed.find(*halves(wanted)).tolist() == [rows.get(key, ABSENT) for key in wanted]
        new = [key for key in dict.fromkeys(wanted) if key not in rows]
        added = keyed.add(*halves(new)).tolist()
        assert not set(added) & set(rows.values()) and len(set(added)) == len(added)
        assert all(0 <= row < keyed.capacity for row in added)
        assert keyed["value"][added].tolist() == [-7] * len(added) and not keyed["pair"][added].any()
        rows.update(zip(new, added, strict=True))
        values.update(dict.fromkeys(new, number))
        keyed["value"][added], keyed["pair"][added] = number, number
        keyed.remove(np.array([rows.pop(key) for key in gone if key in rows], np.int64))
        keyed.grow()
        found = zip(*(part.tolist() for part in keyed.keys()), strict=True)
        assert {(first, second): row for row, first, second in found} == rows and len(keyed) == len(rows)
        assert all(keyed["value"][row] == values[key] == keyed["pair"][row, 1] for key, row in rows.items())


@given(steps=steps)
def test_find_or_add_adds_each_missing_key_once_in_ascending_order(steps):
    keyed, plain = KeyedArrays(), KeyedArrays()
    for wanted, _ in steps:
        missing = sorted(set(wanted) - {key for key in wanted if plain.find(*halves([key]))[0] != ABSENT})
        plain.add(*halves(missing))
        assert keyed.find_or_add(*halves(wanted)).tolist() == plain.find(*halves(wanted)).tolist()


@pytest.mark.parametrize("stride", [1, 2**32, 3 * 2**40])
def test_rows_of_removed_keys_are_used_again(stride):
    """Keys with a pattern, of which half are removed at every turn."""
    keyed, stored = KeyedArrays(), np.zeros(0, np.int64)
    for turn in range(20):
        new = (np.arange(500) + 500 * turn) * stride
        keyed.add(np.zeros_like(new), new)
        stored = np.concatenate([stored, new])
        keyed.remove(keyed.find(np.zeros_like(stored), stored)[::2])
        stored = stored[1::2]
        rows = keyed.find(np.zeros_like(stored), stored)
        assert len(set(rows.tolist())) == len(stored) and rows.min() >= 0
    assert keyed.capacity < 4096  # 10,000 keys were added in all


@pytest.mark.parametrize("num_keys", range(500, 2100, 50))
def test_after_grow_an_eighth_more_keys_fit(num_keys):
    """Without `grow` the table is built anew for some of these numbers of keys."""
    keyed, new = KeyedArrays(), np.arange(10_000)
    for key in new[:num_keys]:
        keyed.add(np.zeros(1, np.int64), key[None])
    keyed.grow()
    capacity, table = keyed.capacity, keyed._slots
    more = new[num_keys : num_keys + capacity // 8]
    keyed.add(np.zeros_like(more), more)
    assert keyed.capacity == capacity and keyed._slots is table


@pytest.mark.parametrize("bits", range(63))
def test_keys_with_a_pattern_are_found_in_few_turns(bits):
    """Ids that are a power of two apart, or three times that: each is close to the slot where its search begins."""
    for stride in (2**bits, 3 * 2**bits):
        keyed = KeyedArrays()
        second = np.arange(min(3000, LARGEST // stride + 1)) * np.int64(stride if stride < LARGEST else 0)
        rows = keyed.add(np.zeros_like(second), second)
        first_slot = keyed._first_slot(np.zeros_like(second), second)
        slot = np.argsort(keyed._slots, kind="stable")[-len(second) :][rows]
        assert (keyed._slots[slot] == rows).all()
        assert ((slot - first_slot) % len(keyed._slots)).max() < 16


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


def test_a_row_that_is_used_again_holds_the_initial_values():
    arrays = KeyedArrays(spent=np.int64(0))
    ids = np.arange(arrays.capacity)
    rows = arrays.find_or_add(np.zeros_like(ids), ids)
    arrays["spent"][rows] = 7
    arrays.remove(rows)
    again = arrays.find_or_add(np.ones_like(ids), ids)
    assert set(again.tolist()) & set(rows.tolist())
    assert (arrays["spent"][again] == 0).all()
