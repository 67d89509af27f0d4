"""`dpfuse serve` as a separate process, sensors that send to it, and subscribers that record what they receive."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import httpx

from dpfuse.ledger import Ledger, public_rows, verify
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from support.designs import make_design
from support.preloaded import Forked, Preloaded
from support.wire import PATIENCE_S, lines_of, without_skips

INTERVAL_S = 0.1
SENSORS = range(30)


class Site:
    """The files of a centre, its address, and how to start it."""

    interval_s, expected_stay = INTERVAL_S, 4.0
    options: tuple[str, ...] = ()
    """More options of `dpfuse serve`."""
    has_relay = True
    """Whether a relay of its own serves its readers."""
    sensors = SENSORS
    """The ids that report to it."""
    preloaded: Preloaded | None = None
    """What its process is forked from; None for a new interpreter."""

    def __init__(self, folder: Path, ledger: str | Path, *streams: str) -> None:
        self.folder, self.ledger, self.streams = folder, str(ledger), streams or ("main",)
        self.design = make_design("individual", spread=0.3, horizon=None, expected_stay=self.expected_stay, budget=0.2)
        folder.mkdir(exist_ok=True)
        if not (folder / "design.dpfuse").exists():
            self.design.save(folder / "design.dpfuse")
            KeyFile.create(folder / "keys")
        self.keys = Keys.load(folder / "keys")
        with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
            self.port, self.reading_port = free.getsockname()[1], other.getsockname()[1]
        self.url, self.reading_url = (f"http://127.0.0.1:{port}" for port in (self.port, self.reading_port))
        if not self.has_relay:
            self.options, self.reading_url = (*self.options, "--no-relay"), self.url

    def create(self, bank_id: str | None = None) -> Site:
        """Make its ledger."""
        Ledger.create(self.ledger, self.design, self.streams, bank_id).close()
        return self

    def start(self, prelude: str = "") -> Centre:
        return Centre(self, prelude)

    def launch(self, code: str, arguments: list[str], errors: IO[bytes]) -> subprocess.Popen | Forked:
        """Run the code with these arguments in a process of its own."""
        if self.preloaded is not None:
            return self.preloaded.start(code, arguments, errors)
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=centre_environment(), text=True)

    def last_step(self) -> int:
        return max((row.step for row in public_rows(self.ledger)), default=0)


def centre_environment() -> dict[str, str]:
    """The environment of a centre: JAX keeps what it compiles where the tests keep it."""
    cache = Path(__file__).parents[2] / ".pytest_cache/d/jax"
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PLATFORMS": "cpu"}
    return environment | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


class Centre:
    """The process; `prelude` is run in it before anything else."""

    def __init__(self, site: Site, prelude: str) -> None:
        self._errors, self._has_relay = site.folder / f"errors-{site.port}", site.has_relay
        arguments = {"design": site.folder / "design.dpfuse", "keys": site.folder / "keys", "port": site.port}
        arguments |= {"reading-port": site.reading_port, "ledger": site.ledger, "interval": site.interval_s}
        options = [f"--{name}={value}" for name, value in arguments.items()]
        options += [*(f"--stream={name}" for name in site.streams), *site.options]
        with open(self._errors, "wb") as errors:
            self.process = site.launch(f"{prelude}\nfrom dpfuse.cli import main\nmain()", ["serve", *options], errors)

    def wait_until_up(self) -> None:
        names = ["sensors", "readers"][: 1 + self._has_relay]
        assert [self.process.stdout.readline().split(" ")[0] for _ in names] == names, self.errors

    @property
    def errors(self) -> str:
        """What it wrote to stderr, apart from the steps that a busy machine makes it skip."""
        return without_skips(self._errors.read_text())

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until it ends; returns its exit code."""
        code = self.process.wait(timeout_s)
        self.process.stdout.close()
        return code

    def stop(self) -> int:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> int:
        """Kill -9."""
        self.process.kill()
        return self.wait()

    def __enter__(self) -> Centre:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


class Client(threading.Thread):
    """Talks to a centre until it is closed, and tries again while the centre is down."""

    def __init__(self, site: Site) -> None:
        super().__init__(daemon=True)
        self.site, self._is_over = site, threading.Event()

    @property
    def address(self) -> str:
        return self.site.url

    def run(self) -> None:
        with httpx.Client(base_url=self.address, timeout=5) as client:
            while not self._is_over.is_set():
                try:
                    self.talk(client)
                except httpx.HTTPError:
                    self._is_over.wait(0.02)

    def talk(self, client: httpx.Client) -> None:
        raise NotImplementedError

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join(PATIENCE_S)


class Sensors(Client):
    """Sends a report of every sensor to every stream for each step, by the centre's clock."""

    num_sent = 0

    def talk(self, client: httpx.Client) -> None:
        clock = client.get("/v1/clock").json()
        reports = [
            self.site.keys.issue(sensor).sign(stream, clock["step"], [random.uniform(-1, 1), random.uniform(-1, 1)])
            for stream in self.site.streams
            for sensor in self.site.sensors
        ]
        answer = client.post("/v1/reports", **lines_of(*reports))
        if answer.status_code == 503:  # it stops
            raise httpx.HTTPError(answer.json()["error"]["code"])
        assert answer.status_code == 202 and answer.json() == {"received": len(reports), "refused": []}
        self.num_sent += len(reports)
        self._is_over.wait(clock["closes_in_s"])


class Subscriber(Client):
    """Follows a stream from its first step on, and records every release that it receives, by step."""

    def __init__(self, site: Site, stream: str = "main") -> None:
        super().__init__(site)
        self.stream, self.received, self.contradictions = stream, {}, []

    @property
    def address(self) -> str:
        return self.site.reading_url

    def talk(self, client: httpx.Client) -> None:
        with client.stream("GET", f"/v1/streams/{self.stream}/releases/events?start=1") as answer:
            for line in answer.iter_lines():
                if line.startswith("data:"):
                    self._note(json.loads(line.removeprefix("data:")))
                if self._is_over.is_set():
                    return

    def _note(self, release: dict) -> None:
        if self.received.setdefault(release["step"], release) != release:
            self.contradictions.append(release["step"])


def check_received(site: Site, subscriber: Subscriber) -> None:
    """The subscriber received every row of the ledger up to its last one, unchanged, and the ledger is in order.

    Later rows were committed before the centre was stopped; it publishes them when it starts again.
    """
    verify(site.ledger)
    assert not subscriber.contradictions
    rows = {row.step: row.to_dict() for row in public_rows(site.ledger, subscriber.stream)}
    for step, release in subscriber.received.items():
        row = rows[step]
        found = release["release"], release["fusion_weight"], release["hash"], release["stream"]
        assert found == (row["release"], row["fusion_weight"], row["hash"], row["stream"])
    assert sorted(subscriber.received) == [step for step in rows if step <= max(subscriber.received)]


def largest_share(site: Site) -> float:
    """The largest share of its budget that a sensor has spent, which is at most 1."""
    with Ledger.open(site.ledger, site.design) as ledger:
        spent, budget = ledger.accounts(ledger.streams[0]).accounts(), ledger.terms.mechanism.budget
        assert set(spent) == set(SENSORS) and max(spent.values()) <= budget
        return max(spent.values()) / budget
