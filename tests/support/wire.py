"""A centre with its application in this process, servers for it, and a real broker."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
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
from dpfuse.ledger import Ledger
from dpfuse.policy.exact import ExactStep
from dpfuse.public.listening import bind
from dpfuse.public.reading import make_reading_app
from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.public.signatures import Signer, make_key
from dpfuse.wire.broker import write_broker
from dpfuse.wire.http import make_intake_app
from dpfuse.wire.intake import Intake
from dpfuse.wire.kept_estimators import keep_estimators
from dpfuse.wire.keys import Keys
from dpfuse.wire.serve import make_feed, make_hub
from support.designs import make_design
from support.parts import needs

SECRET = b"k" * 32
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
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

    streams, now, is_over, design, past, has_bank = ("main",), 1, False, None, (), False
    attributes, streams_in_ledger = None, 1

    def __init__(self):
        self.got, self.inputs = [], []

    def receive(self, *report):
        self.got.append(report)

    def receive_inputs(self, *inputs):
        self.inputs.append(inputs)


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


def signer_of(ledger):
    """Signs with the key beside the ledger, which is made if it is missing."""
    path = Path(f"{ledger.path}.signing-key")
    if not path.exists():
        make_key(path)
    return Signer(path, ledger.terms.ledger_id, ledger.terms.fingerprint)


@contextmanager
def rig(folder, design=None, *, streams=("main",), centre=None, replay=False, keys=None, **options):
    """Ledger, centre, hub, watch, keys and application; `send`, `get` and `call` make requests in process."""
    design = design or endless_design()
    with Ledger.create(folder / "ledger.db", design, streams) as ledger:
        centre = centre or make_centre(design, ledger)
        centre.design = design
        signer = signer_of(ledger)
        hub = make_hub(ledger, centre, signer)
        watch, keys = Watch(centre, hub), keys or Keys.from_secret(SECRET)
        intake = Intake(centre, keys, ReplayNotes() if replay else None)
        feed, doors = make_doors(centre, watch, hub, intake, signer, **options)
        app = both(*doors)
        try:
            yield SimpleNamespace(
                design=design,
                ledger=ledger,
                centre=centre,
                hub=hub,
                signer=signer,
                tick=watch.tick,
                watch=watch,
                keys=keys,
                intake=intake,
                app=app,
                feed=feed,
                intake_app=doors[0],
                reading_app=doors[1],
                call=partial(call, app),
                get=partial(call, app, "GET"),
                send=lambda *reports: call(app, "POST", "/v1/reports", **lines_of(*reports)),
                report=partial(make_report, keys),
            )
        finally:
            hub.close()


def make_doors(centre, watch, hub, intake, signer, labels=(), **options):
    """The feed, and both applications: intake and reading."""
    feed = make_feed(centre, watch, hub, intake, signer.signatory, labels)
    with tempfile.TemporaryDirectory() as folder:
        kept = keep_estimators(Path(folder), centre.design, signer)
    estimator = kept[centre.design.fingerprint[:16]]
    reading = make_reading_app(feed, estimator, watch.clock, by_design=kept, **options)
    return feed, (make_intake_app(watch, intake, feed), reading)


def both(intake_app, reading_app):
    """One application with the paths of both, for tests that need no second address."""

    async def app(scope, receive, send):
        is_intake = scope["type"] == "http" and scope["path"] in ("/v1/reports", "/v1/inputs", "/v1/replay/truth")
        await (intake_app if is_intake else reading_app)(scope, receive, send)

    return app


def make_report(keys, sensor=7, values=(0.5, -0.5), stream="main", step=1):
    return keys.issue(sensor).sign(stream, step, values)


def lines_of(*reports):
    """The body of a batch and its headers, for httpx."""
    return {"content": "\n".join(map(json.dumps, reports)).encode(), "headers": NDJSON}


def call(app, method, path, **options):
    """The answer to one request, in process; raises what the application raises."""

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://centre") as client:
            return await client.request(method, path, **options)

    return asyncio.run(run())


def get(address):
    return httpx.get(address, trust_env=False, timeout=PATIENCE_S)


@contextmanager
def unfinished(address, length=100):
    """A request whose body is still to come."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as slow:
        slow.sendall(b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n")
        slow.sendall(b"Content-Length: %d\r\n\r\n{" % length)
        yield slow


@contextmanager
def serving(app, **options):
    """The address of a real server with the application, in a thread of its own."""
    listener = bind("127.0.0.1", 0)
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

    def __init__(self, folder, keys, sensors, change=lambda text: text):
        self.program, self.port, self.process = needs("mosquitto"), free_port(), None
        self.configuration = write_broker(folder, keys, sensors, port=self.port)
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
    out, err = (tempfile.TemporaryFile("w+", dir=folder) for _ in range(2))  # two commands may share a folder
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=folder, stdout=out, stderr=err, env=environment
    )

    def read(file):
        file.seek(0)
        return file.read()

    try:
        yield SimpleNamespace(process=process, stdout=lambda: read(out), stderr=lambda: without_skips(read(err)))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        out.close()
        err.close()


def without_skips(text):
    """Lines of a log, apart from those on steps that a busy machine makes a centre skip."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if "a step was skipped" not in line and "releases go on" not in line)


def addresses_of(running):
    """The addresses for sensors and for readers, which the centre prints when it is up."""
    wait_for(lambda: running.stdout().count("\n") == 2 or running.process.poll() is not None)
    assert running.process.poll() is None, running.stderr()
    lines = [line.split() for line in running.stdout().splitlines()]
    assert [name for name, _ in lines] == ["sensors", "readers"]
    return tuple(address for _, address in lines)


def address_of(running):
    """The address for readers."""
    return addresses_of(running)[1]
