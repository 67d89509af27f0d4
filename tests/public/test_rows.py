"""The message that publishes a row: its fields and its width."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from dpfuse.public.rows import release_message
from support.rows import make_row

INT64 = st.integers(-(2**63), 2**63 - 1)
NATURAL = st.integers(0, 2**63 - 1)


@given(NATURAL, st.tuples(INT64, INT64), NATURAL, NATURAL, NATURAL)
def test_every_release_of_a_stream_has_the_same_width_and_holds_the_row(step, release, weight, cost, left):
    row = make_row("main", step, release, weight, cost, left)
    text = release_message(row)
    assert len(text) == len(release_message(make_row()))
    read = json.loads(text)
    assert (read["step"], tuple(read["release"]), read["fusion_weight"]) == (step, release, weight)
    assert (read["cost"], read["budget_left"], read["hash"]) == (cost, left, row.hash.hex())
    assert (read["stream"], read["grid"]) == ("main", 2**20)


def test_in_individual_accounting_cost_and_budget_left_are_null():
    texts = [release_message(make_row(step=step, cost=None, left=None)) for step in (1, 10**12)]
    assert len(set(map(len, texts))) == 1
    assert json.loads(texts[0])["cost"] is None and json.loads(texts[0])["budget_left"] is None


def test_without_padding_the_widths_would_differ():
    """Negative control."""
    assert len({len(release_message(make_row(step=step)).rstrip()) for step in (1, 10)}) == 2
