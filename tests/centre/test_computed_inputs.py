"""Public inputs that a centre computes: constants, and the time of day and of week."""

from __future__ import annotations

import numpy as np
import pytest

from dpfuse.centre.computed_inputs import CLOCK, ComputedInputs
from dpfuse.public_inputs import clock_inputs
from support.designs import make_design

MONDAY_S = 4 * 86_400.0  # 5 January 1970


@pytest.fixture(scope="module")
def design():
    plain = make_design(num_public=6)
    return plain.with_labels(public=["rain [mm]", "count", *CLOCK])


def test_the_time_is_that_of_recordings(design):
    computed = ComputedInputs(design, {name: name for name in CLOCK})
    recorded = clock_inputs(MONDAY_S, 50, 7321.0)[0]
    live = np.stack([computed.at(MONDAY_S + 7321.0 * step) for step in range(50)])
    np.testing.assert_array_equal(live[:, 2:], recorded)
    assert np.isnan(live[:, :2]).all()


def test_local_time_is_ahead_of_utc(design):
    berlin, utc = (ComputedInputs(design, {"6": "week-cosine"}, offset) for offset in (7200.0, 0.0))
    assert berlin.at(MONDAY_S)[5] == utc.at(MONDAY_S + 7200)[5] != utc.at(MONDAY_S)[5]


def test_an_input_is_found_by_its_name_without_the_unit_or_by_its_number(design):
    computed = ComputedInputs(design, {"rain": "0.5", "2": -0.25})
    assert computed.at(0.0)[:2].tolist() == [0.5, -0.25] and computed.places == {0: "rain", 1: "2"}


def test_an_input_is_found_by_its_whole_column_name(design):
    assert ComputedInputs(design, {"rain [mm]": 0.5}).at(0.0)[0] == 0.5
    with pytest.raises(ValueError, match="input 'rain' is the same as 'rain"):
        ComputedInputs(design, {"rain [mm]": 1, "rain": 2})


def test_a_number_beyond_float32_is_the_largest_one_and_not_missing(design):
    computed = ComputedInputs(design, {"rain": "1e39", "count": -1e308})
    assert computed.at(0.0)[:2].tolist() == [np.finfo(np.float32).max, np.finfo(np.float32).min]


def test_what_has_no_source_or_is_out_of_the_range_of_training_is_told():
    one = make_design(num_public=3, public_range=(-1.0, 1.5)).with_labels(public=["rain [mm]", "count", "day-sine"])
    computed = ComputedInputs(one, {"rain": 50, "day-sine": "day-sine"})
    assert computed.warnings() == [
        "input rain = 50 is outside what the design was trained on, -1 to 1.5; it counts as 1.5",
        "count: no --input; it counts as not known until a publisher sends it",
    ]
    assert not ComputedInputs(one, {"rain": -1, "count": 1.5, "3": 0}).warnings()
    unnamed = ComputedInputs(make_design(num_public=1), {})
    assert unnamed.warnings() == ["public input 1: no --input; it counts as not known until a publisher sends it"]


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"snow": 1}, "input must be a number from 1 to 6, or one of rain, count, day-sine, .*, got 'snow'"),
        ({"7": 1}, "input must be a number from 1 to 6"),
        ({"0": 1}, "input must be a number from 1 to 6"),
        ({"rain": "wet"}, "input 'rain' must be a finite number or one of day-sine, .*, got 'wet'"),
        ({"rain": float("nan")}, "input 'rain' must be a finite number"),
        ({"rain": 1, "1": 2}, "input '1' is the same as 'rain'"),
    ],
)
def test_other_sources_are_refused(design, sources, message):
    with pytest.raises(ValueError, match=message):
        ComputedInputs(design, sources)


def test_a_design_without_public_inputs_takes_none():
    with pytest.raises(ValueError, match="the design reads no public inputs"):
        ComputedInputs(make_design(), {"1": 0})
    assert ComputedInputs(make_design(), {}).at(0.0).shape == (0,)
