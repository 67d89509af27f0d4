"""Clients that send too much, too slowly or not at all, and the number of connections."""

from __future__ import annotations

import json
import logging
import resource
import socket
import threading
import tracemalloc
from contextlib import ExitStack, suppress

import httpx
import pytest

from dpfuse.public import connections
from dpfuse.public.answers import too_busy
from dpfuse.public.listening import bind
from dpfuse.wire import http as http_module
from support.wire import (
    JSON,
    NDJSON,
    PATIENCE_S,
    Recorder,
    get,
    lines_of,
    make_report,
    rig,
    serving,
    unfinished,
    wait_for,
)


@pytest.fixture
def live(tmp_path):
    with rig(tmp_path) as parts:
        yield parts


@pytest.fixture
def recorded(tmp_path):
    """With a recorder in the centre's place."""
    with rig(tmp_path, centre=Recorder()) as parts:
        yield parts


@pytest.mark.parametrize(("path", "headers", "status"), [("/v1/reports", NDJSON, 408), ("/v1/replay/truth", JSON, 413)])
def test_an_endless_body_is_ended_and_no_more_than_a_line_of_it_is_kept(tmp_path, monkeypatch, path, headers, status):
    monkeypatch.setattr(http_module, "_BODY_S", 0.5)

    def endless():
        while True:
            yield b" " * 65536

    with rig(tmp_path, centre=Recorder(), replay=True) as recorded, serving(recorded.app) as address:
        tracemalloc.start()
        with suppress(httpx.TransportError):  # the connection may be closed during a write
            answer = httpx.post(f"{address}{path}", content=endless(), headers=headers, trust_env=False)
            assert answer.status_code == status
        assert tracemalloc.get_traced_memory()[1] < 8e6
        tracemalloc.stop()
        good = httpx.post(f"{address}/v1/reports", **lines_of(recorded.report(7)), trust_env=False, timeout=PATIENCE_S)
        assert good.json()["received"] == 1


def test_a_body_that_arrives_too_slowly_is_refused(recorded, monkeypatch):
    monkeypatch.setattr(http_module, "_BODY_S", 0.3)
    with serving(recorded.app) as address:
        with unfinished(address) as slow:
            assert b"408" in slow.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("is_broken", [False, True])
def test_lines_that_came_before_the_time_was_over_or_the_connection_broke_count(recorded, monkeypatch, is_broken):
    monkeypatch.setattr(http_module, "_BODY_S", PATIENCE_S if is_broken else 0.3)
    with serving(recorded.app) as address, unfinished(address, 1000) as slow:
        slow.sendall(b"\n" + json.dumps(make_report(recorded.keys)).encode() + b"\n{")
        if is_broken:
            slow.close()
        else:
            assert b"408" in slow.recv(4096).split(b"\r\n")[0]
        wait_for(lambda: recorded.centre.got)


def test_endless_headers_are_refused(recorded):
    with serving(recorded.app) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as long:
            with suppress(ConnectionError):  # it may be refused before all is sent
                long.sendall(b"GET /v1/clock HTTP/1.1\r\n" + b"X-Long: " + b"a" * 200_000)
            assert b"400" in long.recv(4096).split(b"\r\n")[0]


def test_a_broken_request_without_room_for_a_body_is_ended_without_an_error(recorded, caplog):
    """The answer to HEAD has no body, and so no room for the reason."""
    protocol = connections.limited_protocol(connections.ByAddress(connections.ConnectionLimits(9, 9)), too_busy)
    broken = b"HEAD / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nabc\r\n\r\n"
    with serving(recorded.app, http=protocol) as address, caplog.at_level(logging.ERROR):
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(broken)
            received = client.makefile("rb").read()  # to the end: the connection is closed
    assert received.startswith(b"HTTP/1.1 400 ") and received.endswith(b"\r\n\r\n")
    assert not caplog.records


def test_connections_above_the_limit_are_refused_and_silent_ones_closed(live, monkeypatch):
    """Those above the first limit get 503, those above the second are cut off, and silent ones are closed in time."""
    limits = connections.ConnectionLimits(num_served=3, num_accepted=5)
    protocol = connections.limited_protocol(connections.ByAddress(limits), too_busy)
    with serving(live.app, http=protocol) as address, ExitStack() as stack:
        host, port = address.removeprefix("http://").split(":")

        def connect():
            return stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))

        def status():
            with suppress(httpx.TransportError):
                return get(f"{address}/v1/clock").status_code

        silent = [connect() for _ in range(4)]
        answer = get(f"{address}/v1/clock")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_busy")
        silent.append(connect())
        with pytest.raises(httpx.TransportError):
            get(f"{address}/v1/clock")
        stack.close()
        wait_for(lambda: status() == 200)
        monkeypatch.setattr(connections, "_REQUEST_S", 0.3)
        silent = [connect() for _ in range(4)]
        assert [one.recv(1) for one in silent] == [b""] * 4
        wait_for(lambda: status() == 200)


@pytest.mark.parametrize("limits", [(100, 1024), (256, 300), (1024, 2**20), (1024, resource.RLIM_INFINITY)])
def test_any_limit_of_open_files_leaves_room_for_subscribers_and_others(monkeypatch, limits):
    now = list(limits)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(now))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: now.__setitem__(slice(None), limits))
    limits_now = connections.raise_limits()
    assert now[0] == (limits[1] if limits[1] in (1024, 300) else 65536) and now[1] == limits[1]
    assert 0 < 2 * limits_now.max_subscribers < limits_now.num_served < limits_now.num_accepted
    assert limits_now.num_accepted + connections.BACKLOG < now[0] or now[0] == 300


def test_missing_open_files_are_logged_once_a_minute(caplog):
    logger = logging.getLogger("test.seldom")
    logger.addFilter(connections.LogSeldom())
    for _ in range(5):
        logger.error("socket.accept() out of system resource\nsocket: %s", "x", exc_info=OSError(24, "too many"))
    logger.error("Exception in callback BaseSelectorEventLoop._start_serving(...)")
    logger.error("something else")
    assert [record.message for record in caplog.records] == [
        "the limit of open files is reached: new connections wait",
        "something else",
    ]
    assert "Traceback" not in caplog.text and "OSError" not in caplog.text


def test_no_report_of_many_parallel_clients_is_lost(recorded):
    def send(client_number, address):
        with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
            for step in range(5):
                batch = [make_report(recorded.keys, 1000 * client_number + i, step=step) for i in range(50)]
                assert client.post(f"{address}/v1/reports", **lines_of(*batch)).json()["received"] == 50

    with serving(recorded.app) as address:
        threads = [threading.Thread(target=send, args=(number, address)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set((sensor, step) for _, sensor, step, _ in recorded.centre.got)) == len(recorded.centre.got) == 1000


def test_connections_send_at_once_and_drop_silent_peers():
    with bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
