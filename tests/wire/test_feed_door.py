"""The socket from which relays on this machine read."""

from __future__ import annotations

import logging
import socket
import stat
import time
from contextlib import suppress

import pytest

from dpfuse.public.connections import ConnectionLimits
from dpfuse.remote.client import get_json, make_client
from dpfuse.wire import feed_door
from dpfuse.wire.feed_door import FeedDoor, make_feed_app
from support.wire import rig, wait_for


@pytest.fixture(autouse=True)
def same_log():
    """The server sets the level of uvicorn's log, which other tests of this process read."""
    levels = {name: logging.getLogger(name).level for name in ("uvicorn.error", "uvicorn.access", "uvicorn.asgi")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def live(tmp_path):
    with rig(tmp_path) as parts:
        parts.tick(), parts.tick()
        yield parts


def test_others_may_not_connect_to_the_socket_for_relays(live, tmp_path):
    app = make_feed_app(live.feed, b"estimator", live.watch.clock)
    for path in (None, tmp_path / "feed", tmp_path / "feed"):  # the second time it replaces one that was left
        door = FeedDoor(app, path)
        assert stat.S_IMODE(door.path.stat().st_mode) == (0o600 if path is None else 0o660)
        if path is None:
            assert stat.S_IMODE(door.path.parent.stat().st_mode) == 0o700
        door.start()
        with make_client(f"unix:{door.path}") as client:
            assert get_json(client, "/v1/relay/settings")["streams"] == ["main"]
            assert client.get("/v1/estimator").content == b"estimator"
            assert [each["step"] for each in get_json(client, "/v1/streams/main/releases")["releases"]] == [1, 2]
            for elsewhere in ("/v1/reports", "/", "/metrics"):
                assert client.get(elsewhere).status_code == 404
        door.stop()
        assert not door.path.exists()


def test_a_relay_cannot_use_up_the_open_files_of_the_centre(live, monkeypatch):
    monkeypatch.setattr(feed_door, "_LIMITS", ConnectionLimits(num_served=2, num_accepted=4))
    door = FeedDoor(make_feed_app(live.feed, b"", live.watch.clock)).start()
    opened = [socket.socket(socket.AF_UNIX) for _ in range(6)]
    for each in opened:
        each.settimeout(10)
        each.connect(str(door.path))
    for each in opened[4:]:  # cut off
        with suppress(ConnectionResetError):
            assert each.recv(1) == b""
    opened[3].sendall(b"GET /v1/relay/settings HTTP/1.1\r\nhost: x\r\n\r\n")
    assert opened[3].recv(100).startswith(b"HTTP/1.1 503")
    for each in opened:
        each.close()
    with make_client(f"unix:{door.path}") as client:
        wait_for(lambda: client.get("/v1/relay/settings").status_code == 200)
    door.stop()


def test_old_rows_are_read_with_rests(live, monkeypatch):
    monkeypatch.setattr(feed_door, "_REST", 4.0)
    read = live.hub.messages
    monkeypatch.setattr(live.hub, "messages", lambda *which: time.sleep(0.05) or read(*which))
    door = FeedDoor(make_feed_app(live.feed, b"", live.watch.clock)).start()
    with make_client(f"unix:{door.path}") as client:
        start = time.monotonic()
        get_json(client, "/v1/streams/main/releases")
        assert time.monotonic() - start > 5 * 0.05
    door.stop()
