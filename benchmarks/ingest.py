"""Reports a second into a running centre, over HTTP in batches and over MQTT through mosquitto.

The centre, with its ledger and its clock at 5 Hz, the broker and the clients are processes of their own. Reports are
first sent at a fixed rate, then as fast as they are accepted. The processor time of the centre for each report, with
all that it does meanwhile, says what a core can take where the machine has other work. Parsing, checking and handing
over is also timed alone, with and without the check of MACs.
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
        results: dict[str, Any] = {"http": run(Path(folder), "http")}
        if MOSQUITTO is None:
            print("mosquitto is not installed, so MQTT is not measured: apt-get install mosquitto", file=sys.stderr)
        else:
            results["mqtt"] = run(Path(folder), "mqtt")
        results["accept_us"] = time_acceptance(Path(folder))
    settings = {"streams": len(STREAMS), "interval_s": INTERVAL_S, "seconds": SECONDS, "http": HTTP, "mqtt": MQTT}
    load = [round(value, 1) for value in os.getloadavg()]  # of the whole machine, this benchmark included
    packages = ("fastapi", "uvicorn", "orjson", "paho-mqtt")
    keep("ingest", {"settings": settings, "load": load, **results}, packages=packages)


def run(folder: Path, kind: str) -> dict[str, Any]:
    """At a fixed rate and at full speed: reports sent, received, lost and in time, and their rate."""
    found = {}
    for pace in ("paced", "full speed", *(("full speed, MACs not checked",) if kind == "http" else ())):
        with ExitStack() as stack:
            mqtt = stack.enter_context(broker(folder)) if kind == "mqtt" else None
            address, counted = stack.enter_context(centre(folder, mqtt, checks_macs="not checked" not in pace))
            sender = send_http if mqtt is None else partial(send_mqtt, port=mqtt)
            start_s = counted()["processor_s"]
            sent, seconds = sender(address, is_paced=pace == "paced")
            before, total = None, counted()
            while before != total["received"]:  # wait for reports that are on their way
                time.sleep(2.0)
                before, total = total["received"], counted()
        found[pace] = {
            "sent": sent,
            "received": total["received"],
            "lost": sent - total["received"],
            "in_time": total["in_time"],
            "per_second": round(sent / seconds),
            "processor_us": round(1e6 * (total["processor_s"] - start_s) / max(1, total["received"]), 1),
        }
    return found


def time_acceptance(folder: Path) -> dict[str, float]:
    """Processor time of `Intake.accept` for a report, in microseconds: the median of several batches."""
    from statistics import median

    from benchmarks.live_step import make_design
    from dpfuse.centre import FusionCentre
    from dpfuse.ledger import Ledger
    from dpfuse.wire.intake import Intake
    from dpfuse.wire.keys import Keys

    lines, times = make_reports(HTTP["sensors"])(1), {"with MACs": [], "MACs not checked": []}
    check, design = Keys.check, make_design("individual")
    with Ledger.create(folder / "alone", design, STREAMS) as ledger:
        intake = Intake(FusionCentre(design, ledger), Keys.from_secret(SECRET))
        try:
            for _ in range(11):
                for name, way in (("with MACs", check), ("MACs not checked", believe)):
                    Keys.check = way  # type: ignore[method-assign]
                    start_s = time.thread_time()
                    intake.accept(lines)
                    times[name].append(1e6 * (time.thread_time() - start_s) / len(lines))
        finally:
            Keys.check = check  # type: ignore[method-assign]
    return {name: round(median(values), 2) for name, values in times.items()}


def believe(_: Any, report: Any) -> Any:
    """In the place of `Keys.check`: no MAC is checked."""
    from dpfuse.wire.keys import CheckedReport

    return CheckedReport(int(report.key.partition(".")[0]), "", report.values)


@contextmanager
def centre(folder: Path, mqtt: int | None, checks_macs: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """A centre in a process of its own: its address, and a function that reads what it counted."""
    counts = folder / "counts.json"
    for old in folder.glob("ledger*"):
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    command = [
        sys.executable,
        "-m",
        "benchmarks.ingest",
        "centre",
        str(folder),
        str(mqtt or ""),
        "macs" if checks_macs else "",
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().decode().split()[1], lambda: dict(json.loads(counts.read_text()))
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def run_counting_centre(folder: Path, mqtt: str, checks_macs: str) -> None:
    """In the child process: `dpfuse serve` with a centre that counts its reports."""
    from benchmarks.live_step import make_design
    from dpfuse.policy.exact import compute_inline
    from dpfuse.wire import serve
    from dpfuse.wire.keys import Keys

    compute_inline()
    counts = {"received": 0, "in_time": 0}

    class Counting(serve.FusionCentre):
        def receive(self, stream: str, sensor: int, step: int, values: Any) -> None:
            super().receive(stream, sensor, step, values)
            counts["received"] += 1
            counts["in_time"] += 0 <= step - self.now <= 1

    serve.FusionCentre = Counting  # type: ignore[misc]
    if not checks_macs:  # to see what the check costs
        Keys.check = believe  # type: ignore[method-assign]

    def tell() -> None:
        while True:
            used = {"processor_s": time.process_time()}  # of all threads: transport, steps and ledger
            (new := folder / "counts.new").write_text(json.dumps(counts | used))
            new.replace(folder / "counts.json")
            time.sleep(0.5)

    threading.Thread(target=tell, daemon=True).start()
    endpoints = serve.Endpoints(port=0, reading_port=0, mqtt=f"127.0.0.1:{mqtt}" if mqtt else None)
    options = serve.CentreOptions(streams=STREAMS, is_new=True, interval_s=INTERVAL_S)
    keys = Keys.from_secret(SECRET)
    design = make_design("individual")
    serve.run_centre(
        design, str(folder / "ledger"), keys, endpoints, options, announce=lambda text: print(text, flush=True)
    )


@contextmanager
def broker(folder: Path) -> Iterator[int]:
    """A mosquitto with the configuration that `dpfuse broker` writes; its port."""
    import socket

    from dpfuse.wire.broker import write_broker
    from dpfuse.wire.keys import Keys

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    configuration = write_broker(folder / "broker", Keys.from_secret(SECRET), range(MQTT["sensors"]), port=port)
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

    sign = make_reports(HTTP["sensors"])
    sent, per_step, signed_for, lines = 0, int(HTTP["per_second"] * INTERVAL_S), 0, []
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as client:
        start = time.perf_counter()
        for step in steps(client, is_paced):
            if step != signed_for:  # at full speed each report is sent several times: signing costs the sender time
                signed_for, lines = step, sign(step)[:per_step]
            for first in range(0, per_step, HTTP["batch"]):
                content = b"\n".join(lines[first : first + HTTP["batch"]])
                answer = client.post("/v1/reports", content=content, headers={"content-type": "application/x-ndjson"})
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


def make_reports(num_sensors: int) -> Callable[[int], list[bytes]]:
    """A function that signs a report for each stream and sensor."""
    from dpfuse.wire.keys import Keys
    from dpfuse.wire.messages import write_report

    keys = [Keys.from_secret(SECRET).issue(sensor) for sensor in range(num_sensors)]
    return lambda step: [write_report(key.sign(name, step, [103.25, 9.75])) for name in STREAMS for key in keys]


def send_mqtt(address: str, *, port: int, is_paced: bool) -> tuple[int, float]:
    """Send reports over one connection for each sensor, to every stream at each step; reports, and seconds."""
    import httpx
    from paho.mqtt import client as paho

    from dpfuse.wire.keys import Keys

    acknowledged, clients = threading.Semaphore(0), []
    keys = [Keys.from_secret(SECRET).issue(sensor) for sensor in range(MQTT["sensors"])]
    for key in keys:
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.username_pw_set(str(key.name), key.password)
        client.max_inflight_messages_set(1000)
        client.on_publish = lambda *_: acknowledged.release()
        client.connect("127.0.0.1", port)
        client.loop_start()
        clients.append(client)
    time.sleep(1.0)
    sign, sent = make_reports(MQTT["sensors"]), 0
    with httpx.Client(base_url=address, trust_env=False, timeout=30) as http:
        start = time.perf_counter()
        for step in steps(http, is_paced):
            reports = sign(step)
            for number, report in enumerate(reports):
                stream, sensor = divmod(number, MQTT["sensors"])
                clients[sensor].publish(f"dpfuse/{STREAMS[stream]}/reports/{keys[sensor].name}", report, qos=1)
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
        run_counting_centre(Path(sys.argv[2]), *sys.argv[3:])
    else:
        main()
