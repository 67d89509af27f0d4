"""What the page receives for each release: a function of releases and public settings alone.

In a replay, where the data is simulated or public, a point also holds the truth, the error, the latency of the tick and
the number of reports. A centre with real sensors shows none of these.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.privacy.loss import renyi_loss
from dpfuse.public.events import frame
from dpfuse.public.parts import CentreParts
from dpfuse.public_inputs import unpack

if TYPE_CHECKING:
    from dpfuse.public.hub import Hub
    from dpfuse.public.replay_notes import ReplayNotes
    from dpfuse.public.rows import Published
    from dpfuse.public.settings import PublicSettings

HISTORY_S = 300.0
"""Seconds of the past that a newly opened page shows, at most."""
_MAX_STEPS = 3000
STATUS_EVERY_S = 1.0
wall_clock = time.time


class Feed:
    """The published steps of every stream, with estimate and loss.

    **Guarantees**
        - Without `notes`, everything here is a function of published rows, their estimates, the ticker's status and
          public settings. A centre with real sensors has no notes.

    Args:
        settings: the public settings of the centre.
        status: returns the ticker's status: running, over, failed or stopped.
        notes: truth, number of reports and latency, in a replay.
        parts: returns which parts of the centre answer.

    Attributes:
        first_step: the first step of the centre's process; a page sees by it that the centre was restarted.
    """

    def __init__(
        self,
        hub: Hub,
        settings: PublicSettings,
        *,
        status: Callable[[], str] = lambda: "running",
        notes: ReplayNotes | None = None,
        parts: Callable[[], CentreParts] = CentreParts,
    ) -> None:
        self.hub, self.settings, self.notes = hub, settings, notes
        self.guarantee, self.first_step = settings.guarantee, settings.first_step
        self._status, self._parts = status, parts
        self._times: dict[int, float] = {}
        self._num_released = dict.fromkeys(hub.streams, 0)
        hub.on_publish(self._count)

    @property
    def num_kept(self) -> int:
        """The number of past steps that a page shows."""
        return min(_MAX_STEPS, math.ceil(HISTORY_S / self.settings.interval_s))

    def is_spent(self, stream: str) -> bool:
        """Whether the stream's total budget is spent; always False with individual accounts, where that is private.

        Later releases are noise alone.
        """
        latest = self.latest(stream)
        left = None if latest is None else latest.row.budget_left
        return left is not None and as_loss(self.guarantee.order, left) <= self.settings.spent_below

    @property
    def status(self) -> str:
        return self._status()

    @property
    def parts(self) -> CentreParts:
        return self._parts()

    def time_of(self, step: int) -> float | None:
        """The wall-clock time at which the step was published; None if this process does not know it."""
        return self._times.get(step)

    def set_time(self, step: int, at_s: float) -> None:
        """Set the time of a step; for a relay, which may hear of it later."""
        self._times[step] = at_s
        while len(self._times) > self.num_kept:
            del self._times[next(iter(self._times))]

    def latest(self, stream: str) -> Published | None:
        """The newest release; None before the first."""
        return next(iter(self.hub.recent(stream, self.hub.last_step(stream))), None)

    def counts(self, stream: str) -> tuple[int, int]:
        """The numbers of steps that the centre's process has released and has skipped."""
        num_released = self._num_released[stream]
        return num_released, max(0, self.hub.last_step(stream) + 1 - self.first_step - num_released)

    def set_released(self, stream: str, num_released: int) -> None:
        """Set the number of steps that the centre's process has released; for a relay, which has not seen them all."""
        self._num_released[stream] = num_released

    def _count(self, published: Sequence[Published]) -> None:
        now_s = float(int(wall_clock()))  # whole seconds: how late a release left, in milliseconds, is not shown
        for one in published:
            self._num_released[one.row.stream] += 1
            if one.row.step not in self._times:
                self.set_time(one.row.step, now_s)

    async def frames(self, stream: str, start: int = 1) -> AsyncIterator[bytes]:
        """Server-sent events: the status every `STATUS_EVERY_S` and when it changes, and a point for each release."""
        start = max(start, self.hub.last_step(stream) - self.num_kept + 1)
        status, due = None, time.monotonic()
        yield b"retry: 500\n\n"
        while True:
            number = self.hub.number
            if status != (status := self.status) or time.monotonic() >= due:
                due = time.monotonic() + STATUS_EVERY_S
                described = {"status": status, "first_step": self.first_step, "step": self.hub.last_step(stream)}
                described |= {"design": self.settings.fingerprint, "parts": self.parts._asdict()}
                yield b"event: status\ndata: %s\n\n" % json.dumps(described).encode()
            published = self.hub.recent(stream, start)
            if published:
                start = published[-1].row.step + 1
                yield b"".join(frame(one.row.step, json.dumps(self.describe(one)).encode()) for one in published)
            if self.hub.is_closed:
                return
            await self.hub.wait_async(number, max(due - time.monotonic(), 0.0))

    def describe(self, published: Published) -> dict[str, Any]:
        """A step as the page reads it; release and fusion weight are in grid steps, as in the row."""
        row, mean, std = published
        described: dict[str, Any] = {
            "step": row.step,
            "mean": _short(mean),
            "std": _short(std),
            "release": row.to_release().value.tolist(),
            "fusion_weight": row.fusion_weight,
            "loss": _short([self.loss(published)])[0],
            "at": self.time_of(row.step),
        }
        if row.budget_left is not None:
            described["loss_left"] = _short([as_loss(self.guarantee.order, row.budget_left)])[0]
        if row.inputs is not None:
            values, ages = np.split(unpack(row.inputs), 2)
            described |= {"inputs": _short(values.tolist()), "input_ages": ages.astype(int).tolist()}
        return described | self._replayed(published) if self.notes is not None else described

    def _replayed(self, published: Published) -> dict[str, Any]:
        assert self.notes is not None
        at = published.row.stream, published.row.step
        truth, latency_s = self.notes.truth.get(at, []), self.notes.latency_s.get(published.row.step)
        is_known = len(truth) == len(published.mean)
        return {
            "truth": _short(truth) if is_known else None,
            "error": _short(m - t for m, t in zip(published.mean, truth, strict=True)) if is_known else None,
            "latency_ms": None if latency_s is None else _short([1e3 * latency_s])[0],
            "reports": self.notes.num_reports.get(at, 0),
        }

    def loss(self, published: Published) -> float:
        """The Rényi loss that a step was charged; in individual accounting, the most that a sensor could be charged."""
        row, settings = published.row, self.settings
        if row.cost is not None:
            return as_loss(self.guarantee.order, row.cost)
        longest = settings.dimension if settings.features == "box" else 1
        most = renyi_loss(self.guarantee.order, settings.charge_factor * longest, row.fusion_weight / GRID)
        return min(most, self.guarantee.budget)


def _short(values: Iterable[float]) -> list[float | None]:
    """The values with six digits, enough for a screen; None for infinity and NaN, which JSON does not have."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
