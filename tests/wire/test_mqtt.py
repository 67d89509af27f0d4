"""The centre over MQTT with a real mosquitto: reports in, releases out, who may do what, and a broker killed."""

from __future__ import annotations

import json
import re
import threading
import time
from contextlib import contextmanager

import pytest
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from dpfuse import cli
from dpfuse.ledger import public_rows
from dpfuse.public.hub import Hub
from dpfuse.replay.transports import OverMQTT
from dpfuse.wire.broker import CENTRE, ESTIMATOR, write_broker
from dpfuse.wire.intake import Intake
from dpfuse.wire.messages import MAX_REPORT
from dpfuse.wire.mqtt import Bridge
from dpfuse.wire.tokens import Tokens
from support.wire import PATIENCE_S, Broker, Recorder, address_of, certify, command, events, following, rig, wait_for

TOKENS = Tokens(b"k" * 32)
SENSORS = (7, 8)


@pytest.fixture
def broker(tmp_path):
    # $SYS is turned on here, so that the access list, and not its absence, keeps it from people.
    with Broker(
        tmp_path / "broker", TOKENS, SENSORS, lambda text: text.replace("sys_interval 0", "sys_interval 1")
    ) as b:
        yield b


@contextmanager
def client(broker, user, password, topics=(), ca=None):
    """Connected and subscribed; what it gets is in `got`, how its publications went in `answers`."""
    one = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    one.username_pw_set(user, password)
    if ca is not None:
        one.tls_set(ca)
    one.got, one.answers, one.connected, subscribed = [], [], [], []
    one.on_connect = lambda c, u, f, reason, p: one.connected.append(reason)
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


def sensor(broker, number, topics=()):
    return client(broker, str(number), TOKENS.issue(number), topics)


def estimator(broker, *topics):
    return client(broker, ESTIMATOR, TOKENS.password(ESTIMATOR), topics)


def report(number=7, step=1, stream="main", values=(0.5, -0.5)):
    content = {"token": TOKENS.issue(number), "stream": stream, "step": step, "values": list(values)}
    return f"dpfuse/{stream}/reports/{number}", json.dumps(content)


def send(one, topic, payload, **options):
    """Publish, and wait until the broker has answered."""
    before = len(one.answers)
    one.publish(topic, payload, qos=1, **options)
    wait_for(lambda: len(one.answers) > before)


def make_bridge(centre, hub, port, **options):
    return Bridge(Intake(centre, TOKENS), hub, TOKENS.password(CENTRE), "127.0.0.1", port, **options)


@contextmanager
def bridged(broker, centre, hub, **options):
    bridge = make_bridge(centre, hub, broker.port, **options)
    bridge.start()
    try:
        wait_for(lambda: bridge.is_connected)
        yield bridge
    finally:
        bridge.stop()


@pytest.fixture
def recorded(broker):
    """A recorder in the centre's place, bridged to the broker."""
    centre = Recorder()
    with bridged(broker, centre, Hub({"main": 0}, lambda stream, start: iter(()))):
        yield centre


class TestReports:
    def test_a_report_reaches_the_centre_and_is_acknowledged(self, broker, recorded):
        with sensor(broker, 7) as seven:
            send(seven, *report(7, 3))
            wait_for(lambda: recorded.got)
        assert recorded.got == [("main", 7, 3, [0.5, -0.5])]

    def test_one_that_lies_about_its_id_stream_or_token_is_dropped_and_the_next_one_counts(self, broker, recorded):
        topic, good = report(7)
        with sensor(broker, 7) as seven:
            for payload in [report(8)[1], report(7, stream="other")[1], "{", "", "[]", "null", good[:-1], "9" * 4000,
                            json.dumps(json.loads(good) | {"token": "7." + "0" * 64})]:  # fmt: skip
                seven.publish(topic, payload, qos=1)
            send(seven, topic, good)
            wait_for(lambda: recorded.got)
        assert recorded.got == [("main", 7, 1, [0.5, -0.5])]

    def test_a_replay_counts_its_reports(self, tmp_path):
        with rig(tmp_path, replay=True) as live:
            bridge = Bridge(live.intake, live.hub, "password", "127.0.0.1", 1)
            for topic, payload in [report(7), report(8), report(8, stream="other"), ("dpfuse/main/reports/9", "{}")]:
                bridge.receive(topic, payload.encode())
            assert live.intake.notes.num_reports == {("main", 1): 2}

    def test_retained_reports_of_old_are_not_taken(self, broker):
        centre = Recorder()
        with sensor(broker, 7) as seven:
            send(seven, *report(7), retain=True)
            with bridged(broker, centre, Hub({"main": 0}, lambda stream, start: iter(()))):
                send(seven, *report(7, 2))
                wait_for(lambda: centre.got)
        assert [step for _, _, step, _ in centre.got] == [2]

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_it_is_acknowledged_after_the_centre_has_it(self, broker):
        """A centre that dies in between gets the report again; had it been acknowledged, it would be lost."""

        class Dying(Recorder):
            def receive(self, *one):
                super().receive(*one)
                dead.set()
                raise SystemExit  # the thread ends here, before the acknowledgement

        dead, second = threading.Event(), Recorder()
        hub = Hub({"main": 0}, lambda stream, start: iter(()))
        with sensor(broker, 7) as seven:
            bridge = make_bridge(Dying(), hub, broker.port)
            bridge.start()
            wait_for(lambda: bridge.is_connected)
            send(seven, *report(7))
            assert dead.wait(PATIENCE_S)
            bridge._client._sock_close()  # as the kernel does for a process that died
            with bridged(broker, second, hub):
                wait_for(lambda: second.got)
            bridge.stop()
        assert second.got == [("main", 7, 1, [0.5, -0.5])]

    def test_an_expired_report_is_not_delivered(self, broker):
        centre, hub = Recorder(), Hub({"main": 0}, lambda stream, start: iter(()))
        expiry = Properties(PacketTypes.PUBLISH)
        expiry.MessageExpiryInterval = 1
        with bridged(broker, centre, hub):
            pass  # its session is there from now on, and keeps what comes
        with sensor(broker, 7) as seven:
            send(seven, *report(7, 1), properties=expiry)
            send(seven, *report(7, 2))
            time.sleep(2.1)
            with bridged(broker, centre, hub):
                wait_for(lambda: centre.got)
        assert [step for _, _, step, _ in centre.got] == [2]


class TestAccess:
    def test_nobody_gets_in_without_the_right_password(self, broker):
        for user, password in [(None, None), ("7", TOKENS.issue(8)), ("9", TOKENS.issue(9)), ("centre", "centre")]:
            with client(broker, user, password) as one:
                assert one.connected[0].is_failure

    def test_a_sensor_reads_releases_to_set_its_watch_by(self, broker, tmp_path):
        with rig(tmp_path) as live, bridged(broker, live.centre, live.hub):
            live.tick()
            with estimator(broker, "dpfuse/+/releases") as reader:
                wait_for(lambda: reader.got)
            with sensor(broker, 7, ["dpfuse/main/releases"]) as seven:  # the retained one, at once
                wait_for(lambda: seven.got)
                assert json.loads(seven.got[0].payload)["step"] == live.centre.now - 1

    def test_a_sensor_writes_its_own_topic_alone_and_reads_no_reports(self, broker, recorded):
        with sensor(broker, 7, ["#", "$SYS/#", "dpfuse/+/releases", "dpfuse/+/reports/+"]) as seven:
            with sensor(broker, 8) as eight, estimator(broker, "dpfuse/+/releases") as reader:
                send(eight, *report(8))
                for topic in ["dpfuse/main/reports/8", "dpfuse/main/releases", "other", "dpfuse/main/reports/7/x"]:
                    seven.publish(topic, report(7)[1], qos=1)
                send(seven, *report(7))
                wait_for(lambda: len(recorded.got) == 2 and len(seven.answers) == 5)
                assert [answer.is_failure for answer in seven.answers] == [True, True, True, True, False]
                time.sleep(1.2)  # $SYS is published each second here
                assert seven.got == [] and reader.got == []
        assert sorted(recorded.got) == [("main", 7, 1, [0.5, -0.5]), ("main", 8, 1, [0.5, -0.5])]

    def test_an_estimator_reads_releases_and_nothing_else(self, broker, tmp_path):
        with rig(tmp_path) as live, bridged(broker, live.centre, live.hub):
            with estimator(broker, "#", "$SYS/#", "dpfuse/+/reports/+") as reader, sensor(broker, 7) as seven:
                send(seven, *report(7))
                live.tick()
                wait_for(lambda: reader.got)
                time.sleep(1.2)
                send(reader, *report(7))
                reader.publish("dpfuse/main/releases", "{}", qos=1)
                wait_for(lambda: len(reader.answers) == 2)
                assert all(answer.is_failure for answer in reader.answers)
                assert {message.topic for message in reader.got} == {"dpfuse/main/releases"}

    def test_without_the_list_all_of_it_would_be_read(self, tmp_path):
        """Negative control."""

        def open_up(text):
            lines = [line for line in text.splitlines() if not line.startswith("acl_file")]
            return "\n".join(lines).replace("sys_interval 0", "sys_interval 1")

        with Broker(tmp_path / "open", TOKENS, SENSORS, open_up) as broker:
            with estimator(broker, "dpfuse/+/reports/+", "$SYS/broker/uptime") as reader, sensor(broker, 7) as seven:
                seven.publish(*report(7), qos=1)
                wait_for(lambda: len({message.topic for message in reader.got}) == 2)

    def test_a_message_that_is_too_large_never_reaches_the_centre(self, broker, recorded):
        with sensor(broker, 7) as seven:
            seven.publish(report(7)[0], b" " * (MAX_REPORT + 1000), qos=1)
            time.sleep(0.3)
        with sensor(broker, 7) as seven:
            send(seven, *report(7))
            wait_for(lambda: recorded.got)
        assert len(recorded.got) == 1

    def test_the_files_are_for_their_owner_and_hold_no_token(self, tmp_path):
        write_broker(tmp_path, TOKENS, SENSORS)
        files = {path.name: path for path in tmp_path.iterdir()}
        assert set(files) == {"mosquitto.conf", "acl", "passwords"}
        assert all(path.stat().st_mode & 0o077 == 0 for path in files.values())
        assert not any(TOKENS.issue(7)[2:] in path.read_text() for path in files.values())
        for setting in ["max_queued_messages", "max_inflight_messages", "max_packet_size", "allow_anonymous false"]:
            assert f"\n{setting}" in files["mosquitto.conf"].read_text()

    def test_what_keeps_the_centre_away_is_told_once_for_each_kind(self, broker, tmp_path, caplog):
        """The broker is killed, and comes back with passwords of another secret."""
        with rig(tmp_path) as live, bridged(broker, live.centre, live.hub) as bridge:
            broker.kill()
            wait_for(lambda: not bridge.is_connected)
            write_broker(tmp_path / "broker", Tokens(b"x" * 32), SENSORS, port=broker.port)
            broker.start()
            wait_for(lambda: "is it set up with the same secret?" in caplog.text)
            time.sleep(3)  # it is tried again
        assert caplog.text.count("closed the connection") == caplog.text.count("same secret") == 1
        assert "--mqtt-ca" not in caplog.text


class TestTLS:
    @pytest.fixture
    def broker(self, tmp_path):
        """As the comment in the configuration says."""
        (tmp_path / "broker").mkdir()
        certify(tmp_path / "broker", "server")
        with Broker(
            tmp_path / "broker", TOKENS, SENSORS, lambda text: re.sub("# (cert|key)file", r"\1file", text)
        ) as b:
            yield b

    def test_reports_and_releases_cross_it(self, broker, tmp_path):
        ca = tmp_path / "broker" / "server.crt"
        with rig(tmp_path) as live, bridged(broker, live.centre, live.hub, ca=str(ca)):
            vehicles = OverMQTT("127.0.0.1", broker.port, "main", ca=ca)
            message = json.loads(report(7)[1])
            vehicles.send([(7, message["token"], message)])
            wait_for(lambda: live.centre._inboxes)
            live.tick()
            vehicles.close()
            with client(broker, ESTIMATOR, TOKENS.password(ESTIMATOR), ["dpfuse/main/releases"], ca=ca) as one:
                wait_for(lambda: one.got)
        assert json.loads(one.got[0].payload)["step"] == 1

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves the socket open
    @pytest.mark.parametrize(
        ("trusted", "said"),
        [("another's", "certificate verify failed"), ("none", "--mqtt-ca")],
        ids=["another's", "none"],
    )
    def test_who_does_not_know_its_certificate_is_not_connected_and_told_why(
        self, broker, tmp_path, caplog, trusted, said
    ):
        ca = None if trusted == "none" else str(certify(tmp_path, "another"))
        bridge = make_bridge(Recorder(), Hub({"main": 0}, lambda stream, start: iter(())), broker.port, ca=ca)
        bridge.start()
        try:
            wait_for(lambda: said in caplog.text)
            assert not bridge.is_connected
        finally:
            bridge.stop()


class TestCommands:
    @pytest.fixture
    def run(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)

        def call(*arguments):
            monkeypatch.setattr("sys.argv", ["dpfuse", *arguments])
            try:
                cli.main()
                code = 0
            except SystemExit as stop:
                code = stop.code or 0
            return code, *capsys.readouterr()

        return call

    def test_tokens_are_those_of_the_secret_and_a_secret_is_never_replaced(self, run, tmp_path):
        code, out, _ = run("token", "--new", "17", "3-5")
        tokens = Tokens.load(tmp_path / "secret")
        assert code == 0 and out.split() == [tokens.issue(sensor) for sensor in (17, 3, 4, 5)]
        assert run("token", "17")[1].strip() == tokens.issue(17)
        code, out, err = run("token", "--new", "17")
        assert code == 1 and out == "" and "is there already" in err
        for wrong in ["-", "5-3", "x", "1.5", "٣", "-1"]:
            code, out, err = run("token", "--", wrong)
            assert code == 2 and out == ""
        assert run("token")[0] == 2

    def test_a_broker_is_written_once_and_its_estimators_password_is_told(self, run, tmp_path):
        run("token", "--new")
        code, out, _ = run("broker", "7", "8")
        assert code == 0 and out.strip() == Tokens.load(tmp_path / "secret").password(ESTIMATOR)
        names = [line.split(":")[0] for line in (tmp_path / "broker" / "passwords").read_text().splitlines()]
        assert names == ["centre", "estimator", "7", "8"]
        assert run("broker", "9")[0] == 2
        assert run("broker", "9", "--force")[0] == 0
        assert "\n9:" in (tmp_path / "broker" / "passwords").read_text()


class TestReleases:
    def test_releases_are_retained_and_the_same_bytes_as_over_http(self, broker, tmp_path):
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

    def test_what_was_committed_last_is_published_after_a_restart(self, broker, tmp_path):
        """Also what nobody was told: a centre may die between the commit and the release."""
        with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader:
            for _ in range(15):
                live.centre.tick()
            restarted = Hub({"main": 15}, live.hub._history)
            with bridged(broker, live.centre, restarted):
                wait_for(lambda: len(reader.got) == 10)
            assert [json.loads(message.payload)["step"] for message in reader.got] == list(range(6, 16))

    def test_what_is_published_in_the_moment_of_the_end_still_leaves(self, broker, tmp_path):
        with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader:
            with bridged(broker, live.centre, live.hub) as bridge:
                wait = live.hub.wait

                def wait_and_end(number, timeout_s):  # between two looks of the bridge: a release, and the end
                    if not live.hub.is_closed:
                        live.tick()
                        live.hub.close()
                    wait(number, timeout_s)

                live.hub.wait = wait_and_end
                bridge._publisher.join(PATIENCE_S)
            wait_for(lambda: reader.got)

    def test_an_error_of_any_kind_is_told_by_its_type_and_publishing_goes_on(self, broker, tmp_path, caplog):
        with rig(tmp_path) as live, estimator(broker, "dpfuse/main/releases") as reader:
            rows, is_broken = live.hub.rows, threading.Event()

            def broken_rows(*arguments):
                if is_broken.is_set():
                    raise RuntimeError("of 271828 kinds")
                return rows(*arguments)

            live.hub.rows = broken_rows
            with bridged(broker, live.centre, live.hub):
                is_broken.set()
                live.tick(), live.tick()
                wait_for(lambda: "could not be published: RuntimeError" in caplog.text)
                is_broken.clear()
                wait_for(lambda: len(reader.got) == 2)
            assert "271828" not in caplog.text

    def test_a_broker_that_is_killed_costs_nothing_but_its_own_time(self, broker, tmp_path):
        with rig(tmp_path) as live, bridged(broker, live.centre, live.hub) as bridge:
            live.tick()
            with estimator(broker, "dpfuse/+/releases") as before:
                wait_for(lambda: before.got)
            broker.kill()
            for _ in range(5):
                live.tick()  # and waits for nobody
            assert len(live.get("/v1/streams/main/releases").json()["releases"]) == 6
            wait_for(lambda: not bridge.is_connected)
            broker.start()
            with estimator(broker, "dpfuse/+/releases") as after, sensor(broker, 7) as seven:
                wait_for(lambda: after.got and json.loads(after.got[-1].payload)["step"] == 6)
                # At least once: what left before the bridge had noticed may come twice.
                got = list(dict.fromkeys(message.payload for message in after.got))
                steps = [json.loads(payload)["step"] for payload in got]
                assert steps == list(range(steps[0], 7))
                answer = live.get(f"/v1/streams/main/releases?start={steps[0]}")
                assert answer.content == b'{"releases":[%s]}' % b",".join(got)
                send(seven, *report(7, live.centre.now))
                live.tick()
                wait_for(lambda: json.loads(after.got[-1].payload)["step"] == 7)


@pytest.mark.slow
def test_a_whole_centre_goes_on_while_its_broker_is_killed(tmp_path, pytestconfig):
    """`dpfuse serve --mqtt` as a process: releases over HTTP never stop, and those over MQTT come back."""
    from conftest import make_design
    from dpfuse.wire.tokens import new_secret

    new_secret(tmp_path / "secret")
    tokens = Tokens.load(tmp_path / "secret")
    make_design("individual", spread=0.3, horizon=None, expected_stay=4.0).save(tmp_path / "design")
    arguments = ("--design", "design", "--ledger", "l.db", "--new", "--port", 0, "--interval", 0.2, "--mqtt")
    with Broker(tmp_path / "broker", tokens, SENSORS) as broker:
        running = command("serve", *arguments, f"127.0.0.1:{broker.port}", folder=tmp_path,
                          cache=pytestconfig.cache.mkdir("jax"))  # fmt: skip
        with running as process, following(address_of(process)) as lines:
            steps = [event["step"] for event in events(lines, 5)]
            broker.kill()
            steps += [event["step"] for event in events(lines, 15)]
            broker.start()
            with client(broker, ESTIMATOR, tokens.password(ESTIMATOR), ["dpfuse/main/releases"]) as reader:
                wait_for(lambda: reader.got and json.loads(reader.got[-1].payload)["step"] > steps[-1])
            steps += [event["step"] for event in events(lines, 5)]
            hung_up, away = process.stderr().splitlines()
            assert (
                hung_up.endswith("the broker closed the connection; the centre keeps trying")
                and "Connection refused" in away
            )
        rows = [row.step for row in public_rows(tmp_path / "l.db")]
        assert steps == rows[:25]
        assert steps[-1] - steps[0] < 150  # it never waits for half a minute, as a connection that hangs would
