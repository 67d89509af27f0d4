"""Reports of a replay over MQTT, with a real mosquitto."""

from __future__ import annotations

import json
import queue
import time

import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion

from dpfuse.remote.client import make_client
from dpfuse.replay import player as player_module
from dpfuse.replay import transports as transports_module
from dpfuse.replay.player import Replay
from dpfuse.replay.scenes import SceneSequence
from dpfuse.replay.transports import OutgoingMessage, OverMQTT
from dpfuse.wire.keys import Keys
from support.replay import INTERVAL_S, SECRET, play, scenes
from support.wire import PATIENCE_S, Broker


@pytest.fixture
def broker(tmp_path):
    """A mosquitto with accounts for sensors 0 to 120; its port."""
    with Broker(tmp_path / "broker", Keys.from_secret(SECRET), range(121)) as running:
        yield running.port


def test_every_sensor_has_a_connection_and_a_topic_of_its_own(listen, broker, monkeypatch):
    monkeypatch.setattr(transports_module, "_EXPIRES_AFTER_S", int(PATIENCE_S))
    heard = queue.Queue()
    centre = paho.Client(CallbackAPIVersion.VERSION2, "listener", protocol=paho.MQTTv5)
    centre.username_pw_set(*Keys.from_secret(SECRET).accounts("centre")[0])
    centre.on_connect = lambda client, *_: client.subscribe("dpfuse/main/reports/+", 1)
    centre.on_subscribe = lambda *_: heard.put(None)
    centre.on_message = lambda _, __, message: heard.put((message.topic, json.loads(message.payload)))
    centre.connect("127.0.0.1", broker)
    centre.loop_start()
    try:
        assert heard.get(timeout=PATIENCE_S) is None
        sensors = OverMQTT("127.0.0.1", broker, "main")
        try:
            tally, _ = play(listen(), 1.0, transport=sensors)
            reports = [heard.get(timeout=PATIENCE_S) for _ in range(tally.num_reports)]
            assert {name.sensor for name in sensors._clients} >= {7, 8, 100}
        finally:
            sensors.close()
    finally:
        centre.disconnect()
        centre.loop_stop()
    assert tally.num_reports == 3 * tally.num_steps > 0
    for topic, report in reports:
        sensor = int(report["key"].partition(".")[0])
        assert topic == f"dpfuse/main/reports/{report['key']}" and report["values"][0] == sensor + 0.5


def test_a_sensor_without_an_account_at_the_broker_is_reported(listen, broker, monkeypatch):
    monkeypatch.setattr(player_module, "time", time)  # the broker has its own clock
    sensors = OverMQTT("127.0.0.1", broker, "main")
    strangers = (scene._replace(sensors=scene.sensors + 1000) for scene in scenes())
    data = SceneSequence(strangers, INTERVAL_S)
    try:
        with make_client(listen(time=time).url) as client:
            player = Replay(client, data, Keys.from_secret(SECRET), transport=sensors)
            with pytest.raises(PermissionError, match="refuses a sensor; give its id and the same keys"):
                player.run(PATIENCE_S)
    finally:
        sensors.close()


def test_the_connection_of_a_sensor_that_has_left_is_closed(broker, monkeypatch):
    monkeypatch.setattr(transports_module, "_GONE_AFTER_S", 0.05)
    sensors, keys = OverMQTT("127.0.0.1", broker, "main"), Keys.from_secret(SECRET)
    try:
        sensors.send([OutgoingMessage(keys.issue(sensor), b"{}") for sensor in (1, 2)])
        time.sleep(0.1)
        sensors.send([OutgoingMessage(keys.issue(2), b"{}")])
        assert {name.sensor for name in sensors._clients} == {2}
        first = sensors._clients[keys.issue(2).name]._client_id
        sensors._disconnect(keys.issue(2).name)
        sensors.send([OutgoingMessage(keys.issue(2), b"{}")])
        assert len(first) == 32 and sensors._clients[keys.issue(2).name]._client_id != first  # nobody can guess it
    finally:
        sensors.close()
    assert not sensors._clients
