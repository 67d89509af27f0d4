"""A centre with its application in this process, servers around it, and a broker: for the tests of the wire."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import uvicorn

import dpfuse
from dpfuse.centre.centre import FusionCentre
from dpfuse.ledger import Ledger, public_rows
from dpfuse.public.hub import Hub
from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire.broker import write_broker
from dpfuse.wire.http import make_app
from dpfuse.wire.intake import Intake
from dpfuse.wire.tokens import Tokens
from support.designs import make_design
from support.parts import needs

SECRET = b"k" * 32
JSON = {"content-type": "application/json"}
# Whoever waits, waits for something that happens: so long that no busy machine fails a test, and one that hangs does.
PATIENCE_S = 120.0


class Watch:
    """A ticker whose hands the test moves: `tick` ends a step and publishes it."""

    interval_s, delay_s, last_latency_s = 0.2, 0.1, 0.001

    def __init__(self, centre, hub):
        self.centre, self.hub, self.status = centre, hub, "running"

    def clock(self):
        return {
            "step": self.centre.now,
            "closes_in_s": 0.1,
            "interval_s": self.interval_s,
            "delay_s": self.delay_s,
            "is_over": self.centre.is_over,
        }

    def tick(self):
        self.hub.publish(published := self.centre.tick())
        return published


class Recorder:
    """In the place of a centre: remembers what it was given."""

    streams, ledger_streams, now, is_over, design = ("main",), ("main",), 1, False, None

    def __init__(self):
        self.got = []

    def receive(self, *report):
        self.got.append(report)


@contextmanager
def rig(folder, design=None, *, streams=("main",), centre=None, replay=False, **options):
    """Ledger, centre, hub, watch, tokens and application, with `send` and `get` to talk to it in process."""
    design = design or make_design("individual", spread=0.3, horizon=None, expected_stay=4.0)
    with Ledger.create(folder / "ledger.db", design, streams) as ledger:
        centre = centre or FusionCentre(design, ledger)
        centre.design = design
        hub = Hub(dict.fromkeys(ledger.streams, 0), partial(public_rows, ledger.path))
        watch, tokens = Watch(centre, hub), Tokens(SECRET)
        intake = Intake(centre, tokens, ReplayNotes() if replay else None)
        app = make_app(centre, watch, hub, intake, **options)
        try:
            yield SimpleNamespace(
                design=design,
                ledger=ledger,
                centre=centre,
                hub=hub,
                tick=watch.tick,
                watch=watch,
                tokens=tokens,
                intake=intake,
                app=app,
                call=partial(call, app),
                get=partial(call, app, "GET"),
                send=lambda *reports: call(app, "POST", "/v1/reports", json={"reports": list(reports)}),
                report=partial(make_report, tokens),
            )
        finally:
            hub.close()


def make_report(tokens, sensor=7, values=(0.5, -0.5), stream="main", step=1):
    return {"token": tokens.issue(sensor), "stream": stream, "step": step, "values": list(values)}


def call(app, method, path, **options):
    """The answer to one request, in process; an error that leaves the application is raised here."""

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://centre") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


@contextmanager
def serving(app, **options):
    """The application behind a real server in a thread of its own; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1, **options
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()


@contextmanager
def following(address, stream="main", path="releases/events", timeout_s=PATIENCE_S, **options):
    """The lines of a stream of events, as they come."""
    with httpx.Client(trust_env=False, timeout=timeout_s) as client:
        with client.stream("GET", f"{address}/v1/streams/{stream}/{path}", **options) as answer:
            assert answer.status_code == 200
            yield answer.iter_lines()


def events(lines, count):
    """The data of the next events."""
    found = []
    while len(found) < count:
        line = next(lines)
        if line.startswith("data: "):
            found.append(json.loads(line.removeprefix("data: ")))
    return found


def wait_for(condition, timeout_s=PATIENCE_S):
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


class Broker:
    """A real mosquitto with the generated configuration, that can be killed and started again."""

    def __init__(self, folder, tokens, sensors, change=lambda text: text):
        self.program, self.port, self.process = needs("mosquitto"), free_port(), None
        self.configuration = write_broker(folder, tokens, sensors, port=self.port)
        self.configuration.write_text(change(self.configuration.read_text()))
        self.errors = (folder / "mosquitto.log").open("w+")

    def start(self):
        self.process = subprocess.Popen([self.program, "-c", str(self.configuration)], stderr=self.errors)
        wait_for(self._answers)

    def _answers(self):
        assert self.process.poll() is None, (self.errors.seek(0), self.errors.read())
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()
        self.errors.close()


def certify(folder, name):
    """A certificate for this machine that it signed itself, NAME.crt, with its key, NAME.key."""
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    new = (needs("openssl"), "req", "-x509", "-newkey", "ed25519", "-nodes", *files, *subject)
    subprocess.run(new, cwd=folder, check=True, capture_output=True)
    return folder / f"{name}.crt"


@contextmanager
def command(*arguments, folder, cache=None, first=""):
    """`dpfuse` as a process of its own, after the code in `first`; killed at the end if it still runs."""
    code = f"{first}\nfrom dpfuse.cli import main; main()"
    environment = os.environ | ({"JAX_COMPILATION_CACHE_DIR": str(cache)} if cache else {})
    environment |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = str(Path(dpfuse.__file__).parents[1])
    out, err = (folder / "stdout").open("w+"), (folder / "stderr").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=folder, stdout=out, stderr=err, env=environment
    )

    def read(file):
        file.seek(0)
        return file.read()

    try:
        yield SimpleNamespace(process=process, stdout=lambda: read(out), stderr=lambda: read(err))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        out.close()
        err.close()


def address_of(running):
    """Waits until the centre says where it is."""
    wait_for(lambda: "\n" in running.stdout() or running.process.poll() is not None)
    assert running.process.poll() is None, running.stderr()
    return running.stdout().strip()
