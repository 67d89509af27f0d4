"""What a stranger can count or measure does not depend on how many sensors are connected.

The probes are fixed: connections until one is refused, statuses, sizes and headers of answers, at both doors.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from dpfuse.public import connections
from dpfuse.public.answers import too_busy
from dpfuse.public.connections import ByAddress, ByIdentity, ConnectionLimits, limited_protocol
from dpfuse.wire.http import make_intake_app
from dpfuse.wire.intake import Holder, Intake
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from support.wire import NDJSON, PATIENCE_S, SECRET, Recorder, lines_of, rig, serving

LIMITS = ConnectionLimits(num_served=30, num_accepted=40)  # of readers
INTAKE = ConnectionLimits(num_served=30, num_accepted=320)
NUM_PLACES, NUM_STRANGERS = 80, 10  # of strangers at the intake: all, and those of one address
NUM_HELD = 30  # sensors for which it holds connections
READ = ["/", "/metrics", "/healthz", "/openapi.json", "/v1/clock", "/v1/guarantee", "/v1/estimator",
        "/v1/relay/settings", "/v1/streams/main/releases", "/v1/streams/main/releases?start=2&limit=1",
        "/v1/streams/nowhere/releases", "/v1/reports", "/nothing"]  # fmt: skip
POSTED = [b"", b"x", b'{"key": "7.1.0"}', b"[" * 5000, b"\n" * 300]


@contextmanager
def two_doors(folder, by_identity=True, limits=LIMITS, intake=INTAKE, wrap=lambda app, admission: app, **options):
    """A centre after two steps with the address of its intake and that of its reading application."""
    with rig(folder, **options) as live, ExitStack() as stack:
        live.tick(), live.tick()
        live.admission = admission = ByIdentity(intake) if by_identity else ByAddress(limits)
        app = make_intake_app(live.watch, live.intake, live.feed, admission if by_identity else None)
        app = wrap(app, admission)
        live.sensors = stack.enter_context(serving(app, http=limited_protocol(admission, too_busy)))
        protocol = limited_protocol(ByAddress(limits), too_busy)
        live.readers = stack.enter_context(serving(wrap(live.reading_app, admission), http=protocol))
        yield live


@contextmanager
def connected_sensors(live, count):
    """So many sensors that have reported and keep their connections."""
    with ExitStack() as stack:
        host, port = live.sensors.removeprefix("http://").split(":")
        for sensor in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            assert post(connection, live.report(sensor, step=live.centre.now)) == {"received": 1, "refused": []}
        yield


def post(connection, report):
    """The answer to a report on that connection."""
    body = lines_of(report)["content"]
    head = "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = HTTPResponse(connection)
    answer.begin()
    return json.loads(answer.read())


def ask(connection):
    """The status of the answer to one request, which is read to its end; 0 if the connection was closed."""
    try:
        connection.sendall(b"GET /v1/clock HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = HTTPResponse(connection)
        answer.begin()
        answer.read()
    except (ConnectionError, HTTPException):
        return 0
    return answer.status


@contextmanager
def open_connections(address, count):
    """So many connections, on each of which one request was answered; and the statuses in order."""
    host, port = address.removeprefix("http://").split(":")
    with ExitStack() as stack:
        opened, statuses = [], []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S)))
            statuses.append(ask(opened[-1]))
        yield opened, statuses


def is_open(connection):
    connection.setblocking(False)
    try:
        return connection.recv(65536) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def probe(live, num_connections=36):
    """Everything that the fixed probes show."""
    shown = []
    with httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S) as client:
        for path in READ:
            for address in (live.sensors, live.readers):
                answer = client.get(address + path)
                # The clock's text has a different length at different moments.
                size = None if "/v1/clock" in path else len(answer.content)
                shown.append((path, answer.status_code, size, sorted(answer.headers)))
        for body in POSTED:
            answer = client.post(f"{live.sensors}/v1/reports", content=body, headers=NDJSON)
            shown.append((answer.status_code, answer.content))
    for address in (live.sensors, live.readers):
        with open_connections(address, num_connections) as (opened, statuses):
            time.sleep(0.2)
            shown.append((statuses, sum(map(is_open, opened))))
    return shown


def what_strangers_see(folder, numbers, num_connections=36, **options):
    """What the probes show at one centre, for each number of connected sensors."""
    seen = []
    with two_doors(folder, **options) as live:
        for num_sensors in numbers:
            with connected_sensors(live, num_sensors):
                seen.append(probe(live, num_connections))
            time.sleep(0.2)  # until the server has noticed that they left
    return seen


def test_fixed_probes_show_the_same_for_any_number_of_connected_sensors(tmp_path):
    nobody, *others = what_strangers_see(tmp_path, (0, 1, 7, NUM_HELD))
    assert all(seen == nobody for seen in others)
    (intake, num_open), (reading, _) = nobody[-2:]
    assert intake == [200] * 36 and num_open == NUM_STRANGERS
    assert reading == [200] * 30 + [503] * 6


def test_a_door_that_counts_everybody_together_shows_the_number_of_sensors(tmp_path):
    """Negative control: with one limit for sensors and strangers the same probes differ."""
    nobody, some = what_strangers_see(tmp_path, (0, 7), by_identity=False)
    assert nobody[:-2] == some[:-2]
    assert [seen[-2][0].count(200) for seen in (nobody, some)] == [30, 23]


def sees_while_sensors_connect(live, num_sensors):
    """What a stranger with as many connections as it may have sees while sensors connect and do not report yet."""
    host, port = live.sensors.removeprefix("http://").split(":")
    with open_connections(live.sensors, NUM_STRANGERS) as (opened, statuses), ExitStack() as stack:
        for number in range(num_sensors):
            come_from = (f"127.0.0.{2 + number}", 0)
            connection = socket.create_connection((host, int(port)), PATIENCE_S, source_address=come_from)
            assert ask(stack.enter_context(connection)) == 200
        seen = statuses + [ask(one) for one in opened]
        with open_connections(live.sensors, 3) as (more, statuses):
            seen += statuses + ["open" if is_open(one) else "closed" for one in opened + more]
    time.sleep(0.1)  # until the server has noticed that they left
    return seen


def test_a_stranger_does_not_see_that_sensors_connect_from_other_addresses(tmp_path, monkeypatch):
    with two_doors(tmp_path) as live:
        nobody, *others = [sees_while_sensors_connect(live, number) for number in (0, 1, 7)]
        assert nobody == [200] * (2 * NUM_STRANGERS + 3) + ["closed"] * 3 + ["open"] * NUM_STRANGERS
        assert all(seen == nobody for seen in others)
        # Negative control: with one limit for the strangers of all addresses it counts the sensors.
        monkeypatch.setattr(connections, "network_of", lambda client: "")
        assert [sees_while_sensors_connect(live, number).count(0) for number in (0, 1, 7)] == [0, 1, 7]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 40), st.sampled_from(["enter", "leave", "hold"]))))
def test_what_becomes_of_a_connection_depends_on_those_of_its_address(events):
    """As long as not all places are taken: seven addresses with ten connections do not take eighty."""

    def follow(events):
        admission, made, fates = ByIdentity(INTAKE), {}, []
        for address, number, event in events:
            one = made.setdefault((address, number), Stub(f"10.0.0.{address}"))
            if event == "enter" and not hasattr(one, "verdict"):
                one.verdict = admission.enter(one)
            elif event == "leave":
                admission.leave(one)
            elif event == "hold":
                one.is_held = admission.hold(one, 100 * address + number)
            own = {key: vars(each) | {"transport": 0} for key, each in made.items() if key[0] == address}
            fates.append((address, repr(own)))
        assert len(admission._strangers) <= NUM_PLACES
        return fates

    fates = follow(events)
    for address in range(8):
        alone = follow([one for one in events if one[0] == address])
        assert alone == [fate for fate in fates if fate[0] == address]


PROBES = {
    "sensors": [("GET", "/v1/clock"), ("POST", "/v1/reports"), ("GET", "/nothing")],
    "readers": [("GET", "/v1/streams/main/releases?limit=1"), ("GET", "/metrics"), ("GET", "/nothing")],
}


def typical_latencies(live, num_rounds=4):
    """The lower quartile of the times of a few fixed requests at each door, in seconds, on connections of a stranger.

    Other programs of the machine add to the longer times.
    """
    times = []
    with ExitStack() as stack:
        doors = {name: HTTPConnection(getattr(live, name).removeprefix("http://")) for name in PROBES}
        for one in doors.values():
            stack.callback(one.close)
        for _ in range(num_rounds):
            times.append([])
            for name, probes in PROBES.items():
                began_at = time.perf_counter()
                for method, path in probes:
                    doors[name].request(method, path, b'{"key": "7.1.0"}' if method == "POST" else None, NDJSON)
                    doors[name].getresponse().read()
                times[-1].append(time.perf_counter() - began_at)
    return np.quantile(times, 0.25, 0)


def latencies(live, num_sensors, num_pairs, seed):
    """Latencies in pairs, shape (doors, pairs, 2), that with sensors first; a coin decides which one comes first."""
    coin, pairs = np.random.default_rng(seed), []
    for _ in range(num_pairs):
        pair = {}
        for is_connected in coin.permutation([True, False]).tolist():
            with connected_sensors(live, num_sensors if is_connected else 0):
                time.sleep(0.03)  # until the server has noticed who came and left
                pair[is_connected] = typical_latencies(live)
        pairs.append([pair[True], pair[False]])
    return np.moveaxis(pairs, -1, 0)


def are_told_by_latency(doors, false_alarms=1e-6):
    """For each door a sign test: if sensors change nothing, a coin decided which of two latencies is the larger one."""
    num_larger = (doors[..., 0] > doors[..., 1]).sum(-1).tolist()
    return [binomtest(number, doors.shape[1]).pvalue < false_alarms / len(doors) for number in num_larger]


def slower_with_sensors(for_each_s):
    """Negative control: doors that take this longer for each connected sensor."""

    def wrap(app, admission):
        async def slower(scope, receive, send):
            time.sleep(for_each_s * len(admission._holds))
            await app(scope, receive, send)

        return slower

    return wrap


@pytest.mark.slow
def test_five_hundred_sensors_show_in_no_count_and_in_no_latency(tmp_path):
    """Sensors are connected and have reported; one false alarm in a million. While they send, the load shows."""
    for name in ("counts", "latencies", "control"):
        (tmp_path / name).mkdir()
    limits = {"limits": ConnectionLimits(190, 700), "intake": ConnectionLimits(190, 5600)}
    options = limits | {"num_connections": 200}
    nobody, *others = what_strangers_see(tmp_path / "counts", (0, 1, 500), **options)
    assert all(seen == nobody for seen in others)
    (intake, num_open), (reading, _) = nobody[-2:]
    assert intake == [200] * 200 and num_open == 5600 // 32
    assert reading == [200] * 190 + [503] * 10
    with two_doors(tmp_path / "latencies", **limits) as live:
        assert are_told_by_latency(latencies(live, 500, 22, seed=1)) == [False, False]
    with two_doors(tmp_path / "control", **limits, wrap=slower_with_sensors(1e-4)) as live:
        assert are_told_by_latency(latencies(live, 150, 22, seed=2)) == [True, True]


@pytest.mark.slow
def test_one_sensor_shows_in_no_latency_at_either_door(tmp_path):
    """It is connected and has reported; one false alarm in a million."""
    for name in ("latencies", "control"):
        (tmp_path / name).mkdir()
    with two_doors(tmp_path / "latencies") as live:
        assert are_told_by_latency(latencies(live, 1, 32, seed=3)) == [False, False]
    with two_doors(tmp_path / "control", wrap=slower_with_sensors(1e-2)) as live:
        assert are_told_by_latency(latencies(live, 1, 32, seed=4)) == [True, True]


class TestHeldConnections:
    def test_a_sensor_keeps_its_connection_however_many_strangers_come(self, tmp_path):
        with two_doors(tmp_path) as live, httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S) as sensor:
            ports = set()
            for _ in range(3):
                answer = sensor.post(f"{live.sensors}/v1/reports", **lines_of(live.report(7, step=live.centre.now)))
                assert answer.json()["received"] == 1
                port = answer.extensions["network_stream"].get_extra_info("client_addr")
                with open_connections(live.sensors, 25) as (_, statuses):
                    assert statuses == [200] * 25
                ports.add(port)
            assert len(ports) == 1

    def test_a_sensor_holds_a_limited_number_and_another_on_the_same_connection_still_holds_it(self):
        admission = ByIdentity(INTAKE, per_sensor=2)
        made = [Stub() for _ in range(4)]
        assert [admission.enter(one) for one in made] == ["serve"] * 4
        assert [admission.hold(one, 7) for one in made] == [True, True, False, False]
        assert admission.hold(made[2], 8) and admission.hold(made[2], 7)
        admission.leave(made[0])
        assert admission.hold(made[3], 7)

    def test_a_hold_goes_from_a_sensor_without_reports_to_another_on_the_same_connection(self, monkeypatch):
        now_s = [1000.0]
        monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
        admission, one, full = ByIdentity(INTAKE, per_sensor=1), Stub(), Stub()
        admission.enter(one), admission.enter(full)
        assert admission.hold(one, 7) and admission.hold(full, 9)
        now_s[0] += 20
        assert admission.hold(one, 8) and admission.hold(full, 9) and admission._counts == {7: 1, 9: 1}
        now_s[0] += 20
        assert not admission.hold(one, 9) and admission._counts == {7: 1, 9: 1}
        assert admission.hold(one, 8) and admission._counts == {8: 1, 9: 1}
        admission.answered(one)
        admission.leave(one), admission.leave(full)
        assert admission._counts == {} and len(admission._strangers) == 0

    def test_a_publisher_takes_no_place_of_the_sensor_with_its_number(self):
        admission, made = ByIdentity(INTAKE, per_sensor=1), [Stub() for _ in range(3)]
        keys, ticker = Keys.from_secret(SECRET), SimpleNamespace(clock=lambda: {"step": 1})
        intake = Intake(Recorder(), keys)
        for one in made:
            admission.enter(one)
        inputs, report = (
            json.dumps(key.sign("main", 1, [0.5])).encode() for key in (keys.issue_publisher(7), keys.issue(7))
        )
        intake.accept_inputs([inputs], Holder(admission, made[0], ticker))
        for one in made[1:]:
            intake.accept([report], holder=Holder(admission, one, ticker))
        assert list(admission._holds) == made[:2]

    def test_strangers_close_the_oldest_stranger_of_their_address_and_nobody_else(self):
        admission = ByIdentity(INTAKE)
        sensor, other = Stub(), Stub("10.0.0.2")
        admission.enter(sensor), admission.enter(other)
        assert admission.hold(sensor, 7)
        strangers = [Stub() for _ in range(NUM_STRANGERS + 3)]
        for one in strangers:
            assert admission.enter(one) == "serve"
        assert [one.is_aborted for one in strangers] == [True] * 3 + [False] * NUM_STRANGERS
        assert not sensor.is_aborted and not other.is_aborted
        assert not admission.hold(strangers[0], 8)

    def test_if_all_places_are_taken_an_address_with_the_most_loses_its_oldest_connection(self):
        admission, made = ByIdentity(INTAKE), []
        for number in range(8):
            made += [Stub(f"10.0.0.{number}") for _ in range(NUM_STRANGERS)]
        made += [Stub(f"10.0.1.{number}") for number in range(3)]
        for one in made:
            assert admission.enter(one) == "serve"
        assert [place for place, one in enumerate(made) if one.is_aborted] == [0, 10, 20]
        for one in made:
            admission.leave(one)
        strangers = admission._strangers
        assert len(strangers) == 0 and strangers._of_address == strangers._by_number == {}

    @pytest.mark.parametrize(("per_address", "most"), [(None, NUM_STRANGERS), (20, 20), (0, NUM_PLACES)])
    def test_behind_a_proxy_one_address_may_have_all_places_of_strangers(self, per_address, most):
        admission, sensor, other = ByIdentity(INTAKE, per_address=per_address), Stub(), Stub("10.0.0.2")
        admission.enter(sensor)
        assert admission.hold(sensor, 7)
        made = [Stub() for _ in range(most + 1)]
        for one in made:
            assert admission.enter(one) == "serve"
        assert [one.is_aborted for one in made] == [True] + most * [False]
        assert admission.enter(other) == "serve" and not other.is_aborted and not sensor.is_aborted

    def test_a_report_that_is_repeated_later_holds_no_connection(self, tmp_path):
        """Its step is over, so somebody who has captured it does not count as the sensor."""
        with two_doors(tmp_path) as live, ExitStack() as stack:
            host, port = live.sensors.removeprefix("http://").split(":")

            def is_held(step):
                connection = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
                assert post(connection, live.report(7, step=step)) == {"received": 1, "refused": []}
                with open_connections(live.sensors, NUM_STRANGERS) as (_, statuses):
                    assert statuses == [200] * NUM_STRANGERS
                    return is_open(connection)

            now = live.centre.now
            assert [is_held(step) for step in range(now - 2, now + 4)] == [False, False, True, True, False, False]

    def test_a_hold_ends_without_valid_reports_for_half_a_minute(self, tmp_path, monkeypatch):
        """So it does after the key was revoked; the sensor then has this place for another connection."""
        keys = Keys(file := KeyFile.create(tmp_path / "keys" / "centre.keys"))
        now_s = [1000.0]
        monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
        (tmp_path / "centre").mkdir()
        with two_doors(tmp_path / "centre", keys=keys) as live, ExitStack() as stack:
            host, port = live.sensors.removeprefix("http://").split(":")
            made = [stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S)) for _ in range(2)]
            reports = [live.report(sensor, step=live.centre.now) for sensor in (7, 8)]
            assert [post(*pair) for pair in zip(made, reports, strict=True)] == 2 * [{"received": 1, "refused": []}]
            file.revoke([7])
            keys.look_for_changes(at_once=True)
            now_s[0] += 29.9
            assert [post(*pair)["received"] for pair in zip(made, reports, strict=True)] == [0, 1]
            assert live.admission._counts == {7: 1, 8: 1}
            now_s[0] += 0.2
            assert list(map(ask, made)) == [200, 200]
            assert live.admission._counts == {8: 1}
            with open_connections(live.sensors, NUM_STRANGERS):
                assert list(map(is_open, made)) == [False, True]

    def test_readers_are_limited_by_address_and_a_network_of_ipv6_is_one_address(self):
        admission = ByAddress(LIMITS, per_address=2)
        clients = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8::ffff:3",
                   "2001:db8:0:1::1", "::ffff:10.0.0.2", "::ffff:10.0.0.2"]  # fmt: skip
        made = [Stub(client) for client in clients]
        verdicts = [admission.enter(one) for one in made]
        serve, refuse = "serve", "refuse"
        assert verdicts == [serve, serve, refuse, serve, serve, serve, refuse, serve, serve, refuse]
        for one in made[:3]:
            admission.leave(one)
        assert admission.enter(Stub("10.0.0.1")) == "serve"


class Stub:
    """In the place of a connection."""

    def __init__(self, address="10.0.0.1"):
        self.client, self.transport, self.is_aborted = (address, 1), self, False

    def abort(self):
        self.is_aborted = True


class TestDeadlines:
    @pytest.fixture
    def door(self, tmp_path, monkeypatch):
        monkeypatch.setattr(connections, "_REQUEST_S", 0.5)
        with rig(tmp_path) as live, ExitStack() as stack:
            protocol = limited_protocol(ByAddress(LIMITS), too_busy)
            host, port = stack.enter_context(serving(live.app, http=protocol)).removeprefix("http://").split(":")
            yield lambda: stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))

    @pytest.mark.parametrize("begun", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab"])
    def test_a_first_and_a_second_request_that_do_not_arrive_whole_are_ended(self, door, begun):
        for is_second in (False, True):
            connection = door()
            if is_second:
                assert ask(connection) == 200
            connection.sendall(begun)
            received = connection.makefile("rb").read()  # until the server closes the connection
            assert received.count(b"HTTP/1.1 200") == (len(begun) > 1)

    def test_a_client_that_sends_a_byte_now_and_then_is_ended(self, door):
        connection = door()
        connection.settimeout(0.1)
        with pytest.raises(ConnectionError):
            for byte in b"GET /v1/clock HTTP/1.1\r\nX-Slow: " + b"a" * 1000:
                connection.sendall(bytes([byte]))
                try:
                    if connection.recv(65536) == b"":
                        raise ConnectionError
                except TimeoutError:
                    continue

    def test_a_client_that_goes_on_asking_is_served_for_longer_than_one_deadline(self, door):
        connection = door()
        for _ in range(6):
            assert ask(connection) == 200
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(PATIENCE_S)
