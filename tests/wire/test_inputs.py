"""Public inputs over HTTP: only a publisher's key gives them, and everybody reads the same ones."""

from __future__ import annotations

import numpy as np
import pytest

import dpfuse
from dpfuse.ledger import public_rows
from dpfuse.privacy import GRID
from dpfuse.public_inputs import NEVER, hold, unpack
from dpfuse.remote.client import make_client
from dpfuse.replay.player import Replay
from dpfuse.replay.scenes import make_scenes
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from support.designs import make_design
from support.wire import Recorder, addresses_of, command, events, following, get, lines_of, rig


@pytest.fixture(scope="module")
def design():
    plain = make_design("individual", num_public=2, public_range=(-1.0, 1.0), spread=0.5, horizon=None)
    return plain.with_labels(public=["rain [mm]", "count"])


@pytest.fixture
def recorded(tmp_path):
    """With a recorder in the centre's place."""
    with rig(tmp_path, centre=Recorder()) as parts:
        yield parts


def publish(live, *messages):
    return live.call("POST", "/v1/inputs", **lines_of(*messages))


def test_neither_key_speaks_as_the_other(recorded):
    keys, values = recorded.keys, [0.5, -0.5]
    publisher, sensor = keys.issue_publisher(7), keys.issue(7)
    own, report = publisher.sign("main", 1, values), sensor.sign("main", 1, values)
    named = [report | {"key": own["key"]}, own | {"key": report["key"]}]  # one number, the other's name
    refused = {"received": 0, "refused": [0, 1, 2, 3]}
    assert publish(recorded, report, *named, sensor.seal("main", 1, values)).json() == refused
    sealed = {name: own[name] for name in ("key", "stream", "step")} | {"sealed": "00" * 146}
    assert recorded.send(own, *named, sealed).json() == refused
    assert not recorded.centre.got and not recorded.centre.inputs


def test_a_bad_line_costs_only_itself_and_every_valid_one_gets_the_same_bytes(recorded):
    key = recorded.keys.issue_publisher(1)
    good = key.sign("main", 1, [0.5, None])
    batch = [good, good | {"step": 2}, None, {}, good | {"values": [0.5, "1"]}, key.sign("main", 2, [1.0, 2.0])]
    assert publish(recorded, *batch).json() == {"received": 2, "refused": [1, 2, 3, 4]}
    assert str(recorded.centre.inputs) == "[('main', 1, [0.5, nan]), ('main', 2, [1.0, 2.0])]"
    kinds = [good, good, key.sign("nowhere", 1, [0, 0]), key.sign("main", 2**62, [0, 0]), key.sign("main", -5, [1e308])]
    assert len({(answer.status_code, answer.content) for answer in (publish(recorded, one) for one in kinds)}) == 1


def test_releases_are_those_of_an_offline_run_with_the_same_inputs_and_noise(tmp_path, monkeypatch, design):
    """An input that is not published holds its last value by the rule of training; page, feed and metrics show it."""
    rng, noise = np.random.default_rng(0), []
    monkeypatch.setattr("dpfuse.privacy.release.add_noise", lambda total, _: total + noise[-1])
    published = rng.uniform(-1.5, 1.5, size=(8, 2)).astype(np.float32)
    published[rng.random((8, 2)) < 0.5] = np.nan
    sent = rng.uniform(-1, 1, size=(8, 3, 2))
    draws = rng.integers(-GRID, GRID, size=(8, 2))
    with rig(tmp_path, design) as live:
        key, offline, estimates = live.keys.issue_publisher(3), live.centre._step, []
        for step, (inputs, values, drawn) in enumerate(zip(published, sent, draws, strict=True), 1):
            noise.append(drawn)
            news = [None if np.isnan(value) else float(value) for value in inputs]
            assert publish(live, key.sign("main", step, news)).json()["refused"] == []
            live.send(*(live.report(sensor, values[sensor].tolist(), step=step) for sensor in range(3)))
            estimates += live.tick()
        point = live.feed.describe(estimates[-1])
        metrics, page, facts = live.get("/metrics").text, live.get("/").text, live.get("/v1/guarantee").json()
        held = np.concatenate([each[0] for each in hold(published[None])], axis=-1)
        held[:, :2] = np.clip(held[:, :2], -1, 1)
        carry = offline.init()
        for step, (one, values) in enumerate(zip(estimates, sent, strict=True)):
            noise.append(draws[step])
            carry, charged = offline.contribute(carry, [0, 1, 2], values)
            released = offline.release(charged)
            carry, estimate = offline.estimate(carry, released, held[step])
            assert one.row.release == released.value.astype("<i8").tobytes()
            np.testing.assert_array_equal(unpack(one.row.inputs), held[step].astype(np.float32))
            assert one.mean == tuple(np.asarray(estimate.mean)[0].tolist())
    assert (held[:, 2:] > 0).any()
    assert point["inputs"] == pytest.approx(held[-1, :2], rel=1e-5) and point["input_ages"] == held[-1, 2:].tolist()
    assert f'dpfuse_input_age_steps{{input="2",stream="main"}} {held[-1, 3]}' in metrics
    assert 'dpfuse_input_info{input="1",name="rain",unit="mm"} 1.0' in metrics
    assert '"inputs": [{"name": "rain", "unit": "mm"}, {"name": "count", "unit": ""}]' in page
    assert facts["inputs"][1] == {"low": -1.0, "high": 1.0, "label": "count"}


@pytest.mark.slow
def test_a_served_centre_takes_a_recordings_inputs_from_its_publisher(tmp_path, design, pytestconfig):
    """Row k holds what the recording holds; readers get it from the rows, and so does the page."""
    num_steps = 400
    public = np.full((1, num_steps, 2), np.nan)
    public[0, ::3, 1] = np.arange(0, num_steps, 3) / num_steps
    state, measured = np.zeros((1, num_steps, 1)), np.zeros((1, num_steps, 4, 2))
    dpfuse.Trajectories(state, measured, interval_s=0.1, public=public).save(tmp_path / "data.dpfuse-data")
    design.save(tmp_path / "road.dpfuse")
    KeyFile.create(tmp_path / "centre.keys")
    options = ("--design", "road.dpfuse", "--ledger", "l/ledger.db", "--new", "--interval", 0.2, "--input", "rain=0.25")
    ports = ("--port", 0, "--reading-port", 0, "--log-level", "info")
    cache = pytestconfig.cache.mkdir("jax")
    with command("serve", *options, *ports, folder=tmp_path, cache=cache) as running:
        sensors, readers = addresses_of(running)
        with make_client(sensors) as client:
            scenes = make_scenes(tmp_path / "data.dpfuse-data", 1.0, 0, 0)
            Replay(client, scenes, Keys.load(tmp_path / "centre.keys")).run(4.0)
        (tmp_path / "estimator").write_bytes(get(f"{readers}/v1/estimator").content)
        with following(readers, path="feed?start=1") as lines:
            points = [point for point in events(lines, 12) if "mean" in point]
        log = running.stderr()
    remote, ages = dpfuse.RemoteEstimator.load(tmp_path / "estimator"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "signatory", None)  # rows of the ledger have no signature
        estimates = {row.step: remote.update(row.to_dict()) for row in public_rows(tmp_path / "l/ledger.db")}
    for point in points:
        assert point["mean"] == pytest.approx(estimates[point["step"]].mean, rel=1e-4)
    offsets = set()
    for row in public_rows(tmp_path / "l/ledger.db"):
        (rain, count), (rain_age, age) = np.split(unpack(row.inputs), 2)
        assert (rain, rain_age) == (0.25, 0)
        if age < NEVER:
            ages.append(age)
            offsets.add(round(count * num_steps) + int(age) - row.step)
    assert len(offsets) == 1 and len(ages) > 5 and {0, 1, 2} <= set(ages)
    assert "lacks a channel counts as absent" in log and "count: no --input; it counts as not known" in log
    assert "rain: no --input" not in log
