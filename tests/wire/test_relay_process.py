"""`dpfuse serve` with its relay as a child process: kills, greedy readers, and relays elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from dpfuse.ledger import Ledger, public_rows
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.relay_process import RelayProcess
from support.wire import (
    PATIENCE_S,
    address_of,
    addresses_of,
    command,
    endless_design,
    events,
    following,
    get,
    make_centre,
    wait_for,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory, pytestconfig):
    folder = tmp_path_factory.mktemp("relay")
    KeyFile.create(folder / "centre.keys")
    endless_design().save(folder / "endless.dpfuse")
    return folder, pytestconfig.cache.mkdir("jax")


def serve(place, ledger, *options):
    folder, cache = place
    arguments = ("--design", "endless.dpfuse", "--ledger", ledger, "--keys", "centre.keys")
    arguments += () if (folder / ledger).exists() else ("--new",)
    return command("serve", *arguments, "--port", 0, "--reading-port", 0, *options, folder=folder, cache=cache)


def child_of(process):
    """The process id of the relay."""
    for number in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{number}/stat") as file:
            if file.read().rpartition(")")[2].split()[1] == str(process.pid):
                return int(number)
    return None


def test_the_relay_gets_no_password_from_the_environment(monkeypatch):
    started = []

    def start(command, **options):
        started.append(options["env"])
        raise OSError("not started")

    monkeypatch.setattr("subprocess.Popen", start)
    for name in ("PGPASSWORD", "DPFUSE_OPERATOR_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(OSError, match="not started"):
        RelayProcess(Path("feed"), listener)
    assert "PATH" in started[0] and "secret" not in started[0].values()


@pytest.mark.slow
def test_a_killed_relay_is_started_again_at_the_same_address_and_no_step_is_skipped(place):
    with serve(place, "killed.db", "--interval", 0.5) as running:
        address = address_of(running)
        first = child_of(running.process)
        with following(address) as lines:
            events(lines, 2)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: child_of(running.process) not in (None, first))
        with following(address) as lines:  # waits until the new one serves
            steps = [event["step"] for event in events(lines, 10)]
        assert steps == list(range(1, 11))
        assert "starting it again" in running.stderr()
        second = child_of(running.process)
        running.process.kill()  # the relay ends with the centre
        running.process.wait()
        wait_for(lambda: not os.path.exists(f"/proc/{second}"))


@pytest.mark.slow
def test_a_relay_elsewhere_follows_the_centre_and_another_key_is_refused(place):
    folder, cache = place
    (folder / "elsewhere").mkdir()
    with serve(place, "chained.db", "--interval", 0.2) as running:
        address = address_of(running)
        options = ("relay", "--from", address, "--port", 0)
        with command(*options, "--key", "0" * 64, folder=folder / "elsewhere") as refused:
            assert refused.process.wait(PATIENCE_S) == 1 and "another public key" in refused.stderr()
        with command(*options, folder=folder / "elsewhere") as relay:
            wait_for(lambda: "\n" in relay.stdout())
            other = relay.stdout().split()[1]
            with following(other) as lines:
                events(lines, 5)
            wanted, found = (get(f"{at}/v1/streams/main/releases?limit=5").content for at in (address, other))
            assert wanted == found


class Greedy(threading.Thread):
    """Reads old releases as fast as it gets them."""

    def __init__(self, address, streams):
        super().__init__(daemon=True)
        self._address, self._streams, self.num_read, self.is_over = address, streams, 0, False

    def run(self):
        with httpx.Client(base_url=self._address, trust_env=False, verify=False, timeout=PATIENCE_S) as client:
            while not self.is_over:
                for stream in self._streams:
                    with suppress(httpx.TransportError):
                        self.num_read += client.get(f"/v1/streams/{stream}/releases?start=1").status_code == 200


@pytest.mark.slow
def test_greedy_readers_cause_no_skipped_step(place):
    """300 streams, 16 clients that read from the first step on, 100 subscribers and 100 connections that only wait.

    The first steps are no longer in memory. With one process for sensors and readers, and without the 200 connections,
    a centre skipped 12 of 31 steps at these settings.
    """
    streams = [f"road-{number}" for number in range(300)]
    with Ledger.create(place[0] / "greedy.db", endless_design(), streams) as ledger:
        centre = make_centre(endless_design(), ledger)
        for _ in range(600):
            centre.tick()
    with serve(place, "greedy.db", "--interval", 0.4, "--per-address", 0) as running, ExitStack() as stack:
        sensors, readers = addresses_of(running)
        with following(readers, stream="road-0") as lines:
            events(lines, 3)
            host, port = readers.removeprefix("http://").split(":")
            for number in range(200):
                waiting = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
                if number % 2:
                    waiting.sendall(b"GET /v1/streams/road-1/releases/events HTTP/1.1\r\nHost: x\r\n\r\n")
            greedy = [Greedy(readers, streams[number::16]) for number in range(16)]
            first = get(f"{sensors}/v1/clock").json()["step"]
            for one in greedy:
                one.start()
            time.sleep(12)
            last = get(f"{sensors}/v1/clock").json()["step"]
            for one in greedy:
                one.is_over = True
            for one in greedy:
                one.join(PATIENCE_S)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_S) == 0
        assert sum(one.num_read for one in greedy) > 5
    steps = [row.step for row in public_rows(place[0] / "greedy.db", "road-7")]
    assert [step for step in range(first, last) if step not in steps] == []
