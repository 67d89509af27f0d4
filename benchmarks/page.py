"""Time until the live page shows its first release, and time between its updates, in headless Chromium."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live_step import make_design
from benchmarks.timing import keep, summarise

INTERVAL_S, VISITS, WATCHED_S = 0.2, 10, 20
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
# When each step was drawn, in ms since the page was requested.
WATCH = """() => {
  window.drawn = [];
  new MutationObserver(() => window.drawn.push(performance.now()))
    .observe(document.body, { attributeFilter: ["data-step"] });
}"""


def main() -> None:
    """Measure and write results/page.json."""
    import shutil

    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    if program is None:
        print("chromium is not installed, so nothing is measured: apt-get install chromium", file=sys.stderr)
        return
    with centre() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        visits = [visit(browser, address) for _ in range(VISITS + 1)][1:]  # without the first, which fills caches
        gaps = watch(browser, address)
        browser.close()
    moments = ("first_paint", "first_release")
    results = {
        "settings": {"interval_s": INTERVAL_S, "visits": VISITS, "watched_s": WATCHED_S},
        "ms": {
            **{name: summarise([one[name] / 1e3 for one in visits]).to_dict() for name in moments},
            "between_updates": summarise(gaps).to_dict(),
        },
        "kilobytes": round(visits[0]["bytes"] / 1e3, 1),
        "requests_to_other_hosts": sum(one["elsewhere"] for one in visits),
        "updates_per_second": round(len(gaps) / sum(gaps), 3),
    }
    keep("page", results, packages=("fastapi", "uvicorn", "playwright"))


@contextmanager
def centre() -> Iterator[str]:
    """The address of a `dpfuse serve` in a process of its own."""
    from dpfuse.wire.key_file import KeyFile

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        dataclasses.replace(make_design("individual"), interval_s=INTERVAL_S).save(place / "road.dpfuse")
        KeyFile.create(place / "centre.keys")
        command = "from dpfuse.cli import main; main()"
        options = ["--design", "road.dpfuse", "--ledger", "road.db", "--new", "--keys", "centre.keys"]
        options += ["--port", "0", "--reading-port", "0"]
        process = subprocess.Popen(
            [sys.executable, "-c", command, "serve", *options], cwd=place, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            process.stdout.readline()  # the address for sensors
            yield process.stdout.readline().split()[1] + "/"
        finally:
            process.terminate()
            process.wait(30)


def visit(browser: Any, address: str) -> dict[str, float]:
    """One visit with an empty cache: first paint and first release drawn, in ms since the page was requested."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.wait_for_selector("body[data-step]:not([data-step=''])")
    first = page.evaluate("performance.getEntriesByName('up')[0].startTime")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN")
    sizes = page.evaluate("performance.getEntries().reduce((sum, one) => sum + (one.transferSize ?? 0), 0)")
    context.close()
    elsewhere = sum(not url.startswith(address) for url in asked)
    return {"first_paint": paint, "first_release": first, "bytes": sizes, "elsewhere": elsewhere}


def watch(browser: Any, address: str) -> list[float]:
    """Seconds between the changes of a page that is open for a while."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(address)
    page.wait_for_selector("body[data-step]:not([data-step=''])")
    page.evaluate(WATCH)
    time.sleep(WATCHED_S)
    gaps = np.diff(page.evaluate("window.drawn")) / 1e3
    page.context.close()
    return list(gaps)


if __name__ == "__main__":
    main()
