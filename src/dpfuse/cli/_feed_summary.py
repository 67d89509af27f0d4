"""Estimates and errors of a stream, collected from the feed of a centre that runs a replay."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

# The number of latest steps whose estimates are kept.
_KEPT = 5000


@dataclass
class FeedSummary:
    """What the feed of the stream `main` has shown so far.

    Attributes:
        prior: the estimate without releases.
        num_steps: steps with a release.
        first_step, last_step: the first and the last of them.
        num_with_truth: steps for which the true state is known.
        squared_error, prior_squared_error: summed over these steps, of the estimate and of the prior.
        longest_ms: the longest time that a step took, in milliseconds.
        last: the last point of the feed.
        means: the estimates of the latest steps, by step.
    """

    prior: float
    num_steps: int = 0
    first_step: int = 0
    last_step: int = 0
    num_with_truth: int = 0
    squared_error: float = 0.0
    prior_squared_error: float = 0.0
    longest_ms: float = 0.0
    last: dict[str, Any] = field(default_factory=dict)
    means: dict[int, float] = field(default_factory=dict)

    def follow(self, url: str) -> None:
        """Read the feed until the process ends."""
        from dpfuse.remote.client import connection_errors, make_client, read_events

        with make_client(url) as client:
            while True:
                with suppress(*connection_errors()):
                    for point in read_events(client, "/v1/streams/main/feed", self.last_step + 1):
                        if "mean" in point:
                            self.add(point)
                time.sleep(0.2)

    def add(self, point: dict[str, Any]) -> None:
        """Add one point of the feed."""
        self.first_step = self.first_step or point["step"]
        self.num_steps, self.last_step, self.last = self.num_steps + 1, point["step"], point
        self.means[point["step"]] = point["mean"][0]
        if len(self.means) > _KEPT:
            del self.means[next(iter(self.means))]
        self.longest_ms = max(self.longest_ms, point.get("latency_ms") or 0.0)
        if point.get("error"):
            self.num_with_truth += 1
            self.squared_error += point["error"][0] ** 2
            self.prior_squared_error += (point["truth"][0] - self.prior) ** 2

    @property
    def num_skipped(self) -> int:
        """Steps without a release."""
        return self.last_step - self.first_step + 1 - self.num_steps if self.num_steps else 0

    @property
    def rmse(self) -> float | None:
        return math.sqrt(self.squared_error / self.num_with_truth) if self.num_with_truth else None

    @property
    def prior_rmse(self) -> float | None:
        return math.sqrt(self.prior_squared_error / self.num_with_truth) if self.num_with_truth else None

    def __str__(self) -> str:
        """The last step on one line; empty before the first."""
        if not self.num_steps:
            return ""
        mean, std, truth = self.last["mean"][0], self.last["std"][0], self.last.get("truth")
        true = f", true value {truth[0]:.0f}" if truth else ""
        error = "" if self.rmse is None else f"; error so far {self.rmse:.1f}"
        return f"step {self.last_step:,}: {mean:.0f} ± {std:.0f} vehicles per km and lane{true}{error}"
