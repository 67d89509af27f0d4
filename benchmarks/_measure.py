"""Timing side by side, and results with what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Milliseconds."""

    median: float
    best: float
    p99: float
    repeats: int

    def to_dict(self) -> dict[str, float]:
        """The fields as JSON takes them."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


def alternate(tasks: dict[str, Callable[[], Any]], repeats: int = 30) -> dict[str, Timing]:
    """Time the tasks in turn, so that whatever else the machine does falls on all of them alike."""
    for task in tasks.values():
        task()
        task()
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            seconds[name].append(time.perf_counter() - start)
    return {name: summarise(values) for name, values in seconds.items()}


def summarise(seconds: list[float]) -> Timing:
    """Median, best and 99th percentile of durations."""
    ms = 1e3 * np.array(seconds)
    return Timing(float(np.median(ms)), float(ms.min()), float(np.quantile(ms, 0.99)), len(ms))


def write_results(
    name: str, results: dict[str, Any], *, command: str | None = None, packages: Sequence[str] = ()
) -> None:
    """Print the results and keep them in results/NAME.json, with the machine and the versions, of `packages` too."""
    machine = {"cores": os.cpu_count(), "processor": platform.processor() or platform.machine()}
    versions = {package: version(package) for package in ("jax", "equinox", "numpy", "opendp", *packages)}
    results = {
        "command": command or f"python benchmarks/{name}.py",
        "machine": machine,
        "versions": versions,
        **results,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))
