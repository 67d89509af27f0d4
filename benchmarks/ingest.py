"""Reports a second into a running centre, over HTTP in batches and over MQTT through mosquitto.

The centre, with its ledger and its clock at 5 Hz, the broker and the clients are processes of their own. Reports are
first sent at a fixed rate, then as fast as they are accepted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

INTERVAL_S = 0.2
STREAMS = tuple(f"road-{number}" for number in range(100))
SECONDS = 10
HTTP = {"sensors": 100, "per_second": 50_000, "batch": 2000}
MQTT = {"sensors": 10, "per_second": 5_000}
SECRET = b"b" * 32
# Debian installs it in /usr/sbin, which is not on the path of users.
MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def main() -> None:
    """Measure and write results/ingest.json."""
    from benchmarks.timing import keep

    with tempfile.TemporaryDirectory() as folder:
        results = {"http": run(Path(folder), "http")}
        if MOSQUITTO is None:
            print("mosquitto is not installed, so MQTT is not measured: apt-get install mosquitto", file=sys.stderr)
        else:
            results["mqtt"] = run(Path(folder), "mqtt")
    settings = {"streams": len(STREAMS), "interval_s": INTERVAL_S, "seconds": SECONDS, "http": HTTP, "mqtt": MQTT}
    load = [round(value, 1) for value in os.getloadavg()]  # of the whole machine, this benchmark included
    packages = ("fastapi", "uvicorn", "orjson", "paho-mqtt")
    keep("ingest", {"settings": settings, "load": load, **results}, packages=packages)


def run(folder: Path, kind: str) -> dict[str, Any]:
    """At a fixed rate and at full speed: reports sent, received, lost and in time, and their rate."""
    found = {}
    for pace in ("paced", "full speed"):
        with ExitStack() as stack:
            mqtt = stack.enter_context(broker(folder)) if kind == "mqtt" else None
            address, counted = stack.enter_context(centre(folder, mqtt))
            sender = send_http if mqtt is None else partial(send_mqtt, port=mqtt)
            sent, seconds = sender(address, is_paced=pace == "paced")
            before, total = None, counted()
            while before != total:  # wait for reports that are on their way
                time.sleep(2.0)
                before, total = total, counted()
        found[pace] = {
            "sent": sent,
            "received": total["received"],
            "lost": sent - total["received"],
            "in_time": total["in_time"],
            "per_second": round(sent / seconds),
        }
    return found


@contextmanager
def centre(folder: Path, mqtt: int | None) -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """A centre in a process of its own: its address, and a function that reads what it counted."""
    counts = folder / "counts.json"
    for old in folder.glob("ledger*"):
        old.unlink()
    command = [sys.executable, "-m", "benchmarks.ingest", "centre", str(folder), str(mqtt or "")]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().decode().strip(), lambda: dict(json.loads(counts.read_text()))
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def run_counting_centre(folder: Path, mqtt: str) -> None:
    """In the child process: `dpfuse serve` with a centre that counts its reports."""
    from benchmarks.live_step import make_design
    from dpfuse.policy.exact import compute_inline
    from dpfuse.wire import serve
    from dpfuse.wire.tokens import Tokens

    compute_inline()
    counts = {"received": 0, "in_time": 0}

    class Counting(serve.FusionCentre):
        def receive(self, stream: str, sensor: int, step: int, values: Any) -> None:
            super().receive(stream, sensor, step, values)
            counts["received"] += 1
            counts["in_time"] += 0 <= step - self.now <= 1

    serve.FusionCentre = Counting  # type: ignore[misc]

    def tell() -> None:
        while True:
            (new := folder / "counts.new").write_text(json.dumps(counts))
            new.replace(folder / "counts.json")
            time.sleep(0.5)

    threading.Thread(target=tell, daemon=True).start()
    endpoints = serve.Endpoints(port=0, mqtt=f"127.0.0.1:{mqtt}" if mqtt else None)
    options = serve.CentreOptions(streams=STREAMS, is_new=True, interval_s=INTERVAL_S)
    tokens = Tokens(SECRET)
    design = make_design("individual")
    serve.run_centre(
        design, str(folder / "ledger"), tokens, endpoints, options, announce=lambda text: print(text, flush=True)
    )


@contextmanager
def broker(folder: Path) -> Iterator[int]:
    """A mosquitto with the configuration that `dpfuse broker` writes; its port."""
    import socket

    from dpfuse.wire.broker import write_broker
    from dpfuse.wire.tokens import Tokens

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    configuration = write_broker(folder / "broker", Tokens(SECRET), range(MQTT["sensors"]), port=port)
    assert MOSQUITTO is not None
    process = subprocess.Popen([MOSQUITTO, "-c", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield port
    finally:
        process.terminate()
        process.wait()


def send_http(address: str, *, is_paced: bool) -> tuple[int, float]:
    """Send reports of all sensors at each step, in batches; reports that were acknowledged, and seconds."""
    import httpx
    import orjson

    reports = make_reports(HTTP["sensors"])
    sent, per_step = 0, HTTP["per_second"] * INTERVAL_S
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        start = time.perf_counter()
        for step in steps(client, is_paced):
            for first in range(0, int(per_step), HTTP["batch"]):
                batch = [report | {"step": step} for report in reports[first : first + HTTP["batch"]]]
                answer = client.post(
                    "/v1/reports",
                    content=orjson.dumps({"reports": batch}),
                    headers={"content-type": "application/json"},
                )
                sent += answer.json()["received"]
    return sent, time.perf_counter() - start


def steps(client: Any, is_paced: bool) -> Iterator[int]:
    """The current step of the centre: each step once, when it begins; or, if not paced, without waiting."""
    end, last = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        clock = client.get("/v1/clock").json()
        if is_paced and clock["step"] == last:
            time.sleep(clock["closes_in_s"])
            continue
        last = clock["step"]
        yield last


def make_reports(num_sensors: int) -> list[dict[str, Any]]:
    """One report for each stream and sensor, without its step."""
    from dpfuse.wire.tokens import Tokens

    tokens = [Tokens(SECRET).issue(sensor) for sensor in range(num_sensors)]
    return [{"token": token, "stream": name, "values": [103.25, 9.75]} for name in STREAMS for token in tokens]


def send_mqtt(address: str, *, port: int, is_paced: bool) -> tuple[int, float]:
    """Send reports over one connection for each sensor, to every stream at each step; reports, and seconds."""
    import httpx
    import orjson
    from paho.mqtt import client as paho

    from dpfuse.wire.tokens import Tokens

    acknowledged, clients = threading.Semaphore(0), []
    for sensor in range(MQTT["sensors"]):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.username_pw_set(str(sensor), Tokens(SECRET).issue(sensor))
        client.max_inflight_messages_set(1000)
        client.on_publish = lambda *_: acknowledged.release()
        client.connect("127.0.0.1", port)
        client.loop_start()
        clients.append(client)
    time.sleep(1.0)
    reports = make_reports(MQTT["sensors"])
    sent = 0
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as http:
        start = time.perf_counter()
        for step in steps(http, is_paced):
            for number, report in enumerate(reports):
                sensor = number % MQTT["sensors"]
                topic = f"dpfuse/{report['stream']}/reports/{sensor}"
                clients[sensor].publish(topic, orjson.dumps(report | {"step": step}), qos=1)
            sent += len(reports)
            for _ in reports:
                acknowledged.acquire(timeout=30)
        seconds = time.perf_counter() - start
    for client in clients:
        client.disconnect()
        client.loop_stop()
    return sent, seconds


if __name__ == "__main__":
    if sys.argv[1:2] == ["centre"]:
        run_counting_centre(Path(sys.argv[2]), sys.argv[3])
    else:
        main()
