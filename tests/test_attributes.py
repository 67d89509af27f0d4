"""Sensor attributes: fixed, public, by id; read by that sensor's f alone, and never changed by a report."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest

import dpfuse
from dpfuse import NOBODY, SensorAttributes, Trajectories
from dpfuse.errors import FileRefused
from dpfuse.policy import ExactStep
from dpfuse.policy.rollout import cut
from dpfuse.policy.step import to_inputs
from dpfuse.training.scaling import suggest_attributes
from support.designs import BRIEF, SMALL, busy_data, make_design, make_guarantee

PLACES = SensorAttributes(np.array([7, 3, 5]), np.array([[0.7, -0.7], [0.3, -0.3], [0.5, -0.5]]))


def with_attributes(data: Trajectories, seed=0) -> Trajectories:
    ids = np.unique(data.sensors[data.sensors != NOBODY])
    values = np.random.default_rng(seed).uniform(-1, 1, (len(ids), 2))
    return replace(data, attributes=SensorAttributes(ids, values))


def test_they_are_found_by_id():
    found = PLACES.look_up(np.array([[3, 4], [NOBODY, 7]]))
    np.testing.assert_allclose(found[0, 0], [0.3, -0.3], rtol=1e-6)
    assert np.isnan(found[0, 1]).all() and (found[1, 0] == 0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a mapping from ids"),
        ({1: [1.0], 2: [1.0, 2.0]}, "as many numbers for one sensor as for another"),
        ({-1: [1.0]}, "different ids of 0 or more"),
        ({1: [np.nan]}, "must be finite"),
        ([1.0], "a mapping from ids"),
    ],
)
def test_others_are_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        SensorAttributes.of(given)


def test_a_file_comes_back(tmp_path):
    PLACES.save(tmp_path / "places.csv", ["x", "y"])
    assert (tmp_path / "places.csv").read_text().startswith("sensor,x,y\n")
    back = SensorAttributes.load(tmp_path / "places.csv")
    assert back.fingerprint == PLACES.fingerprint
    assert SensorAttributes(PLACES.ids, PLACES.values + 1).fingerprint != PLACES.fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no sensor"),
        ("sensor,x\n", "got no sensor"),
        ("sensor,x\na,1\n", "line 2: the id must be a whole number of 0 or more, got 'a'"),
        ("sensor,x\n1,1\n2,far\n", "line 3: an attribute must be a number, got 'far'"),
        ("sensor,x\n1,1\n1,2\n", "different ids"),
        ("sensor,x\n1\n", "line 2: must have an id and as many numbers"),
        ("sensor,x\n1,nan\n", "must be finite"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(text, message, tmp_path):
    (tmp_path / "places.csv").write_text(text)
    with pytest.raises(FileRefused, match=message):
        SensorAttributes.load(tmp_path / "places.csv")


def test_a_recording_keeps_them(tmp_path):
    data = with_attributes(busy_data())
    data.save(tmp_path / "data")
    for part in (
        Trajectories.load(tmp_path / "data"),
        Trajectories.join([data, data]),
        data.windows(3),
        data.compact(),
    ):
        assert part.attributes.fingerprint == data.attributes.fingerprint
    with pytest.raises(ValueError, match="attributes must have an entry for every id"):
        replace(data, attributes={0: [1.0]})
    with pytest.raises(ValueError, match="for all parts or for none"):
        Trajectories.join([data, busy_data()])
    other = replace(data, attributes=SensorAttributes(data.attributes.ids, data.attributes.values + 1))
    with pytest.raises(ValueError, match="of one sensor must be the same in all parts"):
        Trajectories.join([data, other])


def test_f_reads_those_of_its_sensor_in_packed_windows():
    data = with_attributes(busy_data())
    windows = cut(data, np.arange(data.num_runs), np.zeros(data.num_runs, int), data.num_steps)
    plain = cut(replace(data, attributes=None), np.arange(data.num_runs), np.zeros(data.num_runs, int), data.num_steps)
    assert windows.measurements[..., :2].tobytes() == plain.measurements.tobytes()
    design = make_design(num_attributes=2, spread=0.5)
    inputs, present = to_inputs(design.policy, windows)
    np.testing.assert_array_equal(present, plain.present)
    known = np.isin(windows.measurements[..., 2], data.attributes.values[:, 0])
    assert known[np.asarray(plain.present)].all() and inputs.shape[-1] == 4
    without, _ = to_inputs(make_design().policy, windows)  # a design without attributes does not read them
    assert np.asarray(without).tobytes() == np.asarray(to_inputs(make_design().policy, plain)[0]).tobytes()


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_they_change_their_own_sensor_alone_and_an_unregistered_one_is_absent(accounting):
    design = make_design(accounting, spread=0.5, num_attributes=2)
    moved = SensorAttributes(PLACES.ids, np.where(PLACES.ids[:, None] == 5, -PLACES.values, PLACES.values))
    ids, sent = np.array([3, 5, 7, 9]), np.random.default_rng(0).uniform(-1, 1, (4, 2))
    rows = []
    for attributes in (PLACES, moved):
        step = ExactStep(design, 4, attributes=attributes)
        rows.append(step.propose(step.init(), np.zeros(4, np.int64), ids, sent).values)
    others = ids != 5
    assert rows[0][others].tobytes() == rows[1][others].tobytes()
    assert rows[0][1].tobytes() != rows[1][1].tobytes()
    assert (rows[0][3] == 0).all() and (rows[0][:3] != 0).any(-1).all()


def test_a_design_that_reads_them_is_refused_without_them(tmp_path):
    design = make_design(num_attributes=2)
    for given in (None, SensorAttributes.of({1: [1.0]})):
        with pytest.raises(ValueError, match="attributes must be 2 numbers for each sensor"):
            ExactStep(design, 4, attributes=given)
    with pytest.raises(ValueError, match="test must have the 2 attributes of each sensor"):
        dpfuse.evaluate(design, busy_data())
    design.save(tmp_path / "design")
    assert dpfuse.load(tmp_path / "design").fingerprint == design.fingerprint
    assert "attributes" not in repr(make_design().structure)


def test_a_live_centre_reads_the_registered_ones(tmp_path):
    design = make_design("individual", spread=0.5, num_attributes=2)
    centre = dpfuse.FusionCentre(design, tmp_path / "ledger.db", create=True, attributes=PLACES)
    with centre:
        assert centre.step({3: [0.1, 0.2], 9: [0.1, 0.2]}).row.step == 1


@pytest.mark.slow
def test_the_audit_passes_for_a_design_with_attributes_and_partial_reports():
    design = make_design("individual", spread=0.5, num_attributes=2, partial_reports=True)
    assert dpfuse.audit_design(design, num_runs=100, num_steps=3).passed


@pytest.mark.slow
def test_stations_with_attributes_are_trained_better_than_without():
    """Each station measures the state times a gain of its own, which only its attributes tell."""
    rng = np.random.default_rng(0)
    state = rng.normal(size=(400, 1, 1)) + 0.1 * rng.normal(size=(400, 8, 1)).cumsum(1)
    gain = np.array([1.0, -1.0, 1.0, -1.0])
    data = Trajectories(state, (state[:, :, None] * gain[:, None]), attributes={i: [g] for i, g in enumerate(gain)})
    errors = []
    for given in (data, replace(data, attributes=None)):
        training, validation, test = given.split(by="run")
        options = {"spending": "constant", "architecture": SMALL, "optimisation": BRIEF}
        design = dpfuse.train(training, validation, make_guarantee(budget=8.0), **options)
        assert design.structure.num_attributes == (0 if given.attributes is None else 1)
        errors.append(dpfuse.evaluate(design, test).mse)
    assert errors[0] < 0.7 * errors[1]


class TestSuggestion:
    def test_few_fixed_sensors_with_a_channel_that_never_changes(self, caplog):
        rng = np.random.default_rng(0)
        measurements = rng.normal(size=(3, 5, 4, 2))
        measurements[..., 1] = np.arange(4)
        data = Trajectories(np.zeros((3, 5, 1)), measurements)
        with caplog.at_level(logging.WARNING):
            suggest_attributes(data)
        assert "channels 1 never change within a sensor, and the same 4 sensors" in caplog.text

    def test_nothing_is_said_where_it_would_not_help(self, caplog):
        rng = np.random.default_rng(0)
        constant = np.ones((3, 5, 4, 2))
        few = {i: [1.0] for i in range(4)}
        for data in (
            Trajectories(np.zeros((3, 5, 1)), rng.normal(size=(3, 5, 4, 2))),  # channels that change
            Trajectories(np.zeros((3, 5, 1)), constant),  # the same for all sensors
            Trajectories(np.zeros((3, 5, 1)), constant, attributes=few),
            busy_data(),  # sensors that come and go
        ):
            suggest_attributes(data)
        assert not caplog.text
