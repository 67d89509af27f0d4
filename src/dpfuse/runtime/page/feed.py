"""What the page and the metrics are told of each release: a function of releases and public settings alone.

In replay mode, where the data is nobody's, each point also has the truth, the error, how long the tick took and how
many reports came in. Nothing else in the package may show these.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse import _check
from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.privacy.loss import renyi_loss

if TYPE_CHECKING:
    from dpfuse.policy.design import Design
    from dpfuse.runtime.centre import Published

HISTORY_S = 300.0
"""How far back a page that comes late can look, if there are few streams."""
_MOST_POINTS = 100_000
_FEWEST_STEPS = 100
HEARTBEAT_S = 1.0


class Replayed(NamedTuple):
    """What is known of a step only where the data is nobody's.

    Attributes:
        latency_s: how long its tick took.
        num_reports: how many came in for the stream.
    """

    latency_s: float
    num_reports: int


class Point(NamedTuple):
    """One release with its estimate; `replayed` and `truth` are None outside of replay mode."""

    published: Published
    replayed: Replayed | None
    truth: tuple[float, ...] | None


class Feed:
    """The last minutes of every stream, and whoever follows them.

    `publish` may be called from any thread, at the moment when a step is published and not before. Everything else
    belongs to the event loop.

    **Guarantees**
        - What a follower or `last` gets is a function of published rows and estimates and of public settings, unless
          `is_replay`.
        - A follower that is slow, or many of them, hold up nobody: points are kept once for all, and the oldest go.

    Args:
        first_step: the step at which this process began, which is how a restart is seen.
        state: says what the ticker does: running, over, failed or stopped.
        interval_s: between steps; by default the design's.
    """

    def __init__(
        self,
        design: Design,
        streams: Iterable[str],
        *,
        first_step: int = 1,
        state: Callable[[], str] = lambda: "running",
        interval_s: float | None = None,
        is_replay: bool = False,
    ) -> None:
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be shown")
        self.design, self.streams, self.is_replay = design, tuple(streams), is_replay
        self.first_step, self._state = first_step, state
        self.interval_s = design.interval_s if interval_s is None else interval_s
        per_stream = max(_FEWEST_STEPS, _MOST_POINTS // len(self.streams))
        self.num_kept = min(per_stream, math.ceil(HISTORY_S / self.interval_s))
        self._points: dict[str, deque[Point]] = {name: deque(maxlen=self.num_kept) for name in self.streams}
        self._num_released = dict.fromkeys(self.streams, 0)
        self._truth: dict[tuple[str, int], tuple[float, ...]] = {}
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @property
    def state(self) -> str:
        return self._state()

    def publish(self, published: Sequence[Published], replayed: Mapping[str, Replayed] | None = None) -> None:
        """Take in what was just published; `replayed` counts in replay mode only."""
        with self._lock:
            for one in published:
                stream, step = one.row.stream, one.row.step
                truth = self._truth.pop((stream, step), None)
                extra = replayed.get(stream) if replayed and self.is_replay else None
                self._points[stream].append(Point(one, extra, truth))
                self._num_released[stream] += 1
            waiting = list(self._waiting)
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    def tell_truth(self, stream: str, step: int, state: Sequence[float]) -> None:
        """What really was at a step that is not published yet. Replay mode only: in earnest nobody knows."""
        if not self.is_replay:
            raise ValueError("the truth may be told in replay mode only")
        _check.is_one_of("stream", stream, self.streams)
        with self._lock:
            self._truth[stream, step] = tuple(state)
            while len(self._truth) > _MOST_POINTS:  # steps that never came
                del self._truth[next(iter(self._truth))]

    def last(self, stream: str) -> Published | None:
        """The newest one, None before the first."""
        points = self._points[stream]
        return points[-1].published if points else None

    def num_released(self, stream: str) -> int:
        """Releases of this process, since `first_step`."""
        return self._num_released[stream]

    def since(self, stream: str, start: int) -> list[Point]:
        """The points from step `start` on that are still kept, in order."""
        with self._lock:
            points = list(self._points[stream])
        return [point for point in points if point.published.row.step >= start]

    async def follow(self, stream: str, start: int = 1) -> AsyncIterator[str]:
        """Server-sent events: the state of the centre every second and when it changes, and a point for each release."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        state, due = None, loop.time()
        with self._lock:
            self._waiting.add((loop, event))
        try:
            yield "retry: 500\n\n"
            while True:
                event.clear()
                if loop.time() >= due or self.state != state:
                    state, due = self.state, loop.time() + HEARTBEAT_S
                    yield f"event: status\ndata: {json.dumps(self._status(stream))}\n\n"
                for point in self.since(stream, start):
                    start = point.published.row.step + 1
                    yield f"id: {start - 1}\ndata: {json.dumps(self.describe(point))}\n\n"
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), max(due - loop.time(), 0))
        finally:
            with self._lock:
                self._waiting.discard((loop, event))

    def _status(self, stream: str) -> dict[str, Any]:
        last = self.last(stream)
        return {
            "state": self.state,
            "first_step": self.first_step,
            "step": last.row.step if last else 0,
            "design": self.design.fingerprint,
        }

    def describe(self, point: Point) -> dict[str, Any]:
        """The point as the page reads it: estimates in the state's units, releases in standard deviations of noise."""
        row, mean, std = point.published
        described: dict[str, Any] = {
            "step": row.step,
            "mean": _short(mean),
            "std": _short(std),
            "release": _short(row.to_release().value / GRID),
            "weight": _short([row.weight / GRID])[0],
            "loss": _short([self.loss(point.published)])[0],
        }
        if row.budget_left is not None:
            described["budget_left"] = _short([as_loss(self._order, row.budget_left)])[0]
        if self.is_replay:
            truth, replayed = point.truth, point.replayed
            described["truth"] = _short(truth) if truth else None
            described["error"] = _short([m - t for m, t in zip(mean, truth, strict=False)]) if truth else None
            described["latency_ms"] = _short([1e3 * replayed.latency_s])[0] if replayed else None
            described["reports"] = replayed.num_reports if replayed else None
        return described

    def loss(self, published: Published) -> float:
        """The Rényi loss of a step as it was charged; in individual accounting, the most that any sensor could pay."""
        row, structure, guarantee = published.row, self.design.structure, self.design.guarantee
        assert guarantee is not None  # checked above
        if row.cost is not None:
            return as_loss(guarantee.order, row.cost)
        longest = structure.dimension if structure.features == "box" else 1
        most = renyi_loss(guarantee.order, structure.charge_factor * longest, row.weight / GRID)
        return min(most, guarantee.budget)

    @property
    def _order(self) -> float:
        assert self.design.guarantee is not None  # checked above
        return self.design.guarantee.order


def _short(values: Iterable[float]) -> list[float | None]:
    """Six digits, as much as a screen can show; JSON knows no infinity."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
