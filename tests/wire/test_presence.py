"""What a stranger can count or measure does not depend on how many sensors are connected.

The probes are fixed: connections until one is refused, statuses, sizes and headers of answers, at both doors.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPException, HTTPResponse

import httpx
import numpy as np
import pytest
from scipy.stats import binomtest

from dpfuse.public import connections
from dpfuse.public.answers import too_busy
from dpfuse.public.connections import ByAddress, ByIdentity, ConnectionLimits, limited_protocol
from dpfuse.wire.http import make_intake_app
from support.wire import NDJSON, PATIENCE_S, lines_of, rig, serving

LIMITS = ConnectionLimits(num_served=30, num_accepted=40)
NUM_STRANGERS = 10  # a quarter of the connections of the intake
NUM_HELD = 30  # sensors for which it holds connections
READ = ["/", "/metrics", "/healthz", "/openapi.json", "/v1/clock", "/v1/guarantee", "/v1/estimator",
        "/v1/relay/settings", "/v1/streams/main/releases", "/v1/streams/main/releases?start=2&limit=1",
        "/v1/streams/nowhere/releases", "/v1/reports", "/nothing"]  # fmt: skip
POSTED = [b"", b"x", b'{"key": "7.1.0"}', b"[" * 5000, b"\n" * 300]


@contextmanager
def two_doors(folder, by_identity=True, limits=LIMITS, wrap=lambda app, admission: app):
    """A centre after two steps with the address of its intake and that of its reading application."""
    with rig(folder) as live, ExitStack() as stack:
        live.tick(), live.tick()
        admission = ByIdentity(limits) if by_identity else ByAddress(limits)
        app = make_intake_app(live.watch, live.intake, live.feed, admission if by_identity else None)
        app = wrap(app, admission)
        live.sensors = stack.enter_context(serving(app, http=limited_protocol(admission, too_busy)))
        protocol = limited_protocol(ByAddress(limits), too_busy)
        live.readers = stack.enter_context(serving(live.reading_app, http=protocol))
        yield live


@contextmanager
def connected_sensors(live, count):
    """So many sensors that have reported and keep their connections."""
    with ExitStack() as stack:
        host, port = live.sensors.removeprefix("http://").split(":")
        for sensor in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            body = lines_of(live.report(sensor))["content"]
            head = "POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = HTTPResponse(connection)
            answer.begin()
            assert json.loads(answer.read()) == {"received": 1, "refused": []}
        yield


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


def typical_latency(live):
    """The median time in seconds of a few fixed requests at the intake, on a connection of a stranger."""
    times = []
    with httpx.Client(base_url=live.sensors, trust_env=False, verify=False, timeout=PATIENCE_S) as client:
        for _ in range(15):
            began_at = time.perf_counter()
            client.get("/v1/clock")
            client.post("/v1/reports", content=b'{"key": "7.1.0"}', headers=NDJSON)
            client.get("/nothing")
            times.append(time.perf_counter() - began_at)
    return float(np.median(times))


def latencies(live, num_sensors, num_pairs, seed):
    """Latencies in pairs, shape (pairs, 2), that with sensors first; a coin decides which one is measured first."""
    coin, pairs = np.random.default_rng(seed), []
    for _ in range(num_pairs):
        pair = {}
        for is_connected in coin.permutation([True, False]).tolist():
            with connected_sensors(live, num_sensors if is_connected else 0):
                time.sleep(0.1)  # until the server has noticed who came and left
                pair[is_connected] = typical_latency(live)
        pairs.append([pair[True], pair[False]])
    return np.array(pairs)


def is_told_by_latency(pairs, false_alarms=1e-6):
    """A sign test: if sensors change nothing, a coin decided which of the two latencies is the larger one."""
    num_larger = int((pairs[:, 0] > pairs[:, 1]).sum())
    return binomtest(num_larger, len(pairs)).pvalue < false_alarms


def slower_with_sensors(app, admission):
    """Negative control: an intake that takes twenty microseconds longer for each connected sensor."""

    async def slower(scope, receive, send):
        time.sleep(2e-5 * len(admission._holders))
        await app(scope, receive, send)

    return slower


@pytest.mark.slow
def test_five_hundred_sensors_show_in_no_count_and_in_no_latency(tmp_path):
    """Sensors are connected and have reported; one false alarm in a million. While they send, the load shows."""
    for name in ("counts", "latencies", "control"):
        (tmp_path / name).mkdir()
    limits = ConnectionLimits(num_served=190, num_accepted=700)
    options = {"limits": limits, "num_connections": 200}
    nobody, *others = what_strangers_see(tmp_path / "counts", (0, 1, 500), **options)
    assert all(seen == nobody for seen in others)
    (intake, num_open), (reading, _) = nobody[-2:]
    assert intake == [200] * 200 and num_open == 700 // 4
    assert reading == [200] * 190 + [503] * 10
    with two_doors(tmp_path / "latencies", limits=limits) as live:
        assert not is_told_by_latency(latencies(live, 500, 22, seed=1))
    with two_doors(tmp_path / "control", limits=limits, wrap=slower_with_sensors) as live:
        assert is_told_by_latency(latencies(live, 150, 22, seed=2))


class TestHeldConnections:
    def test_a_sensor_keeps_its_connection_however_many_strangers_come(self, tmp_path):
        with two_doors(tmp_path) as live, httpx.Client(trust_env=False, verify=False, timeout=PATIENCE_S) as sensor:
            ports = set()
            for step in range(1, 4):
                answer = sensor.post(f"{live.sensors}/v1/reports", **lines_of(live.report(7, step=step)))
                assert answer.json()["received"] == 1
                port = answer.extensions["network_stream"].get_extra_info("client_addr")
                with open_connections(live.sensors, 25) as (_, statuses):
                    assert statuses == [200] * 25
                ports.add(port)
            assert len(ports) == 1

    def test_a_sensor_holds_a_limited_number_and_another_on_the_same_connection_still_holds_it(self):
        admission = ByIdentity(LIMITS, per_sensor=2)
        made = [Stub() for _ in range(4)]
        assert [admission.enter(one) for one in made] == ["serve"] * 4
        assert [admission.hold(one, 7) for one in made] == [True, True, False, False]
        assert admission.hold(made[2], 8) and admission.hold(made[2], 7)
        admission.leave(made[0])
        assert admission.hold(made[3], 7)

    def test_strangers_close_the_oldest_stranger_and_nobody_else(self):
        admission = ByIdentity(LIMITS)
        sensor = Stub()
        admission.enter(sensor)
        assert admission.hold(sensor, 7)
        strangers = [Stub() for _ in range(NUM_STRANGERS + 3)]
        for one in strangers:
            assert admission.enter(one) == "serve"
        assert [one.is_aborted for one in strangers] == [True] * 3 + [False] * NUM_STRANGERS
        assert not sensor.is_aborted
        assert not admission.hold(strangers[0], 8)

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
