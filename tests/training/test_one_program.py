"""Designs that can share a program do: how many there are adds no compilation."""

from __future__ import annotations

from dataclasses import replace

import pytest

import dpfuse
from support.designs import BRIEF, SMALL, make_guarantee

FEW = {
    "architecture": SMALL,
    "spending": "constant",
    "optimisation": replace(BRIEF, num_updates=2, validate_every=1, num_starts=1),
}


@pytest.mark.slow
def test_forty_designs_that_can_share_a_program_are_traced_about_as_often_as_two(walks, num_traces):
    def count_traces(budgets, seeds):
        before = num_traces()
        guarantees = [make_guarantee(budget=budget) for budget in budgets]
        made = dpfuse.train_many(*walks[:2], guarantees, seeds=seeds, **FEW)
        assert len(made) == len(budgets) * len(seeds)
        return num_traces() - before

    # Small functions of other tests may be traced already. A program for each design would be twenty times as many.
    few = count_traces([0.5, 1.5], [0])
    assert 0 < count_traces([0.15, 0.5, 1.5, 5.0], range(10)) < 2 * few
