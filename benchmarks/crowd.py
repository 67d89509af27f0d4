"""Steps that a centre with 300 streams skips while a crowd reads from it for a minute, on loopback.

16 clients read old releases as fast as they get them, 1,000 follow the releases, and 2,000 connections send a byte of a
request now and then. Sensors report meanwhile. A minute without the crowd, just before, is the comparison. The crowd is
a process of its own with a lower priority, since on a network it would use other machines' processors.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

STREAMS = tuple(f"road-{number}" for number in range(300))
INTERVAL_S = 0.4
SECONDS = 60
PAST_STEPS = 600
GREEDY, SUBSCRIBERS, SLOW = 16, 1000, 2000
SENSORS = 900
SECRET_DAYS = 1.0


def main() -> None:
    """Measure and write results/crowd.json."""
    from benchmarks.timing import keep

    with tempfile.TemporaryDirectory() as folder:
        results = run(Path(folder))
    settings = {"streams": len(STREAMS), "interval_s": INTERVAL_S, "seconds": SECONDS, "past_steps": PAST_STEPS}
    settings |= {"greedy": GREEDY, "subscribers": SUBSCRIBERS, "slow": SLOW, "sensors": SENSORS}
    load = [round(value, 1) for value in os.getloadavg()]  # of the whole machine, this benchmark included
    priority = f"nice -n {os.nice(0)} " if os.nice(0) else ""
    command = f"{priority}python -m benchmarks.crowd"
    results = {"settings": settings, "load": load, **results}
    keep("crowd", results, command=command, packages=("fastapi", "uvicorn", "h11"))


def run(folder: Path) -> dict[str, Any]:
    """A minute without the crowd and a minute with it."""
    from dpfuse.ledger import public_rows

    prepare(folder)
    command = [sys.executable, "-c", "from dpfuse.cli import main; main()", "serve", "--port=0", "--reading-port=0"]
    command += ["--per-address=0", f"--interval={INTERVAL_S}"]
    command += [f"--{name}={folder / name}" for name in ("design", "ledger", "keys")]
    found: dict[str, Any] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as centre:
        assert centre.stdout is not None
        sensors, readers = (centre.stdout.readline().split()[1] for _ in range(2))
        reporting = Reporting(folder, sensors)
        try:
            reporting.start()
            time.sleep(5)
            found["alone"] = {"steps": watch(sensors)}
            crowd = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, "-m", "benchmarks.crowd", "crowd", readers],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert crowd.stdout is not None
            crowd.stdout.readline()  # all connections are made
            found["with the crowd"] = {"steps": watch(sensors)}
            found["crowd"] = json.loads(crowd.communicate(timeout=120)[0])
        finally:
            reporting.is_over = True
            reporting.join(30)
            centre.send_signal(signal.SIGTERM)
    steps = {row.step for row in public_rows(folder / "ledger", STREAMS[7])}
    for name in ("alone", "with the crowd"):
        first, last = found[name]["steps"]
        skipped = sorted(set(range(first, last)) - steps)
        found[name] = {"steps": last - first, "skipped": len(skipped)}
    return found | {"reports": reporting.num_sent}


def prepare(folder: Path) -> None:
    """A design, keys, and a ledger whose first steps are no longer in the centre's memory."""
    from benchmarks.live_step import make_design
    from dpfuse.centre import FusionCentre
    from dpfuse.ledger import Ledger
    from dpfuse.wire.key_file import KeyFile

    design = make_design("individual")
    design.save(folder / "design")
    KeyFile.create(folder / "keys", SECRET_DAYS)
    with Ledger.create(folder / "ledger", design, STREAMS) as ledger:
        centre = FusionCentre(design, ledger)
        for _ in range(PAST_STEPS):
            centre.tick()


def watch(sensors: str) -> tuple[int, int]:
    """The steps of the centre's clock now and after the time of the test."""
    import httpx

    def step() -> int:
        return int(httpx.get(f"{sensors}/v1/clock", trust_env=False, timeout=30).json()["step"])

    first = step()
    time.sleep(SECONDS)
    return first, step()


class Reporting(threading.Thread):
    """Sends the reports of all sensors for each step, each to one stream."""

    def __init__(self, folder: Path, address: str) -> None:
        from dpfuse.wire.keys import Keys

        super().__init__(daemon=True)
        keys = Keys.load(folder / "keys")
        self._keys = [keys.issue(sensor) for sensor in range(SENSORS)]
        self._address, self.is_over, self.num_sent = address, False, 0

    def run(self) -> None:
        import httpx
        import orjson

        headers = {"content-type": "application/x-ndjson"}
        with httpx.Client(base_url=self._address, trust_env=False, timeout=30) as client:
            while not self.is_over:
                clock = client.get("/v1/clock").json()
                lines = (
                    orjson.dumps(key.sign(STREAMS[number % len(STREAMS)], clock["step"], [103.25, 9.75]))
                    for number, key in enumerate(self._keys)
                )
                answer = client.post("/v1/reports", content=b"\n".join(lines), headers=headers).json()
                self.num_sent += answer["received"]
                time.sleep(clock["closes_in_s"])


async def be_crowd(address: str) -> None:
    """In a process of its own: make all connections, say so, and keep at it for the time of the test."""
    host, port = address.removeprefix("http://").split(":")
    seen: Counter[str] = Counter()
    end = time.monotonic() + 10 * SECONDS  # moved when all are connected
    limit = asyncio.Semaphore(100)
    connected = asyncio.Semaphore(0)

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with limit:
            return await asyncio.open_connection(host, int(port))

    async def subscribe(number: int) -> None:
        is_first = True
        while time.monotonic() < end:
            with suppress(OSError):
                reader, writer = await connect()
                path = f"/v1/streams/{STREAMS[number % len(STREAMS)]}/releases/events?start={PAST_STEPS}"
                writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                if is_first:
                    connected.release()
                    is_first = False
                while line := await reader.readline():
                    seen["events"] += line.startswith(b"data:")
                writer.close()
            seen["subscribers' connections lost"] += 1

    async def dawdle(number: int) -> None:
        is_first = True
        while time.monotonic() < end:
            with suppress(OSError):
                _, writer = await connect()
                if is_first:
                    connected.release()
                    is_first = False
                for byte in b"GET /v1/clock HTTP/1.1\r\nX: " + b"a" * 1000:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(4 + number % 3)
            seen["slow connections ended"] += 1

    async def devour(number: int) -> None:
        connected.release()
        while time.monotonic() < end:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await connect()
                while True:
                    for stream in STREAMS[number::GREEDY]:
                        writer.write(f"GET /v1/streams/{stream}/releases?start=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                        head = (await reader.readuntil(b"\r\n\r\n")).lower()
                        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
                        await reader.readexactly(length)
                        seen["pages of old releases" if b" 200 " in head.split(b"\r\n")[0] else "refused"] += 1

    kinds = ((subscribe, SUBSCRIBERS), (dawdle, SLOW), (devour, GREEDY))
    tasks = [asyncio.create_task(kind(number)) for kind, count in kinds for number in range(count)]
    for _ in tasks:
        await connected.acquire()
    print("ready", flush=True)
    end = time.monotonic() + SECONDS
    await asyncio.sleep(SECONDS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(seen))


if __name__ == "__main__":
    if sys.argv[1:2] == ["crowd"]:
        asyncio.run(be_crowd(sys.argv[2]))
    else:
        main()
