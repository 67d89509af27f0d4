"""The broker's files: what each user may publish and read, with a real mosquitto."""

from __future__ import annotations

import json
import time

import pytest

from dpfuse import cli
from dpfuse.wire.broker import ESTIMATOR, write_broker
from dpfuse.wire.messages import MAX_REPORT
from dpfuse.wire.tokens import Tokens
from support.mqtt import SENSORS, TOKENS, bridged, client, estimator, report, send, sensor
from support.wire import Broker, rig, wait_for


def test_nobody_connects_without_the_right_password(broker):
    for user, password in [(None, None), ("7", TOKENS.issue(8)), ("9", TOKENS.issue(9)), ("centre", "centre")]:
        with client(broker, user, password) as one:
            assert one.connected[0].is_failure


def test_a_sensor_may_read_releases_to_know_the_step(broker, tmp_path):
    with rig(tmp_path) as live, bridged(broker, live.centre, live.hub):
        live.tick()
        with estimator(broker, "dpfuse/+/releases") as reader:
            wait_for(lambda: reader.got)
        with sensor(broker, 7, ["dpfuse/main/releases"]) as seven:  # the retained release
            wait_for(lambda: seven.got)
            assert json.loads(seven.got[0].payload)["step"] == live.centre.now - 1


def test_a_sensor_may_write_only_its_own_topic_and_read_no_reports(broker, recorded_mqtt):
    with sensor(broker, 7, ["#", "dpfuse/+/releases", "dpfuse/+/reports/+"]) as seven:
        with sensor(broker, 8) as eight, estimator(broker, "dpfuse/+/releases") as reader:
            send(eight, *report(8))
            for topic in ["dpfuse/main/reports/8", "dpfuse/main/releases", "other", "dpfuse/main/reports/7/x"]:
                seven.publish(topic, report(7)[1], qos=1)
            send(seven, *report(7))
            wait_for(lambda: len(recorded_mqtt.got) == 2 and len(seven.answers) == 5)
            assert [answer.is_failure for answer in seven.answers] == [True, True, True, True, False]
            send(reader, "other", "")  # the broker would have sent what it may read before it answers this
            assert seven.got == [] and reader.got == []
    assert sorted(recorded_mqtt.got) == [("main", 7, 1, [0.5, -0.5]), ("main", 8, 1, [0.5, -0.5])]


def test_an_estimator_may_read_releases_and_nothing_else(broker, tmp_path):
    with rig(tmp_path) as live, bridged(broker, live.centre, live.hub):
        with estimator(broker, "#", "dpfuse/+/reports/+") as reader, sensor(broker, 7) as seven:
            send(seven, *report(7))
            live.tick()
            wait_for(lambda: reader.got)
            send(reader, *report(7))
            reader.publish("dpfuse/main/releases", "{}", qos=1)
            wait_for(lambda: len(reader.answers) == 2)
            assert all(answer.is_failure for answer in reader.answers)
            assert {message.topic for message in reader.got} == {"dpfuse/main/releases"}


def test_nobody_may_read_sys_topics(broker):
    with sensor(broker, 7, ["#", "$SYS/#"]) as seven, estimator(broker, "#", "$SYS/#") as reader:
        time.sleep(1.2)  # mosquitto publishes them every second
        assert seven.got == reader.got == []


def test_without_the_access_list_reports_and_sys_topics_would_be_readable(tmp_path):
    """Negative control."""

    def open_up(text):
        lines = [line for line in text.splitlines() if not line.startswith("acl_file")]
        return "\n".join(lines).replace("sys_interval 0", "sys_interval 1")

    with Broker(tmp_path / "open", TOKENS, SENSORS, open_up) as broker:
        with estimator(broker, "dpfuse/+/reports/+", "$SYS/broker/uptime") as reader, sensor(broker, 7) as seven:
            seven.publish(*report(7), qos=1)
            wait_for(lambda: len({message.topic for message in reader.got}) == 2)


def test_a_message_that_is_too_large_never_reaches_the_centre(broker, recorded_mqtt):
    with sensor(broker, 7) as seven:
        seven.publish(report(7)[0], b" " * (MAX_REPORT + 1000), qos=1)
        wait_for(lambda: seven.lost)  # the broker closes the connection
    with sensor(broker, 7) as seven:
        send(seven, *report(7))
        wait_for(lambda: recorded_mqtt.got)
    assert len(recorded_mqtt.got) == 1


def test_only_the_owner_may_read_the_broker_files_and_they_hold_no_token(tmp_path):
    write_broker(tmp_path, TOKENS, SENSORS)
    files = {path.name: path for path in tmp_path.iterdir()}
    assert set(files) == {"mosquitto.conf", "acl", "passwords"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in files.values())
    assert not any(TOKENS.issue(7)[2:] in path.read_text() for path in files.values())
    for setting in ["max_queued_messages", "max_inflight_messages", "max_packet_size", "allow_anonymous false"]:
        assert f"\n{setting}" in files["mosquitto.conf"].read_text()


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
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


def test_the_token_command_prints_tokens_of_the_secret_and_never_replaces_it(run, tmp_path):
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


def test_the_broker_command_writes_once_and_prints_the_password_of_the_estimator(run, tmp_path):
    run("token", "--new")
    code, out, _ = run("broker", "7", "8")
    assert code == 0 and out.strip() == Tokens.load(tmp_path / "secret").password(ESTIMATOR)
    names = [line.split(":")[0] for line in (tmp_path / "broker" / "passwords").read_text().splitlines()]
    assert names == ["centre", "estimator", "7", "8"]
    assert run("broker", "9")[0] == 2
    assert run("broker", "9", "--force")[0] == 0
    assert "\n9:" in (tmp_path / "broker" / "passwords").read_text()
