"""Plans of fleets, and a real fleet: `dpfuse fleet` with its shards, sensors that follow its map, and its streams."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx

import dpfuse
from dpfuse.fleet import FleetReporter
from dpfuse.fleet.plan import FleetPlan, ShardPlan
from dpfuse.ledger import Ledger, public_rows, verify
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import write_report
from support.designs import make_design
from support.wire import PATIENCE_S, wait_for

BANK = "postgresql://bank@db/roads"
SENSORS = range(12)
INTERVAL_S = 0.2


def plan(bank=BANK, **shards):
    """A plan with these shards, each as the names of its streams."""
    made = {
        name: ShardPlan(streams=tuple(streams.split()), port=9000 + 10 * number)
        for number, (name, streams) in enumerate(shards.items())
    }
    return FleetPlan(shards=made, design="freeway", folder=Path("f"), keys=Path("k"), bank=bank, port=8000)


def free_ports(count):
    """The first of so many free ports in a row."""
    while True:
        first = random.randrange(20000, 30000)
        with suppress(OSError):
            taken = []
            try:
                for port in range(first, first + count):
                    taken.append(socket.create_server(("127.0.0.1", port)))
                return first
            finally:
                for one in taken:
                    one.close()


class RealFleet:
    """`dpfuse fleet FILE` in a process of its own."""

    def __init__(self, folder, bank, *options, **shards):
        self.folder, self.options, self.bank, self.process = folder, options, bank, None
        self.design = make_design("individual", spread=0.3, horizon=None, expected_stay=300.0, budget=0.2)
        self.design.save(folder / "d.dpfuse")
        KeyFile.create(folder / "keys")
        self.keys = Keys.load(folder / "keys")
        self.port = free_ports(1 + 3 * 8)
        self.write(**shards)
        self.errors = (folder / "errors").open("w+b")

    def write(self, **shards):
        """Write the plan."""
        lines = ['design = "d.dpfuse"', 'keys = "keys"', f"interval = {INTERVAL_S}", f"port = {self.port}"]
        lines += [] if self.bank is None else [f"bank = {json.dumps(self.bank)}"]
        for number, (name, streams) in enumerate(sorted(shards.items())):
            lines += [f"[shards.{name}]", f"streams = {json.dumps(streams.split())}"]
            lines += [f"port = {self.port + 1 + 3 * number}"]
        (self.folder / "fleet.toml").write_text("\n".join(lines))

    def start(self):
        code = "from dpfuse.cli import main; main()"
        environment = os.environ | {"PYTHONPATH": str(Path(dpfuse.__file__).parents[1])}
        environment |= {"JAX_COMPILATION_CACHE_DIR": str(Path(__file__).parents[2] / ".pytest_cache/d/jax")}
        is_new = not (self.folder / "fleet/map.json").exists()
        command = [sys.executable, "-c", code, "fleet", "fleet.toml", *["--new"] * is_new, *self.options]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=self.errors, env=environment
        )
        return self

    def map(self):
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/v1/map", trust_env=False, timeout=5).json()
        assert self.process.poll() is None, self.log()
        return None

    def log(self):
        return (self.folder / "errors").read_text()

    def wait_until_up(self, *streams):
        """Wait until these streams are up; returns the map."""

        def found():
            published = self.map() or {"streams": {}}
            return published if all((published["streams"].get(one) or {}).get("readers") for one in streams) else None

        return wait_for(found, 2 * PATIENCE_S)

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def ledgers(self):
        return sorted((self.folder / "fleet").glob("*/ledger-*.db"))

    def pid_of(self, shard):
        """The process of a shard."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                ledger = str(self.folder / "fleet" / shard).encode()
                if b"serve" in words and any(ledger + b"/" in word for word in words):
                    return int(entry.name)
        return None

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class MapSensors(threading.Thread):
    """Sensors that report to every stream, each where the fleet's map says."""

    def __init__(self, fleet):
        super().__init__(daemon=True)
        self.fleet, self._is_over = fleet, threading.Event()

    def run(self):
        with FleetReporter(f"http://127.0.0.1:{self.fleet.port}") as reporter:
            while not self._is_over.wait(INTERVAL_S / 2):
                with suppress(TypeError, AssertionError):  # the fleet is away
                    for stream in self.fleet.map()["streams"]:
                        with suppress(ValueError):  # a new stream, which the reporter's map lacks
                            reporter.send(stream, self._write)

    def _write(self, stream, step):
        for sensor in SENSORS:
            values = [random.uniform(-1, 1), random.uniform(-1, 1)]
            yield write_report(self.fleet.keys.issue(sensor).sign(stream, step, values))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self.join(PATIENCE_S)


class Watcher(threading.Thread):
    """Reads every stream where the map says, and records each release by name and step, and when it came."""

    def __init__(self, fleet):
        super().__init__(daemon=True)
        self.fleet, self.received, self.contradictions, self.arrived = fleet, {}, [], {}
        self._is_over = threading.Event()

    def run(self):
        with httpx.Client(trust_env=False, timeout=2) as client:
            while not self._is_over.wait(0.1):
                with suppress(httpx.HTTPError, TypeError, AssertionError):
                    for public, one in self.fleet.map()["streams"].items():
                        with suppress(httpx.HTTPError, TypeError, KeyError):
                            self._read(client, public, one)

    def count(self, name):
        """How many releases of a stream came, by its name in the ledger."""
        return sum(stream == name for stream, _ in list(self.received))

    def _read(self, client, public, one):
        last = max((step for name, step in self.received if name == one["stream"]), default=0)
        path = f"{one['readers']}/v1/streams/{one['stream']}/releases?start={max(1, last - 5)}"
        for release in client.get(path).json()["releases"]:
            key = release["stream"], release["step"]
            if self.received.setdefault(key, release) != release:
                self.contradictions.append(key)
            if key[1] > last:
                self.arrived[public] = time.monotonic()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._is_over.set()
        self.join(PATIENCE_S)


def check_fleet(fleet, watcher, bank=None):
    """Every ledger is in order, nobody is above the budget, and every step was released once."""
    total = {}
    rows = {}
    for path in fleet.ledgers():
        verify(path)
        for row in public_rows(path):
            assert (row.stream, row.step) not in rows
            rows[row.stream, row.step] = row.to_dict()["release"]
        with Ledger.open(path, fleet.design) as ledger:
            for sensor, cost in ledger.accounts(ledger.streams[0]).accounts().items():
                total[sensor] = total.get(sensor, 0) + cost
            budget = ledger.terms.mechanism.budget
    assert not watcher.contradictions
    for key, release in watcher.received.items():
        if key in rows:  # the ledger of a lost generation is gone
            assert rows[key] == release["release"]
    assert total and 0 < max(total.values()) <= budget
    if bank is not None:
        bank.verify()
        for sensor, spent, lent in bank._rows("SELECT sensor, spent, lent FROM accounts"):
            assert total.get(sensor, 0) <= spent + lent <= budget
