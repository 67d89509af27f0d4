"""Clients of a real mosquitto: sensors, estimators and the centre's bridge."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial

from paho.mqtt import client as paho

from dpfuse.public.hub import Hub
from dpfuse.wire.broker import CENTRE, ESTIMATOR
from dpfuse.wire.intake import Intake
from dpfuse.wire.keys import Keys
from dpfuse.wire.mqtt import Bridge
from support.wire import SECRET, Watch, wait_for

KEYS = Keys.from_secret(SECRET)
SENSORS = (7, 8)


@contextmanager
def client(broker, user, password, topics=(), ca=None, client_id=""):
    """A client that is connected and subscribed, with what it received, the answers to what it sent, and its losses."""
    one = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    one.username_pw_set(user, password)
    if ca is not None:
        one.tls_set(ca)
    one.got, one.answers, one.connected, one.lost, subscribed = [], [], [], [], []
    one.reconnect_delay_set(0.05, 0.1)
    one.on_connect = lambda c, u, f, reason, p: one.connected.append(reason)
    one.on_disconnect = lambda c, u, f, reason, p: one.lost.append(reason)
    one.on_message = lambda c, u, message: one.got.append(message)
    one.on_publish = lambda c, u, mid, reason, p: one.answers.append(reason)
    one.on_subscribe = lambda c, u, mid, reasons, p: subscribed.extend(reasons)
    one.connect("127.0.0.1", broker.port)
    one.loop_start()
    try:
        wait_for(lambda: one.connected)
        if topics and not one.connected[0].is_failure:
            one.subscribe([(topic, 1) for topic in topics])
            wait_for(lambda: len(subscribed) == len(topics))
        yield one
    finally:
        one.disconnect()
        one.loop_stop()


def sensor(broker, number, topics=(), client_id=""):
    key = KEYS.issue(number)
    return client(broker, str(key.name), key.password, topics, client_id=client_id)


def estimator(broker, *topics):
    return client(broker, *KEYS.accounts(ESTIMATOR)[0], topics)


def report(number=7, step=1, stream="main", values=(0.5, -0.5)):
    key = KEYS.issue(number)
    return f"dpfuse/{stream}/reports/{key.name}", json.dumps(key.sign(stream, step, values))


def send(one, topic, payload, **options):
    """Publish, and wait for the broker's answer."""
    before = len(one.answers)
    one.publish(topic, payload, qos=1, **options)
    wait_for(lambda: len(one.answers) > before)


def make_bridge(centre, hub, port, ticker=None, keys=KEYS, **options):
    """A bridge that reconnects and stops within a moment."""
    wait = hub.wait
    hub.wait = lambda number, timeout_s: wait(number, min(timeout_s, 0.05))
    accounts = partial(keys.accounts, CENTRE)
    bridge = Bridge(Intake(centre, keys), hub, ticker or Watch(centre, hub), accounts, "127.0.0.1", port, **options)
    bridge._client.reconnect_delay_set(0.05, 0.1)
    return bridge


@contextmanager
def bridged(broker, centre, hub, **options):
    bridge = make_bridge(centre, hub, broker.port, **options)
    bridge.start()
    try:
        wait_for(lambda: bridge.is_connected)
        yield bridge
    finally:
        bridge.stop()


def empty_hub():
    return Hub({"main": 0}, lambda stream, start: iter(()))
