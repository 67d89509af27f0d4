"""Time tasks side by side, and keep what was measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tools.results import results_path, write_results


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
    """Time the tasks in turn, so that other load on the machine slows all of them alike."""
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


def keep(
    name: str,
    results: dict[str, Any],
    *,
    seeds: Sequence[int] = (0,),
    command: str | None = None,
    packages: Sequence[str] = (),
    note: str | None = None,
) -> None:
    """Print the results of `benchmarks/NAME.py` and write them to `benchmarks/results/NAME.json`."""
    command = command or f"python -m benchmarks.{name}"
    write_results(results_path(name), results, command=command, seeds=seeds, packages=packages, note=note)
    print(json.dumps(results, indent=1))
