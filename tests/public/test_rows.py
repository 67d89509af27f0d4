"""The message that publishes a row: its fields and its width."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.errors import ReleaseRefused
from dpfuse.public.rows import Row, read_row, release_message
from dpfuse.public_inputs import NEVER, pack, unpack
from support.rows import make_row

INT64 = st.integers(-(2**63), 2**63 - 1)
INPUTS = st.lists(
    st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.none()), min_size=2, max_size=2
)
NATURAL = st.integers(0, 2**63 - 1)


@given(NATURAL, st.tuples(INT64, INT64), NATURAL, NATURAL, NATURAL)
def test_every_release_of_a_stream_has_the_same_width_and_holds_the_row(step, release, weight, cost, left):
    row = make_row("main", step, release, weight, cost, left)
    text = release_message(row).content
    assert len(text) == len(release_message(make_row()).content)
    read = json.loads(text)
    assert (read["step"], tuple(read["release"]), read["fusion_weight"]) == (step, release, weight)
    assert (read["cost"], read["budget_left"], read["hash"]) == (cost, left, row.hash.hex())
    assert (read["stream"], read["grid"]) == ("main", 2**20)


def test_in_individual_accounting_cost_and_budget_left_are_null():
    texts = [release_message(make_row(step=step, cost=None, left=None)).content for step in (1, 10**12)]
    assert len(set(map(len, texts))) == 1
    assert json.loads(texts[0])["cost"] is None and json.loads(texts[0])["budget_left"] is None


def test_without_padding_the_widths_would_differ():
    """Negative control."""
    assert len({len(release_message(make_row(step=step)).content.rstrip()) for step in (1, 10)}) == 2


def with_inputs(values, ages, previous=bytes(32)):
    numbers = [np.nan if value is None else value for value in values]
    return Row.after(previous, "main", 7, bytes(8), 5, None, None, "0" * 16, 3, pack([*numbers, *ages]))


@given(INPUTS, st.integers(0, NEVER), st.integers(0, NEVER))
def test_public_inputs_come_back_from_a_message_bit_for_bit_at_one_width(values, first, second):
    ages = [NEVER if value is None else age for value, age in zip(values, (first, second), strict=True)]
    row = with_inputs(values, ages)
    text = release_message(row, bytes(64)).content
    assert len(text) == len(release_message(with_inputs([0.0, 0.0], [0, 0]), bytes(64)).content)
    read = read_row(json.loads(text), 1, None, 2)
    assert read == row and read.inputs == row.inputs
    expected = np.array([np.nan if value is None else value for value in values] + ages, np.float32)
    assert unpack(read.inputs).tobytes() == expected.tobytes()


def test_the_longest_float32_fits_the_width():
    largest = float(np.finfo(np.float32).max)
    extremes = [-1.1754943508222875e-38, -1.401298464324817e-45, -largest, -9.999999747378752e-05, -0.10000000149011612]
    for value in extremes:
        text = release_message(with_inputs([value, value], [NEVER, NEVER])).content
        assert len(text) == len(release_message(with_inputs([0.0, 0.0], [0, 0])).content)


@given(st.integers(0, 8 * 12 - 1))
def test_every_bit_of_the_public_inputs_is_in_the_hash(bit):
    row = with_inputs([1.5, -2.0], [0, 9])
    changed = bytearray(row.inputs)
    changed[bit // 8] ^= 1 << bit % 8
    assert Row.after(bytes(32), *row[:-2], bytes(changed)).hash != row.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": [1.0]}, "inputs and input_ages must have 2 entries each"),
        ({"inputs": None}, "inputs and input_ages must have 2 entries each"),
        ({"input_ages": [0, 1, 2]}, "inputs and input_ages must have 2 entries each"),
        ({"inputs": [1.0, 0.1]}, "inputs must be finite numbers of 32 bits, or null"),
        ({"inputs": [1.0, float("inf")]}, "inputs must be finite numbers of 32 bits"),
        ({"inputs": [1.0, 1e300]}, "inputs must be finite numbers of 32 bits"),
        ({"inputs": [1.0, True]}, "inputs must be finite numbers of 32 bits"),
        ({"inputs": [1.0, "x"]}, "inputs must be finite numbers of 32 bits"),
        ({"input_ages": [0, NEVER + 1]}, "input_ages must be whole numbers from 0 to 65535"),
        ({"input_ages": [0, 1.0]}, "input_ages must be whole numbers"),
        ({"inputs": [1.0, None]}, "input_ages must be 65535 for an input that is null"),
    ],
)
def test_malformed_public_inputs_are_refused(change, message):
    release = with_inputs([1.5, -2.0], [0, 9]).to_dict()
    assert read_row(release, 1, None, 2).to_dict() == release
    with pytest.raises(ReleaseRefused, match=message):
        read_row(release | change, 1, None, 2)
    with pytest.raises(ReleaseRefused, match="must have 0 entries each"):
        read_row(release, 1, None)
