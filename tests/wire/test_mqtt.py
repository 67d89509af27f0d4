"""The centre over MQTT with a real mosquitto: reports in, releases out, and a broker that is killed."""

from __future__ import annotations

import json
import re
import threading
import time
from types import SimpleNamespace

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from dpfuse.ledger import public_rows
from dpfuse.public.hub import Hub
from dpfuse.replay.transports import OverMQTT
from dpfuse.wire import mqtt as mqtt_module
from dpfuse.wire.broker import ESTIMATOR, write_broker
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from dpfuse.wire.mqtt import Bridge
from support.mqtt import KEYS, SENSORS, bridged, client, empty_hub, estimator, make_bridge, report, send, sensor
from support.wire import (
    PATIENCE_S,
    Broker,
    Recorder,
    address_of,
    certify,
    command,
    endless_design,
    events,
    following,
    rig,
    wait_for,
)


def test_a_report_reaches_the_centre_and_is_acknowledged(broker, recorded_mqtt):
    with sensor(broker, 7) as seven:
        send(seven, *report(7, 3))
        wait_for(lambda: recorded_mqtt.got)
    assert recorded_mqtt.got == [("main", 7, 3, [0.5, -0.5])]


def test_a_report_with_a_false_key_stream_or_mac_is_dropped_and_the_next_one_counts(broker, recorded_mqtt):
    topic, good = report(7)
    with sensor(broker, 7) as seven:
        for payload in [report(8)[1], report(7, stream="other")[1], "{", "", "[]", "null", good[:-1], "9" * 4000,
                        json.dumps(json.loads(good) | {"mac": "0" * 32})]:  # fmt: skip
            seven.publish(topic, payload, qos=1)
        send(seven, topic, good)
        wait_for(lambda: recorded_mqtt.got)
    assert recorded_mqtt.got == [("main", 7, 1, [0.5, -0.5])]


def test_a_replay_counts_reports_over_mqtt(tmp_path):
    with rig(tmp_path, replay=True) as live:
        bridge = Bridge(live.intake, live.hub, live.watch, lambda: [("centre", "password")], "127.0.0.1", 1)
        for topic, payload in [report(7), report(8), report(8, stream="other"), ("dpfuse/main/reports/9.1.0", "{}")]:
            bridge.receive(topic, payload.encode())
        assert live.intake.notes.num_reports == {("main", 1): 2}


def test_retained_reports_are_not_taken(broker):
    centre = Recorder()
    with sensor(broker, 7) as seven:
        send(seven, *report(7), retain=True)
        with bridged(broker, centre, empty_hub()):
            send(seven, *report(7, 2))
            wait_for(lambda: centre.got)
    assert [step for _, _, step, _ in centre.got] == [2]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_report_is_acknowledged_after_the_centre_has_it(broker):
    """A centre that dies before the acknowledgement gets the report again after its restart."""

    class Dying(Recorder):
        def receive(self, *one):
            super().receive(*one)
            dead.set()
            raise SystemExit  # the thread ends here, before the acknowledgement

    dead, second = threading.Event(), Recorder()
    hub = empty_hub()
    with sensor(broker, 7) as seven:
        bridge = make_bridge(Dying(), hub, broker.port)
        bridge.start()
        wait_for(lambda: bridge.is_connected)
        send(seven, *report(7))
        assert dead.wait(PATIENCE_S)
        bridge._client.loop_stop()  # without a goodbye to the broker
        bridge._client._sock_close()  # as the kernel does for a process that died
        with bridged(broker, second, hub):
            wait_for(lambda: second.got)
        bridge.stop()
    assert second.got == [("main", 7, 1, [0.5, -0.5])]


def test_reports_wait_around_the_moment_of_a_release_and_the_release_does_not(broker, tmp_path, monkeypatch):
    """As over HTTP. Else the work on reports could hold the release up, and its time would show that they came."""
    waited, may_go = [], threading.Event()
    slow = SimpleNamespace(sleep=lambda seconds: (waited.append(seconds), may_go.wait(PATIENCE_S)))
    monkeypatch.setattr(mqtt_module, "time", slow)
    with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader, sensor(broker, 7) as seven:
        closes_in_s = (0.002 - 0.1) % 0.2
        live.watch.clock = lambda: {"closes_in_s": closes_in_s, "delay_s": 0.1, "interval_s": 0.2}
        with bridged(broker, live.centre, live.hub, ticker=live.watch) as bridge:
            send(seven, *report(7))
            wait_for(lambda: waited)
            live.tick()
            wait_for(lambda: reader.got)
            assert waited == [pytest.approx(0.005)] and bridge._intake.counts["taken"] == 0
            closes_in_s = 0.05  # the release has left
            may_go.set()
            wait_for(lambda: bridge._intake.counts["taken"] == 1)
            send(seven, *report(7))
            wait_for(lambda: bridge._intake.counts["taken"] == 2)
    assert len(waited) == 1


@pytest.mark.slow
def test_an_expired_report_is_not_delivered(broker):
    centre, hub = Recorder(), empty_hub()
    expiry = Properties(PacketTypes.PUBLISH)
    expiry.MessageExpiryInterval = 1
    with bridged(broker, centre, hub):
        pass  # from now on the broker keeps reports for its session
    with sensor(broker, 7) as seven:
        send(seven, *report(7, 1), properties=expiry)
        send(seven, *report(7, 2))
        time.sleep(2.1)
        with bridged(broker, centre, hub):
            wait_for(lambda: centre.got)
    assert [step for _, _, step, _ in centre.got] == [2]


def test_releases_are_retained_and_have_the_same_bytes_as_over_http(broker, tmp_path):
    with rig(tmp_path, streams=("a", "b")) as live:
        live.tick()  # before the bridge was there
        with bridged(broker, live.centre, live.hub), estimator(broker, "dpfuse/+/releases") as reader:
            wait_for(lambda: len(reader.got) == 2)
            live.tick(), live.tick()
            wait_for(lambda: len(reader.got) == 6)
            for stream in ("a", "b"):
                got = b",".join(m.payload for m in reader.got if m.topic == f"dpfuse/{stream}/releases")
                assert live.get(f"/v1/streams/{stream}/releases").content == b'{"releases":[%s]}' % got
            assert {message.qos for message in reader.got} == {1}
            assert len({len(message.payload) for message in reader.got}) == 1
            with estimator(broker, "dpfuse/a/releases") as late:
                wait_for(lambda: late.got)
                assert late.got[0].retain and json.loads(late.got[0].payload)["step"] == 3


def test_the_last_committed_releases_are_published_again_after_a_restart(broker, tmp_path):
    """Also those that were never published: a centre may die between the commit and the release."""
    with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader:
        for _ in range(15):
            live.centre.tick()
        restarted = Hub({"main": 15}, live.hub._history)
        with bridged(broker, live.centre, restarted):
            wait_for(lambda: len(reader.got) == 10)
        assert [json.loads(message.payload)["step"] for message in reader.got] == list(range(6, 16))


def test_a_release_published_just_before_the_end_still_leaves(broker, tmp_path):
    with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader:
        with bridged(broker, live.centre, live.hub) as bridge:
            wait = live.hub.wait

            def wait_and_end(number, timeout_s):  # a release and the end, between two rounds of the bridge
                if not live.hub.is_closed:
                    live.tick()
                    live.hub.close()
                wait(number, timeout_s)

            live.hub.wait = wait_and_end
            bridge._publisher.join(PATIENCE_S)
        wait_for(lambda: reader.got)


def test_after_an_error_which_is_logged_by_its_type_publishing_continues(broker, tmp_path, caplog):
    with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader:
        rows, is_broken = live.hub.messages, threading.Event()

        def broken_rows(*arguments):
            if is_broken.is_set():
                raise RuntimeError("of 271828 kinds")
            return rows(*arguments)

        live.hub.messages = broken_rows
        with bridged(broker, live.centre, live.hub):
            is_broken.set()
            live.tick(), live.tick()
            wait_for(lambda: "could not be published: RuntimeError" in caplog.text)
            is_broken.clear()
            wait_for(lambda: len(reader.got) == 2)
        assert "271828" not in caplog.text


def test_a_killed_broker_delays_nobody_and_later_gets_what_it_missed(broker, tmp_path):
    with rig(tmp_path) as live, bridged(broker, live.centre, live.hub) as bridge:
        live.tick()
        with estimator(broker, "dpfuse/+/releases") as before:
            wait_for(lambda: before.got)
        broker.kill()
        for _ in range(5):
            live.tick()  # waits for no broker
        assert len(live.get("/v1/streams/main/releases").json()["releases"]) == 6
        wait_for(lambda: not bridge.is_connected)
        broker.start()
        with estimator(broker, "dpfuse/+/releases") as after, sensor(broker, 7) as seven:
            wait_for(lambda: after.got and json.loads(after.got[-1].payload)["step"] == 6)
            # At least once: a release that left before the bridge noticed may come twice.
            got = list(dict.fromkeys(message.payload for message in after.got))
            steps = [json.loads(payload)["step"] for payload in got]
            assert steps == list(range(steps[0], 7))
            answer = live.get(f"/v1/streams/main/releases?start={steps[0]}")
            assert answer.content == b'{"releases":[%s]}' % b",".join(got)
            send(seven, *report(7, live.centre.now))
            live.tick()
            wait_for(lambda: json.loads(after.got[-1].payload)["step"] == 7)


def test_each_kind_of_connection_problem_is_logged_once(broker, tmp_path, caplog):
    """The broker is killed and starts again with passwords of another key file."""
    with rig(tmp_path) as live, bridged(broker, live.centre, live.hub) as bridge:
        broker.kill()
        wait_for(lambda: not bridge.is_connected)
        write_broker(tmp_path / "broker", Keys.from_secret(b"x" * 32), SENSORS, port=broker.port)
        broker.start()
        wait_for(lambda: "is it set up with the same keys?" in caplog.text)
        attempts, on_connect = [], bridge._client.on_connect
        bridge._client.on_connect = lambda *result: (attempts.append(result), on_connect(*result))
        wait_for(lambda: len(attempts) >= 2)
    assert caplog.text.count("closed the connection") == caplog.text.count("same keys") == 1
    assert "--mqtt-ca" not in caplog.text


class TestTLS:
    @pytest.fixture
    def broker(self, tmp_path):
        """With the lines on TLS, as the comment in the configuration says."""
        (tmp_path / "broker").mkdir()
        certify(tmp_path / "broker", "server")
        with Broker(tmp_path / "broker", KEYS, SENSORS, lambda text: re.sub("# (cert|key)file", r"\1file", text)) as b:
            yield b

    def test_reports_and_releases_pass_a_broker_with_tls(self, broker, tmp_path):
        ca = tmp_path / "broker" / "server.crt"
        with rig(tmp_path) as live, bridged(broker, live.centre, live.hub, ca=str(ca)):
            sensors = OverMQTT("127.0.0.1", broker.port, "main", ca=ca)
            sensors.send([(KEYS.issue(7), report(7)[1].encode())])
            wait_for(lambda: live.centre._inboxes)
            live.tick()
            sensors.close()
            with client(broker, *KEYS.accounts(ESTIMATOR)[0], ["dpfuse/main/releases"], ca=ca) as one:
                wait_for(lambda: one.got)
        assert json.loads(one.got[0].payload)["step"] == 1

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves the socket open
    @pytest.mark.parametrize(
        ("trusted", "said"),
        [("another's", "certificate verify failed"), ("none", "--mqtt-ca")],
        ids=["another's", "none"],
    )
    def test_a_broker_with_an_untrusted_certificate_is_refused_with_the_reason(
        self, broker, tmp_path, caplog, trusted, said
    ):
        ca = None if trusted == "none" else str(certify(tmp_path, "another"))
        bridge = make_bridge(Recorder(), empty_hub(), broker.port, ca=ca)
        bridge.start()
        try:
            wait_for(lambda: said in caplog.text)
            assert not bridge.is_connected
        finally:
            bridge.stop()


@pytest.mark.slow
def test_a_centre_process_continues_while_its_broker_is_killed(tmp_path, pytestconfig):
    """Releases over HTTP never stop, and those over MQTT return."""
    KeyFile.create(tmp_path / "centre.keys")
    keys = Keys.load(tmp_path / "centre.keys")
    endless_design().save(tmp_path / "design")
    arguments = ("--design", "design", "--ledger", "l.db", "--new", "--port", 0, "--reading-port", 0,
                 "--interval", 0.2, "--mqtt")  # fmt: skip
    with Broker(tmp_path / "broker", keys, SENSORS) as broker:
        running = command("serve", *arguments, f"127.0.0.1:{broker.port}", folder=tmp_path,
                          cache=pytestconfig.cache.mkdir("jax"))  # fmt: skip
        with running as process, following(address_of(process)) as lines:
            steps = [event["step"] for event in events(lines, 5)]
            broker.kill()
            steps += [event["step"] for event in events(lines, 15)]
            wait_for(lambda: "Connection refused" in process.stderr())  # the events may be older ones
            broker.start()
            with client(broker, *keys.accounts(ESTIMATOR)[0], ["dpfuse/main/releases"]) as reader:
                wait_for(lambda: reader.got and json.loads(reader.got[-1].payload)["step"] > steps[-1])
            steps += [event["step"] for event in events(lines, 5)]
            wait_for(lambda: "the broker is connected" in process.stderr())
            lost, away, back = (line for line in process.stderr().splitlines() if "wire.mqtt" in line)
            assert lost.endswith("the broker closed the connection; the centre keeps trying")
            assert "Connection refused" in away and back.endswith("the broker is connected")
        rows = [row.step for row in public_rows(tmp_path / "l.db")]
        assert steps == rows[:25]
        assert steps[-1] - steps[0] < 150  # it never waits half a minute, as for a connection that hangs
