"""The learning curve of a learner; the clock stops while its error is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Curve:
    """Errors over the seconds of learning, by the wall clock and by processor time."""

    def __init__(self, path: Path, limit_s: float, judge: Callable[[Any], float]) -> None:
        self._path, self._limit_s, self._judge = path, limit_s, judge
        self.points: list[dict[str, float]] = []
        self._paused = [0.0, 0.0]
        self._start = self._now()

    @staticmethod
    def _now() -> list[float]:
        return [time.perf_counter(), time.process_time()]

    def seconds(self) -> list[float]:
        return [now - start - paused for now, start, paused in zip(self._now(), self._start, self._paused, strict=True)]

    @property
    def is_over(self) -> bool:
        return self.seconds()[0] >= self._limit_s

    def look(self, learner: Any, num_steps: int) -> None:
        """Measure the error with the clock stopped, and write the curve so far."""
        wall, cpu = self.seconds()
        before = self._now()
        error = self._judge(learner)
        self.points.append({"wall_s": wall, "cpu_s": cpu, "error": error, "env_steps": num_steps})
        self._path.write_text(json.dumps(self.points))
        self._paused = [
            paused + now - then for paused, now, then in zip(self._paused, self._now(), before, strict=True)
        ]
