"""Faults of a replay: lost, late, repeated and broken reports."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpfuse.replay.faults import Faults, make_garbage
from dpfuse.wire.keys import Keys
from support.replay import INTERVAL_S, SECRET, play


def test_loss_duplicates_and_garbage_occur_with_their_probabilities(listen):
    """3 sensors, 25 steps, fixed seed."""
    tally, _ = play(listen(interval_s=0.025), 0.6, faults=Faults(loss=0.3, duplicates=0.3, garbage=0.3, seed=1))
    asked = 3 * tally.num_steps
    assert tally.num_steps == 25
    assert tally.num_reports == asked - tally.num_lost + tally.num_doubled
    for number in (tally.num_lost, tally.num_doubled, tally.num_garbage):
        assert 0.05 * asked < number < 0.6 * asked


def test_a_long_delay_makes_reports_late(listen):
    centre = listen()
    play(centre, 0.8, faults=Faults(delay_s=8 * INTERVAL_S))
    late = [report for now, report in centre.reports if report["step"] < now]
    assert len(late) > len(centre.reports) / 3


def test_garbage_can_be_written_as_json_and_is_of_many_kinds():
    report = Keys.from_secret(SECRET).issue(3).sign("main", 5, [1.5, 2.5])
    rng = np.random.default_rng(0)
    kinds = {json.dumps(make_garbage(report, rng)) for _ in range(300)}
    assert len(kinds) > 12 and json.dumps(report) not in kinds


@pytest.mark.parametrize("name", ["loss", "duplicates", "garbage"])
def test_probabilities_and_delay_outside_their_range_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be from 0 to 1, got 1.5"):
        Faults(**{name: 1.5})
    with pytest.raises(ValueError, match="delay_s must be from 0 to 3600"):
        Faults(delay_s=-1)
