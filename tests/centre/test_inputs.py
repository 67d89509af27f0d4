"""Public inputs of a live centre: when they count, how old they are, and that no report moves them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import dpfuse
from dpfuse.centre.held_inputs import _MOST_WAITING, HeldInputs
from dpfuse.public.rows import release_message
from dpfuse.public_inputs import NEVER, unpack
from support.centres import STREAMS, held_releases, reports
from support.designs import make_design


@pytest.fixture
def held():
    return HeldInputs(2, [-1.0, 0.0], [1.0, 10.0])


class TestHeldInputs:
    def test_values_are_clipped_and_others_are_nothing_new(self, held):
        held.give(1, 3, [1e308, np.nan], 3)
        assert np.isnan(held.at(3)[0, :2]).all() and held.at(3)[0, 2:].tolist() == [NEVER, NEVER]
        np.testing.assert_array_equal(held.at(4)[1], [1, np.nan, 1, NEVER])
        held.give(1, 4, [-np.inf, -1e308], 5)
        np.testing.assert_array_equal(held.at(5)[1], [1, 0, 2, 1])

    def test_the_newest_step_counts_and_of_equal_steps_the_first(self, held):
        for step, value in ((5, 0.5), (4, 0.4), (5, 0.6), (3, 0.3)):
            held.give(0, step, [value, np.nan], 6)
        assert held.at(6)[0, [0, 2]].tolist() == [0.5, 1]

    def test_a_late_row_reads_nothing_that_came_after_its_own_cut_off(self, held):
        held.give(0, 1, [0.1, 1.0], 2)
        held.give(0, 2, [0.2, 2.0], 3)
        np.testing.assert_allclose(held.at(2)[0], [0.1, 1, 1, 1])
        np.testing.assert_allclose(held.at(3)[0], [0.2, 2, 1, 1])

    def test_ages_grow_up_to_their_end(self, held):
        held.give(0, 1, [0.5, np.nan], 1)
        assert [held.at(step)[0, 2] for step in (1, 9, NEVER, NEVER + 1, 10**9)] == [0, 8, NEVER - 1, NEVER, NEVER]
        assert held.at(10**9)[0, 0] == 0.5

    def test_it_keeps_no_more_than_some_steps_and_the_newest_of_them(self, held):
        for step in range(1, 100):
            held.give(0, step, [step / 100, np.nan], step)
        assert len(held._waiting) == _MOST_WAITING
        np.testing.assert_allclose(held.at(99)[0, [0, 2]], [0.99, 0])

    def test_it_goes_on_from_what_e_holds(self, held):
        held.give(0, 2, [0.5, np.nan], 3)
        other = HeldInputs(2, [-1.0, 0.0], [1.0, 10.0])
        other.resume(held.at(4), 4)
        np.testing.assert_array_equal(other.at(7), held.at(7))
        other.give(0, 1, [0.9, np.nan], 5)  # older than what is held
        assert other.at(7)[0, 0] == 0.5


@pytest.fixture(scope="module")
def design():
    return make_design("individual", num_public=2, public_range=(-1.0, 1.0), spread=0.5, horizon=None)


def inputs_of(published):
    """Values and ages of one row."""
    return unpack(published.row.inputs).tolist()


class TestCentre:
    def test_inputs_count_from_the_row_after_the_step_in_which_they_come(self, open_centre, design):
        """By the clock, however late a tick is; of a later step they never count."""
        centre, now = open_centre(design), [1]
        centre.follow_clock(lambda: now[0])
        centre.receive_inputs("main", 1, [0.1, -5])
        assert np.isnan(inputs_of(centre.tick()[0])[:2]).all()
        now[0] = 3
        centre.receive_inputs("main", 3, [0.3, None])
        centre.receive_inputs("main", 5, [0.5, 0.5])
        np.testing.assert_allclose(inputs_of(centre.tick()[0]), [0.1, -1, 1, 1])
        centre.skip()
        np.testing.assert_allclose(inputs_of(centre.tick()[0]), [0.3, -1, 1, 3])

    @pytest.mark.parametrize("resample", [None, "last"])
    def test_training_reads_in_each_step_what_a_centre_has_at_that_moment(self, open_centre, design, resample):
        """A table with the moments of publication, and a centre that is given each value at that moment."""
        rng = np.random.default_rng(0)
        moments = np.arange(20.0)
        if resample is not None:
            moments[1:] += rng.uniform(0, 0.9, 19)
        shown = np.where(rng.random((20, 2)) < 0.4, rng.uniform(-1, 1, (20, 2)), np.nan)
        columns = {"t": moments, "id": 0, "power": 1.0, "load": 1.0, "price": shown[:, 0], "rain": shown[:, 1]}
        recording = dpfuse.Trajectories.from_table(
            pd.DataFrame(columns), time="t", sensor="id", values="power", state="load", public=["price", "rain"],
            interval_s=1, resample=resample, quiet=True,
        )  # fmt: skip
        centre = open_centre(design)
        for number, values in enumerate(shown, 1):
            centre.follow_clock(lambda now=number: now)
            centre.receive_inputs("main", number + 1, values.tolist())
            held = np.concatenate([recording.public[0, number - 1], recording.public_age[0, number - 1]])
            np.testing.assert_array_equal(inputs_of(centre.tick()[0]), held.astype(np.float32))

    @pytest.mark.parametrize(
        "message",
        [
            ("west", 1, [0.5, 0.5]),
            (7, 1, [0.5, 0.5]),
            ("main", 0, [0.5, 0.5]),
            ("main", 2.0, [0.5, 0.5]),
            ("main", True, [0.5, 0.5]),
            ("main", 1, [0.5]),
            ("main", 1, ["0.5", 0.5]),
            ("main", 1, [10**400, 0.5]),
            ("main", 1, [None, float("nan")]),
            ("main", 1, None),
        ],
    )
    def test_malformed_inputs_are_ignored(self, open_centre, design, message):
        centre = open_centre(design)
        assert centre.receive_inputs(*message) is None
        assert inputs_of(centre.tick()[0])[2:] == [NEVER, NEVER]

    def test_a_design_without_them_ignores_them(self, open_centre, individual):
        centre = open_centre(individual)
        centre.receive_inputs("main", 1, [0.5, 0.5])
        assert centre.tick()[0].row.inputs is None

    def test_rows_hold_what_is_computed_for_their_step_and_no_message_changes_it(self, open_centre, design):
        """Also after a step that was skipped; values are clipped to the range of the design."""
        centre = open_centre(design)
        centre.compute_inputs(lambda step: [0.75 * step, np.nan])
        for step in (1, 2, 3):
            centre.receive_inputs("main", step, [-0.5, 0.125 * step])
            if step == 2:
                centre.skip()
            else:
                assert inputs_of(centre.tick()[0]) == [min(1.0, 0.75 * step), 0.125 * step, 0, 0]

    def test_no_sensor_moves_a_row_of_inputs_or_what_another_sensor_adds(self, open_centre, design):
        """All releases are held; they, inputs and weights are then the same for any reports."""
        outcomes = []
        for name, sensors in (("few", [0]), ("many", range(5))):
            centre = open_centre(design, name, STREAMS)
            with held_releases() as added:
                rows = []
                for step, sent in enumerate(reports(), 1):
                    centre.receive_inputs("south", step, [0.1 * step, None])
                    for sensor in sensors:
                        centre.receive("south", sensor, step, sent[sensor].tolist())
                    rows += [one.row._replace(hash=b"") for one in centre.tick()]
            outcomes.append((rows, [each[1, 0] for each in added]))
        assert outcomes[0] == outcomes[1]

    def test_a_remote_estimator_reads_the_same_through_skips_and_a_restart(self, open_centre, design, tmp_path):
        """Estimates are equal to the last bit; a centre that was never stopped makes the same rows."""
        design.export_estimator(tmp_path / "e")
        remote, rng = dpfuse.RemoteEstimator.load(tmp_path / "e"), np.random.default_rng(0)
        centres = [open_centre(design, name, STREAMS) for name in ("plain", "stopped")]
        for number in range(1, 9):
            given = [(stream, [float(rng.normal()), None]) for stream in STREAMS if rng.random() < 0.5]
            published = []
            for which, centre in enumerate(centres):
                for stream, values in given:
                    centre.receive_inputs(stream, number, values)
                if number in (3, 6):
                    centre.skip()
                    continue
                with held_releases(number):
                    published.append(centre.tick())
                if which == 1 and number in (4, 7):
                    centre.close()
                    centres[1] = open_centre(design, "stopped")
            if published:
                plain, stopped = ([(inputs_of(one), one.mean, one.std) for one in each] for each in published)
                assert str(plain) == str(stopped)  # NaN equals NaN as text
                for one in published[0]:
                    estimate = remote.update(json.loads(release_message(one.row).content))
                    assert (estimate.mean, estimate.std) == (one.mean, one.std)
