"""Sensors of a fleet: their reports go where its map says, through moves and outages."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from dpfuse.errors import ReleaseRefused
from dpfuse.fleet import FleetReporter, reporter
from dpfuse.fleet.overview import make_fleet_app
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import write_report
from support.wire import SECRET, Recorder, free_port, rig, serving

KEY = Keys.from_secret(SECRET).issue(7)


def write(stream, step):
    return [write_report(KEY.sign(stream, step, [0.5, -0.5]))]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Two shards that keep what they receive, and their map."""
    with ExitStack() as stack:
        shards, addresses, places = [Recorder(), Recorder()], [], {}
        for shard in shards:
            live = stack.enter_context(rig(tmp_path_factory.mktemp("shard"), centre=shard))
            addresses.append(stack.enter_context(serving(live.app)))
        url = stack.enter_context(serving(make_fleet_app(lambda: {"version": 1, "streams": places, "shards": {}})))
        yield url, places, addresses, [shard.got for shard in shards]


@pytest.fixture
def fleet(running):
    """Sensors, the map, which the test may change, the addresses of two shards, and what these received."""
    url, places, addresses, received = running
    for got in received:
        got.clear()
    places["a"] = {"shard": "north", "stream": "a", "sensors": addresses[0], "readers": None}
    with FleetReporter(url) as sensors:
        yield sensors, places, addresses, received


def test_reports_follow_a_stream_that_moves_under_its_new_name(fleet, monkeypatch):
    sensors, places, addresses, (north, south) = fleet
    monkeypatch.setattr(reporter, "_MAP_EVERY_S", 0.0)
    assert sensors.send("a", write)
    assert [got[:3] for got in north] == [("a", 7, 1)] and south == []
    places["a"] = {"shard": "south", "stream": "a.2", "sensors": addresses[1], "readers": None}
    assert sensors.send("a", write)
    assert len(north) == 1 and [got[:3] for got in south] == [("a.2", 7, 1)]


def test_after_an_outage_the_map_is_read_again_at_once(fleet):
    sensors, places, addresses, (north, _) = fleet
    places["a"] = places["a"] | {"sensors": f"http://127.0.0.1:{free_port()}"}
    assert not sensors.send("a", write)
    places["a"] = places["a"] | {"sensors": None}  # the shard starts
    assert not sensors.send("a", write)
    places["a"] = places["a"] | {"sensors": addresses[0]}
    sensors._map_due_s = 0.0
    assert sensors.send("a", write) and len(north) == 1


def test_a_stream_that_the_map_lacks_and_a_wrong_key_are_named(fleet):
    sensors, *_, (north, _) = fleet
    with pytest.raises(ValueError, match="stream must be one of the fleet's map, a; got 'b'"):
        sensors.send("b", write)
    stranger = Keys.from_secret(b"x" * 32).issue(7)
    with pytest.raises(PermissionError, match="refuses reports; sign with keys of the fleet's key file"):
        sensors.send("a", lambda stream, step: [write_report(stranger.sign(stream, step, [0.5, -0.5]))])
    assert north == []


def test_an_address_that_is_not_a_fleet_is_named(fleet):
    _, places, addresses, (north, _) = fleet
    answers = {}
    app = Starlette(routes=[Route(path, lambda request: JSONResponse(answers)) for path in ("/v1/map", "/v1/clock")])
    with serving(app) as url, FleetReporter(url) as sensors:
        for answer in ({}, {"streams": ["a"]}):
            answers.clear()
            answers.update(answer)
            with pytest.raises(ReleaseRefused, match="must answer 'streams' at /v1/map; is it the address of a fleet"):
                sensors.send("a", write)
        answers.update(streams={"a": {"shard": "north"}})
        with pytest.raises(ReleaseRefused, match="must say where each stream is"):
            sensors.send("a", write)
        answers.update(streams={"a": {"stream": "a", "sensors": url}})  # no clock
        sensors._map_due_s = 0.0
        with pytest.raises(ReleaseRefused, match="must answer 'step' at /v1/clock"):
            sensors.send("a", write)
    with FleetReporter(addresses[0]) as sensors, pytest.raises(ReleaseRefused, match="is this the right address"):
        sensors.send("a", write)
    assert north == []
