"""A centre with its application in this process, servers for it, and a real broker."""

from __future__ import annotations

import asyncio
import functools
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
import pytest
import uvicorn

import dpfuse
from dpfuse.centre import centre as centre_module
from dpfuse.centre.centre import FusionCentre
from dpfuse.ledger import Ledger, public_rows
from dpfuse.policy.exact import ExactStep
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
# How long a test waits for something that must happen: long enough for a busy machine.
PATIENCE_S = 120.0
_steps = {}


class Watch:
    """A ticker that the test drives: `tick` ends a step and publishes it."""

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
    """In the place of a centre: keeps what it received."""

    streams, ledger_streams, now, is_over, design = ("main",), ("main",), 1, False, None

    def __init__(self):
        self.got = []

    def receive(self, *report):
        self.got.append(report)


@functools.cache
def endless_design():
    return make_design("individual", spread=0.3, horizon=None, expected_stay=4.0)


def make_centre(design, ledger):
    """A centre; all centres of one design and number of streams share one compiled step."""

    def shared_step(design, *shape):
        key = design.fingerprint, *shape
        if key not in _steps:
            _steps[key] = ExactStep(design, *shape)
        return _steps[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(centre_module, "ExactStep", shared_step)
        return FusionCentre(design, ledger)


@contextmanager
def rig(folder, design=None, *, streams=("main",), centre=None, replay=False, **options):
    """Ledger, centre, hub, watch, tokens and application; `send`, `get` and `call` make requests in process."""
    design = design or endless_design()
    with Ledger.create(folder / "ledger.db", design, streams) as ledger:
        centre = centre or make_centre(design, ledger)
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
    """The answer to one request, in process; raises what the application raises."""

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://centre") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def get(address):
    return httpx.get(address, trust_env=False, timeout=PATIENCE_S)


@contextmanager
def unfinished(address):
    """A request whose body is still to come."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as slow:
        slow.sendall(b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 100\r\n\r\n{")
        yield slow


@contextmanager
def serving(app, **options):
    """The address of a real server with the application, in a thread of its own."""
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
    """The lines of an event stream, as they arrive."""
    with httpx.Client(trust_env=False, timeout=timeout_s) as client:
        with client.stream("GET", f"{address}/v1/streams/{stream}/{path}", **options) as answer:
            assert answer.status_code == 200
            yield answer.iter_lines()


def events(lines, count):
    """The data of the next `count` events."""
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
    """A real mosquitto with the generated configuration; it can be killed and started again."""

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
    """The path of a self-signed certificate for this machine, NAME.crt; its key is NAME.key."""
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    new = (needs("openssl"), "req", "-x509", "-newkey", "ed25519", "-nodes", *files, *subject)
    subprocess.run(new, cwd=folder, check=True, capture_output=True)
    return folder / f"{name}.crt"


@contextmanager
def command(*arguments, folder, cache=None, first=""):
    """`dpfuse` in a process of its own, which first runs the code in `first`; killed at the end if it still runs."""
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
    """The address that the centre prints when it is up."""
    wait_for(lambda: "\n" in running.stdout() or running.process.poll() is not None)
    assert running.process.poll() is None, running.stderr()
    return running.stdout().strip()
