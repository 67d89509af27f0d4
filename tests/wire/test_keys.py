"""Keys: who may report as which sensor, for how long, and what a captured report is worth."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import stat
import struct
import subprocess
import sys
import time

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from hypothesis import example, given
from hypothesis import strategies as st

from dpfuse.errors import FileRefused
from dpfuse.wire import keys as keys_module
from dpfuse.wire.intake import Intake
from dpfuse.wire.key_file import Generation, KeyFile
from dpfuse.wire.keys import KeyName, Keys
from dpfuse.wire.messages import MAX_REPORT, parse_report, write_report
from support.wire import Recorder

KEYS = Keys.from_secret(b"s" * 32)


def check(keys, report):
    return keys.check(parse_report(json.dumps(report).encode()))[:2]


@pytest.fixture
def path(tmp_path):
    KeyFile.create(tmp_path / "centre.keys")
    return tmp_path / "centre.keys"


@given(st.integers(0, 2**63 - 1), st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5))
def test_a_signed_report_names_its_sensor(sensor, values):
    assert check(KEYS, KEYS.issue(sensor).sign("main", 5, values)) == (sensor, "")


def check_inputs(keys, message):
    return keys.check_inputs(parse_report(json.dumps(message).encode()))[:2]


@pytest.mark.parametrize(
    "change",
    [{"step": 44}, {"stream": "other"}, {"values": [3.0, None, 0.0]}, {"values": [3.5, None]}, {"values": [3.0, 0.0]},
     {"key": "p2.1.0"}, {"key": "p1.1.1"}, {"key": "p1.2.0"}, {"key": "1.1.0"}, {"key": "pp1.1.0"}, {"key": "p01.1.0"},
     {"mac": "0" * 32}],
)  # fmt: skip
def test_captured_inputs_cannot_be_used_for_anything_else(change):
    signed = KEYS.issue_publisher(1).sign("main", 43, [3.0, None])
    assert signed["key"] == "p1.1.0" and check_inputs(KEYS, signed) == (1, "")
    assert check_inputs(KEYS, signed | change)[1] in ("wrong MAC", "unknown key")


def test_a_publishers_key_is_revoked_and_expires_as_a_sensors_does_and_no_sensors_with_it(path, monkeypatch):
    keys = Keys.load(path)
    signed, report = keys.issue_publisher(1).sign("main", 1, [3.0]), keys.issue(1).sign("main", 1, [3.0])
    KeyFile.load(path).revoke([1], "p")
    keys.look_for_changes(at_once=True)
    assert check_inputs(keys, signed) == (-1, "revoked") and check(keys, report) == (1, "")
    other = keys.issue_publisher(1).sign("main", 1, [3.0])
    assert other["key"] == "p1.1.1" and check_inputs(keys, other) == (1, "")
    monkeypatch.setattr(keys_module.time, "time", lambda: 1e12)
    assert check_inputs(keys, other) == (-1, "expired")


def test_a_mac_is_the_documented_hmac_under_the_documented_hkdf():
    """Written out with the standard library alone, as a sensor would do it."""
    extracted = hmac.new(bytes(32), b"s" * 32, hashlib.sha256).digest()
    secret = hmac.new(extracted, b"dpfuse 1 intake 17.1.0\x01", hashlib.sha256).digest()
    content = struct.pack(">QIIqB", 17, 1, 0, 43, 4) + b"main".ljust(64, b"\0") + struct.pack(">dd", 103.2, 9.0)
    assert KEYS.issue(17).secret == secret
    assert KEYS.issue(17).sign("main", 43, [103.2, 9])["mac"] == hmac.new(secret, content, "sha256").hexdigest()[:32]


@pytest.mark.parametrize(
    "change",
    [{"step": 44}, {"stream": "other"}, {"stream": "mai"}, {"values": [103.2, 9.8, 0.0]}, {"values": [103.2]},
     {"values": [103.2, 9.80001]}, {"values": []}, {"key": "18.1.0"}, {"key": "17.1.1"}, {"mac": ""},
     {"mac": "0" * 32}, {"key": "17.2.0"}, {"key": "017.1.0"}, {"key": "17.1"}, {"key": "17.1.0 "}, {"key": "١٧.1.0"},
     {"key": f"{2**63}.1.0"}, {"key": "-17.1.0"}],
)  # fmt: skip
def test_a_captured_report_cannot_be_used_for_anything_else(change):
    report = KEYS.issue(17).sign("main", 43, [103.2, 9.8])
    assert check(KEYS, report) == (17, "")  # also when the key comes from the cache
    assert check(KEYS, report | change)[1] != ""
    for wrong in (report["mac"].upper(), report["mac"] + "0", report["mac"][:-1], " " + report["mac"]):
        assert wrong == report["mac"] or check(KEYS, report | {"mac": wrong}) == (-1, "wrong MAC")


@given(st.integers(0, 2**63 - 1), st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40))
def test_only_the_centre_reads_a_sealed_report(sensor, values):
    report = KEYS.issue(sensor).seal("main", 5, values)
    assert KEYS.check(parse_report(json.dumps(report).encode())) == (sensor, "", values)
    assert check(Keys.from_secret(b"t" * 32), report) == (-1, "wrong MAC")


def test_a_sealed_report_is_the_documented_siv_and_shows_neither_values_nor_their_number():
    key = KEYS.issue(17)
    sealing_key = hmac.new(key.secret, b"dpfuse 1 seal", hashlib.sha512).digest()
    bound = struct.pack(">QIIqB", 17, 1, 0, 43, 4) + b"main".ljust(64, b"\0")
    content = struct.pack(">Hdd", 2, 103.2, 9.8) + bytes(8 * 14)
    report = key.seal("main", 43, [103.2, 9.8])
    assert report["sealed"] == AESSIV(sealing_key).encrypt(content, [bound]).hex()
    assert key.seal("main", 43, [103.2, 9.8]) == report  # nothing in it is drawn, so nothing can be drawn twice
    others = [key.seal("main", 43, values)["sealed"] for values in ([], [103.2], [-1e300] * 16)]
    assert {len(sealed) for sealed in (report["sealed"], *others)} == {292}
    assert len({sealed[at : at + 16] for sealed in (report["sealed"], *others) for at in range(0, 292, 16)}) == 4 * 19
    assert struct.pack(">d", 103.2).hex() not in report["sealed"]


@pytest.mark.parametrize(
    "change", [{"step": 44}, {"stream": "other"}, {"key": "18.1.0"}, {"key": "17.1.1"}, {"sealed": "00" * 15}]
)
def test_a_captured_sealed_report_cannot_be_used_for_anything_else(change):
    report = KEYS.issue(17).seal("main", 43, [103.2, 9.8])
    for _ in range(2):  # also when the key comes from the cache
        assert check(KEYS, report | change) == (-1, "wrong MAC")
        for at in range(0, 292, 7):
            flipped = report["sealed"][:at] + f"{int(report['sealed'][at], 16) ^ 1:x}" + report["sealed"][at + 1 :]
            assert check(KEYS, report | {"sealed": flipped}) == (-1, "wrong MAC")
        assert check(KEYS, report) == (17, "")


def test_a_revoked_key_is_looked_for_after_its_mac_so_that_it_is_not_refused_faster(path):
    KeyFile.load(path).revoke([17])
    keys = Keys.load(path)
    wrong = KEYS.issue(17).sign("main", 43, [1.0])
    assert check(keys, wrong) == (-1, "wrong MAC")


def test_a_repeated_report_counts_once(tmp_path):
    from support.wire import rig

    with rig(tmp_path) as live:
        line = json.dumps(live.report(7, [1, 1])).encode()
        assert live.intake.accept([line] * 3) == []
        [inbox] = live.centre._inboxes.values()
        assert len(inbox.by_stream(2)[1]) == 1


def test_the_secret_of_one_purpose_says_nothing_of_another():
    key, other = KEYS.issue(17), KEYS.issue(18)
    secrets = {key.secret.hex(), key.password, other.secret.hex(), other.password, (b"s" * 32).hex()}
    secrets |= {KEYS.accounts(role)[0].password for role in ("centre", "estimator")}
    assert len(secrets) == 7
    assert key.secret.hex() not in json.dumps(key.sign("main", 1, [1.0]))


@pytest.mark.parametrize("sensor", [-1, 2**63, True, 1.0, "1"])
def test_only_valid_ids_get_keys(sensor):
    with pytest.raises(ValueError, match="sensor must be a whole number from 0"):
        KEYS.issue(sensor)


def test_the_cache_of_keys_is_bounded_and_holds_only_keys_that_signed_a_report(monkeypatch):
    monkeypatch.setattr(keys_module, "_CACHE_SIZE", 3)
    keys = Keys.from_secret(b"s" * 32)
    for sensor in range(10):
        check(keys, KEYS.issue(sensor).sign("main", 1, []) | {"mac": "0" * 32})
        remembered = [name for known in keys._state.known.values() for name in known]
        assert f"{sensor}.1.0" not in remembered
        assert check(keys, KEYS.issue(sensor).sign("main", 1, [])) == (sensor, "")
        assert check(keys, KEYS.issue(sensor).seal("main", 1, [])) == (sensor, "")
        assert all(0 < len(known) <= 3 for known in keys._state.known.values())


@pytest.mark.parametrize("has_sent", [["sign"], ["seal"], ["sign", "seal"]])
@pytest.mark.parametrize("expires_at", [float("inf"), 0.0])
def test_a_refusal_takes_the_same_work_whether_or_not_the_sensor_has_reported(monkeypatch, expires_at, has_sent):
    """Else anybody could learn who reports from the time that many wrong lines take."""
    work, forged = [], {"sign": {"mac": "0" * 32}, "seal": {"sealed": "00" * 146}}

    def note(place, name):
        do = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given, **named: work.append(name) or do(*given, **named))

    note(Generation, "derive")
    note(KeyName, "parse")
    note(hmac, "new")
    for name in ("signed_bytes", "unpad_values", "_make_sealer"):
        note(keys_module, name)
    keys = Keys.from_secret(b"s" * 32)
    for form in has_sent:
        assert check(keys, getattr(KEYS.issue(17), form)("main", 1, [2.0])) == (17, "")
    if not expires_at:
        monkeypatch.setattr(time, "time", lambda: float("inf"))
    for form in ("seal", "sign"):
        done = {}
        for sensor in (16, 17, 18):
            report = getattr(KEYS.issue(sensor), form)("main", 1, [2.0]) | forged[form]
            work.clear()
            assert check(keys, report)[0] == -1
            done[sensor] = list(work)
        assert done[16] == done[17] == done[18]
        assert {*done[17]} >= {"derive", "parse", "signed_bytes", "_make_sealer" if form == "seal" else "new"}


def test_no_repr_shows_a_secret():
    shown = repr((KEYS, KEYS.issue(3), Generation(1, b"s" * 32), KEYS._file))
    assert "ssss" not in shown and KEYS.issue(3).secret.hex() not in shown and KEYS.issue(3).password not in shown


def test_a_key_expires_with_its_generation():
    key = KEYS.issue(7)
    for expires_at, reason in [(time.time() + 60, ""), (time.time() - 1, "expired")]:
        keys = Keys(KeyFile((Generation(1, b"s" * 32, expires_at), Generation(2, b"t" * 32))))
        assert check(keys, key.sign("main", 1, [1.0]))[1] == reason


def test_after_a_rotation_keys_of_both_generations_are_valid_until_the_old_one_expires(path):
    centre = Keys.load(path)
    old = centre.issue(7)
    KeyFile.load(path).rotate(overlap_days=1)
    new = Keys.load(path).issue(7)
    assert (str(old.name), str(new.name)) == ("7.1.0", "7.2.0")
    # The running centre notices the rotation when it meets the first new key.
    assert [check(centre, key.sign("main", 1, [1.0])) for key in (new, old)] == [(7, ""), (7, "")]
    file = KeyFile.load(path)
    assert file.generations[0].expires_at < time.time() + 86400.5 < file.generations[1].expires_at
    with pytest.raises(FileRefused, match="has two valid generations; rotate again after 20"):
        file.rotate()


def test_a_rotation_without_overlap_ends_the_old_generation_at_once_and_may_be_repeated(path):
    old = Keys.load(path).issue(7)
    KeyFile.load(path).rotate(overlap_days=0)
    file = KeyFile.load(path).rotate(overlap_days=0)
    assert [one.number for one in file.generations] == [2, 3]
    assert check(Keys.load(path), old.sign("main", 1, [1.0])) == (-1, "unknown key")


def test_a_revoked_key_is_refused_while_the_centre_runs_and_nobody_else_is_affected(path, monkeypatch):
    monkeypatch.setattr(keys_module, "_LOOK_EVERY_S", 0.0)
    centre, keys = Recorder(), Keys.load(path)
    intake, old = Intake(centre, keys), {sensor: keys.issue(sensor) for sensor in (7, 8)}

    def send(key):
        return intake.accept([json.dumps(key.sign("main", 1, [1.0])).encode()])

    assert send(old[7]) == send(old[8]) == []
    KeyFile.load(path).revoke([7])
    assert send(old[7]) == [0] and send(old[8]) == []
    new = Keys.load(path).issue(7)
    assert str(new.name) == "7.1.1" and send(new) == []
    KeyFile.load(path).revoke([7])
    assert send(new) == [0] and str(Keys.load(path).issue(7).name) == "7.1.2"


def test_changes_by_two_processes_at_the_same_time_are_all_kept(path):
    """Each process changes the file as it read it before both began."""
    code = """
import sys
from dpfuse.wire.key_file import KeyFile
file, first = KeyFile.load(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for sensor in range(first, first + 25):
    file.revoke([sensor])
"""
    command = [sys.executable, "-c", code, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "0"], **pipes) as one, subprocess.Popen([*command, "100"], **pipes) as other:
        for each in (one, other):
            assert each.stdout.readline() == "ready\n"
        for each in (one, other):
            each.stdin.write("\n")
            each.stdin.flush()
        KeyFile.load(path).rotate()
        for each in (one, other):
            each.communicate(timeout=60)
    file = KeyFile.load(path)
    assert (one.returncode, other.returncode) == (0, 0)
    assert {f"{sensor}.1.0" for first in (0, 100) for sensor in range(first, first + 25)} <= file.revoked
    assert [one.number for one in file.generations] == [1, 2]


@pytest.mark.parametrize("damage", ["broken", "gone", "readable", "revoked is gone"])
def test_damaged_files_change_no_key_of_a_running_centre_and_are_logged_once(path, monkeypatch, caplog, damage):
    monkeypatch.setattr(keys_module, "_LOOK_EVERY_S", 0.0)
    KeyFile.load(path).revoke([8])
    keys = Keys.load(path)
    good, revoked = keys.issue(7), KeyName(8, 1, 0)
    {
        "broken": lambda: path.write_text("{"),
        "gone": path.unlink,
        "readable": lambda: path.chmod(0o644),
        "revoked is gone": path.with_name("centre.keys.revoked").unlink,
    }[damage]()
    for _ in range(3):
        keys.look_for_changes()
    assert check(keys, good.sign("main", 1, [1.0])) == (7, "")
    secret = keys._file.newest.derive(f"intake {revoked}")
    assert check(keys, good._replace(name=revoked, secret=secret).sign("main", 1, [1.0])) == (-1, "revoked")
    assert caplog.text.count("the keys stay as they are") == 1


def test_a_key_file_is_never_overwritten_and_only_its_owner_may_read_it(path):
    KeyFile.load(path).revoke([7])
    for one in (path, path.with_name("centre.keys.revoked")):
        assert stat.S_IMODE(one.stat().st_mode) == 0o600
    with pytest.raises(FileRefused, match="is there already"):
        KeyFile.create(path)


def test_a_key_file_that_is_missing_malformed_or_readable_by_others_is_refused(path, tmp_path):
    with pytest.raises(FileRefused, match="no key file at .*dpfuse keys new"):
        Keys.load(tmp_path / "none")
    path.chmod(0o640)
    with pytest.raises(FileRefused, match="chmod 600"):
        Keys.load(path)
    path.chmod(0o600)
    content = json.loads(path.read_text())
    generation = content["generations"][0]
    for bad in [{}, {"version": 2}, {"generations": []}, {"generations": [generation | {"secret": "hunter2"}]},
                {"generations": [generation, generation]}, {"generations": [generation | {"expires": "soon"}]},
                {"generations": [generation | {"number": "1"}]}, {"generations": 5}]:  # fmt: skip
        path.write_text(json.dumps(content | bad if bad else {}))
        with pytest.raises(FileRefused, match="must be a key file of version 1") as refusal:
            Keys.load(path)
        assert "hunter2" not in str(refusal.value)
    path.write_text(json.dumps(content))
    revoked = path.with_name("centre.keys.revoked")
    revoked.write_text("all\n")
    revoked.chmod(0o600)
    with pytest.raises(FileRefused, match="must hold one key a line"):
        Keys.load(path)


_ANY_VALUE = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**1000), 2**1000)


@pytest.mark.parametrize("form", ["sign", "seal"])
@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from(["a", "a" * 64]),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(_ANY_VALUE, min_size=2, max_size=2),
)
@example(0, "a", 0, [0.0, 0.0])
@example(2**63 - 1, "a" * 64, -(2**63), [-2.2250738585072014e-308, -1.7976931348623157e308])
@example(0, "a", 0, [-1.2345678901234567e-5, 12345678901234567])
def test_the_line_of_a_report_has_one_length_for_all_sensors_and_values(form, sensor, stream, step, values):
    line = write_report(getattr(KEYS.issue(sensor), form)(stream, step, values))
    assert len(line) == {"sign": 216 + 26 * 2, "seal": 216 + 292}[form]
    assert KEYS.check(parse_report(line))[:2] == (sensor, "")


@pytest.mark.parametrize("number", [149, 150, 200])
def test_a_report_with_many_channels_is_padded_to_the_longest_line_that_the_centre_takes(number):
    for value in (None, 0.5, 1.5):
        line = write_report(KEYS.issue(17).sign("main", 43, [value] * number))
        assert len(line) == min(216 + 26 * number, MAX_REPORT)
        assert KEYS.check(parse_report(line))[:2] == (17, "")


@given(st.text(max_size=30) | st.from_regex(r"[0-9]{1,25}\.[0-9]{1,25}\.[0-9]{1,25}", fullmatch=True))
def test_a_key_name_is_read_back_or_refused(text):
    name = KeyName.parse(text)
    assert name is None or str(name) == text


def test_refused_reports_are_logged_at_most_once_a_minute_without_a_measurement(caplog, monkeypatch):
    intake, key = Intake(Recorder(), KEYS), KEYS.issue(17)
    forged = key.sign("main", 1, [271828.1828, 0.5]) | {"mac": "0" * 32}
    lines = [json.dumps(forged).encode(), b'{"values": [271828.1828]}', b"271828.1828"]
    for _ in range(10_000 // len(lines) + 1):
        intake.accept(lines)
    assert caplog.text.count("reports refused") == 1 and "271828" not in caplog.text
    intake._refusals.write()
    assert "6,668 not a report, 3,333 wrong MAC; keys claimed: 17.1.0" in caplog.text
    caplog.clear()
    intake.accept([json.dumps(key.sign("main", 1, [1.0])).encode()] * 10)
    assert caplog.text == ""


def test_a_missing_channel_is_null_and_changes_no_width():
    key = KEYS.issue(17)
    for report in (key.sign("main", 43, [None, 9.8]), key.seal("main", 43, [None, 9.8])):
        sensor, refusal, values = KEYS.check(parse_report(json.dumps(report).encode()))
        assert (sensor, refusal) == (17, "") and math.isnan(values[0]) and values[1] == 9.8
        assert check(KEYS, report | {"step": 44}) == (-1, "wrong MAC")
    assert key.sign("main", 43, [None, 9.8])["values"] == [None, 9.8]
    assert check(KEYS, key.sign("main", 43, [None, 9.8]) | {"values": [0, 9.8]}) == (-1, "wrong MAC")
    assert len(key.seal("main", 43, [None, 9.8])["sealed"]) == len(key.seal("main", 43, [103.2, 9.8])["sealed"])


def test_a_key_file_in_a_new_folder_makes_it_for_its_owner_alone(tmp_path):
    KeyFile.create(tmp_path / "new/centre/centre.keys")
    assert all(stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700 for name in ("new", "new/centre"))
