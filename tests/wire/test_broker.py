"""The broker's files: what each user may publish and read, with a real mosquitto."""

from __future__ import annotations

import hashlib
import json
import signal
import stat
import tempfile
import time
from pathlib import Path

import pytest

from dpfuse import cli
from dpfuse.errors import FileRefused
from dpfuse.wire.broker import CENTRE, ESTIMATOR, write_broker
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import MAX_REPORT
from dpfuse.wire.mqtt import make_client_id
from support.mqtt import KEYS, SENSORS, bridged, client, empty_hub, estimator, report, send, sensor
from support.wire import SECRET, Broker, Recorder, rig, wait_for


def test_nobody_connects_without_the_right_password(broker):
    for user, password in [
        (None, None),
        ("7.1.0", KEYS.issue(8).password),
        ("9.1.0", KEYS.issue(9).password),
        ("7", KEYS.issue(7).password),
        ("7.1.0", KEYS.issue(7).secret.hex()),
        ("centre.1", "centre"),
    ]:
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
            for topic in ["dpfuse/main/reports/8.1.0", "dpfuse/main/releases", "other", "dpfuse/main/reports/7.1.0/x"]:
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


def test_no_sensor_closes_the_connection_of_the_centre_or_stops_the_reports_of_another(broker):
    """A broker closes the connection of any user with the client id of a new one."""
    known = [f"dpfuse-{hashlib.sha256(b'main').hexdigest()[:16]}", "dpfuse", "dpfuse-main", "main", CENTRE, "8.1.0",
             "sensor-8.1.0", *(account.user for account in KEYS.accounts(CENTRE))]  # fmt: skip
    guessed = [make_client_id(text, ["main"]) for text in ("", KEYS.issue(7).password, KEYS.issue(7).secret.hex())]
    right = make_client_id(KEYS.accounts(CENTRE)[0].password, ["main"])
    with bridged(broker, centre := Recorder(), empty_hub()) as bridge, sensor(broker, 8) as eight:
        losses, on_disconnect = [], bridge._client.on_disconnect
        bridge._client.on_disconnect = lambda *given: (losses.append(given), on_disconnect(*given))
        for step, client_id in enumerate(known + guessed, 1):
            with sensor(broker, 7, client_id=client_id):
                send(eight, *report(8, step))
        wait_for(lambda: len(centre.got) == len(known + guessed))
        assert [step for _, _, step, _ in centre.got] == [*range(1, len(centre.got) + 1)]
        assert not losses and not eight.lost
        with sensor(broker, 7, client_id=right):  # the control: nobody but the centre knows this one
            wait_for(lambda: losses)


def test_a_restarted_centre_has_the_same_client_id_and_nobody_without_its_password_has_it():
    passwords = [
        keys.accounts(CENTRE)[0].password for keys in (KEYS, Keys.from_secret(SECRET), Keys.from_secret(b"t" * 32))
    ]
    ids = [make_client_id(password, streams) for password in passwords for streams in (["main"], ["a", "b"])]
    assert ids[:2] == ids[2:4] and len({*ids}) == 4 and all(len(one) == 32 for one in ids)


def test_nobody_may_read_sys_topics(broker):
    with sensor(broker, 7, ["#", "$SYS/#"]) as seven, estimator(broker, "#", "$SYS/#") as reader:
        time.sleep(1.2)  # mosquitto publishes them every second
        assert seven.got == reader.got == []


def test_without_the_access_list_reports_and_sys_topics_would_be_readable(tmp_path):
    """Negative control."""

    def open_up(text):
        lines = [line for line in text.splitlines() if not line.startswith("acl_file")]
        return "\n".join(lines).replace("sys_interval 0", "sys_interval 1")

    with Broker(tmp_path / "open", KEYS, SENSORS, open_up) as broker:
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


def test_only_the_owner_may_read_the_broker_files_and_they_hold_no_secret(tmp_path):
    write_broker(tmp_path, KEYS, SENSORS)
    files = {path.name: path for path in tmp_path.iterdir()}
    assert set(files) == {"mosquitto.conf", "acl", "passwords"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in files.values())
    key = KEYS.issue(7)
    secrets = (key.secret.hex(), key.password, *KEYS.accounts("centre")[0][1:])
    assert not any(secret in path.read_text() for path in files.values() for secret in secrets)
    for setting in ["max_queued_messages", "max_inflight_messages", "max_packet_size", "allow_anonymous false"]:
        assert f"\n{setting}" in files["mosquitto.conf"].read_text()


def test_others_cannot_read_from_the_sizes_of_the_broker_files_how_many_sensors_there_are():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        (shared := Path(name)).chmod(0o755)
        with pytest.raises(FileRefused, match="how many sensors there are; run `chmod 700"):
            write_broker(shared, KEYS, SENSORS)
        assert not list(shared.iterdir())
        write_broker(shared / "a" / "broker", KEYS, SENSORS)
        assert {stat.S_IMODE((shared / each).stat().st_mode) for each in ("a", "a/broker")} == {0o700}
        write_broker(shared / "a" / "broker", KEYS, SENSORS)
        shared.chmod(0o700)
        write_broker(shared, KEYS, SENSORS)


def test_a_message_that_the_broker_captured_cannot_be_used_again(broker, tmp_path, caplog):
    """A broker that turns against a sensor: it repeats the message, changes it, and sends it to another topic."""
    with rig(tmp_path, streams=("main", "other")) as live, bridged(broker, live.centre, live.hub) as bridge:
        topic, payload = report(7, live.centre.now)
        with sensor(broker, 7) as seven:
            send(seven, topic, payload)
        wait_for(lambda: live.centre._inboxes)
        captured = json.loads(payload)
        for change in [{"step": 2}, {"stream": "other"}, {"values": [1.0, 1.0]}, {"key": "8.1.0"}, {}]:
            changed = captured | change
            bridge.receive(f"dpfuse/{changed['stream']}/reports/{changed['key']}", json.dumps(changed).encode())
        bridge.receive("dpfuse/other/reports/7.1.0", payload.encode())
        bridge.receive("dpfuse/main/reports/8.1.0", payload.encode())
        [inbox] = live.centre._inboxes.values()
        streams, ids, values = inbox.by_stream(2)
        assert (streams.tolist(), ids.tolist(), values.tolist()) == ([0], [7], [[0.5, -0.5]])
        live.tick()
        bridge.receive(topic, payload.encode())  # the step is over
        assert not any(len(inbox.by_stream(2)[1]) for inbox in live.centre._inboxes.values())


def test_the_broker_carries_a_sealed_report_that_it_can_neither_read_nor_use_again(broker, tmp_path):
    with rig(tmp_path, streams=("main", "other")) as live, bridged(broker, live.centre, live.hub) as bridge:
        topic, _ = report(7, live.centre.now)
        captured = live.keys.issue(7).seal("main", live.centre.now, [0.5, -0.5])
        with sensor(broker, 7) as seven:
            send(seven, topic, json.dumps(captured))
        wait_for(lambda: live.centre._inboxes)
        assert set(captured) == {"key", "stream", "step", "sealed"}
        for change in [{"step": 2}, {"stream": "other"}, {"key": "8.1.0"}, {}]:
            changed = captured | change
            bridge.receive(f"dpfuse/{changed['stream']}/reports/{changed['key']}", json.dumps(changed).encode())
        [inbox] = live.centre._inboxes.values()
        streams, ids, values = inbox.by_stream(2)
        assert (streams.tolist(), ids.tolist(), values.tolist()) == ([0], [7], [[0.5, -0.5]])


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


def test_the_keys_commands_make_issue_rotate_revoke_and_list(run, tmp_path):
    assert run("keys", "new")[0] == 0
    code, out, err = run("keys", "new")
    assert code == 1 and out == "" and "is there already" in err
    code, out, err = run("keys", "issue", "--out", "sensors", "17", "3-5")
    assert (code, out) == (0, "") and (tmp_path / "sensors").stat().st_mode & 0o077 == 0
    issued = [json.loads(line) for line in (tmp_path / "sensors").read_text().splitlines()]
    keys = Keys.load(tmp_path / "centre.keys")
    assert [one["key"] for one in issued] == ["17.1.0", "3.1.0", "4.1.0", "5.1.0"]
    assert issued[0]["secret"] == keys.issue(17).secret.hex() and issued[0]["password"] == keys.issue(17).password
    assert run("keys", "issue", "--out", "sensors", "17")[0] == 2  # it overwrites nothing
    assert run("keys", "revoke", "17")[0] == run("keys", "rotate", "--overlap", "3")[0] == 0
    code, out, err = run("keys", "rotate")
    assert code == 1 and "has two valid generations" in err
    listed = json.loads(run("keys", "list", "--json")[1])
    assert [one["generation"] for one in listed["generations"]] == [1, 2] and listed["revoked"] == ["17.1.0"]
    text = run("keys", "list")[1]
    assert "generation 2: expires" in text and "revoked 17.1.0" in text
    secrets = [one.secret.hex() for one in KeyFile.load(tmp_path / "centre.keys").generations]
    assert not any(secret in text for secret in secrets)
    for wrong in ["-", "5-3", "x", "1.5", "٣", "-1"]:
        code, out, err = run("keys", "issue", "--out", "more", "--", wrong)
        assert code == 2 and out == ""
    assert run("keys", "revoke")[0] == 2 and run("keys", "rotate", "--overlap", "-1")[0] == 2


def test_the_broker_command_writes_once_and_prints_the_account_of_the_estimator(run, tmp_path):
    run("keys", "new")
    code, out, _ = run("broker", "7", "8")
    assert code == 0 and out.split() == list(Keys.load(tmp_path / "centre.keys").accounts(ESTIMATOR)[0])
    names = [line.split(":")[0] for line in (tmp_path / "broker" / "passwords").read_text().splitlines()]
    assert names == ["centre.1", "estimator.1", "7.1.0", "8.1.0"]
    assert run("broker", "9")[0] == 2
    assert run("broker", "9", "--force")[0] == 0
    assert "\n9.1.0:" in (tmp_path / "broker" / "passwords").read_text()


def test_both_generations_have_users_at_the_broker_and_revoked_keys_have_none(tmp_path):
    file = KeyFile.create(tmp_path / "keys").rotate().revoke([8])
    write_broker(tmp_path / "broker", Keys(file), [7, 8])
    names = [line.split(":")[0] for line in (tmp_path / "broker" / "passwords").read_text().splitlines()]
    assert sorted(names) == sorted(
        ["centre.1", "centre.2", "estimator.1", "estimator.2", "7.1.0", "7.2.0", "8.1.1", "8.2.1"]
    )


@pytest.mark.slow
def test_after_a_revocation_the_centre_refuses_the_reports_and_the_broker_the_sensor(tmp_path):
    """Everything runs on; the sensor's next key counts, and nobody else loses a report."""
    keys = Keys(file := KeyFile.create(tmp_path / "keys" / "centre.keys"))
    seven, eight = keys.issue(7), keys.issue(8)

    def connect(key):
        return client(broker, str(key.name), key.password)

    def report_all(step, *senders):
        for one, key in senders:
            send(one, f"dpfuse/main/reports/{key.name}", json.dumps(key.sign("main", step, [0.5, -0.5])))

    with Broker(tmp_path / "broker", keys, SENSORS) as broker:
        with bridged(broker, centre := Recorder(), empty_hub(), keys=keys) as bridge:
            with connect(seven) as old, connect(eight) as other:
                report_all(1, (old, seven), (other, eight))
                wait_for(lambda: len(centre.got) == 2)
                file.revoke([7])
                time.sleep(1.1)  # the centre looks at its files once a second
                report_all(2, (old, seven), (other, eight))  # the broker still carries both
                wait_for(lambda: len(centre.got) == 3)
                assert centre.got[-1][1:3] == (8, 2) and bridge._intake.counts["revoked"] == 1
                write_broker(tmp_path / "broker", keys, SENSORS, port=broker.port)
                broker.process.send_signal(signal.SIGHUP)
                wait_for(lambda: old.lost)
                with connect(seven) as again, connect(keys.issue(7)) as new:
                    assert again.connected[0].is_failure and not new.connected[0].is_failure
                    report_all(3, (new, keys.issue(7)), (other, eight))
                    wait_for(lambda: len(centre.got) == 5)
                assert [(sensor, step) for _, sensor, step, _ in centre.got[3:]] == [(7, 3), (8, 3)]
                assert not other.lost and bridge.is_connected and keys.issue(7).name.serial == 1
