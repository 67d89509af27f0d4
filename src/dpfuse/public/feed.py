"""What the page is told of each release: a function of releases and public settings alone.

In replay mode, where the data is nobody's, each point also has the truth, the error, how long the tick took and how
many reports came in. Nothing else in the package may show these.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dpfuse.policy.step import HEADROOM
from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.privacy.loss import renyi_loss

if TYPE_CHECKING:
    from dpfuse.policy.design import Design
    from dpfuse.public.hub import Hub, ReplayNotes
    from dpfuse.public.rows import Published

HISTORY_S = 300.0
"""How far back a page that comes late can look, at most."""
_MOST_STEPS = 3000
HEARTBEAT_S = 1.0


class Feed:
    """The published steps of every stream with estimate and loss, to look at.

    **Guarantees**
        - Everything here is a function of published rows and their estimates, of the ticker's public state and of
          public settings, unless there are `notes`, which a centre with real sensors never has.

    Args:
        first_step: the step at which this process began, which is how a restart is seen.
        state: says what the ticker does: running, over, failed or stopped.
        notes: what a replay tells beside its reports.
    """

    def __init__(
        self,
        hub: Hub,
        design: Design,
        *,
        interval_s: float,
        first_step: int = 1,
        state: Callable[[], str] = lambda: "running",
        notes: ReplayNotes | None = None,
    ) -> None:
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be shown")
        self.hub, self.design, self.guarantee = hub, design, design.guarantee
        self.interval_s, self.first_step = interval_s, first_step
        self._state, self._notes = state, notes
        self.fingerprint = design.fingerprint
        self._num_released = dict.fromkeys(hub.streams, 0)
        hub.watch(self._count)

    @property
    def is_replay(self) -> bool:
        return self._notes is not None

    @property
    def num_kept(self) -> int:
        """How many steps back a page goes."""
        return min(_MOST_STEPS, math.ceil(HISTORY_S / self.interval_s))

    @property
    def spent_below(self) -> float:
        """What a design leaves of a total budget for want of a use: with less left, all releases are noise."""
        return 2 * HEADROOM * self.guarantee.budget

    def is_spent(self, stream: str) -> bool:
        """Whether the stream's total budget is spent; never with individual accounts, where that is private."""
        row = self.hub.latest(stream)
        left = None if row is None else row.budget_left
        return left is not None and as_loss(self.guarantee.order, left) <= self.spent_below

    @property
    def state(self) -> str:
        return self._state()

    def latest(self, stream: str) -> Published | None:
        """The newest one, None before the first of this process."""
        return next(iter(self.hub.recent(stream, self.hub.last_step(stream))), None)

    def counts(self, stream: str) -> tuple[int, int]:
        """Steps that this process has released, and those that it let pass before the last of them."""
        num_released = self._num_released[stream]
        return num_released, max(0, self.hub.last_step(stream) + 1 - self.first_step - num_released)

    def _count(self, published: Sequence[Published]) -> None:
        for one in published:
            self._num_released[one.row.stream] += 1

    async def frames(self, stream: str, start: int = 1) -> AsyncIterator[bytes]:
        """Server-sent events: the centre's state by the clock and when it changes, and a point for each release."""
        start = max(start, self.hub.last_step(stream) - self.num_kept + 1)
        state, due = None, time.monotonic()
        yield b"retry: 500\n\n"
        while True:
            number = self.hub.number
            if state != (state := self.state) or time.monotonic() >= due:
                due = time.monotonic() + HEARTBEAT_S
                yield b"event: status\ndata: %s\n\n" % self._status(stream, state)
            published = self.hub.recent(stream, start)
            if published:
                start = published[-1].row.step + 1
                yield b"".join(self._frame(one) for one in published)
            if self.hub.is_closed:
                return
            await self.hub.waited(number, max(due - time.monotonic(), 0.0))

    def _frame(self, published: Published) -> bytes:
        return b"id: %d\ndata: %s\n\n" % (published.row.step, json.dumps(self.describe(published)).encode())

    def _status(self, stream: str, state: str) -> bytes:
        last = self.hub.last_step(stream)
        status = {"state": state, "first_step": self.first_step, "step": last, "design": self.fingerprint}
        return json.dumps(status).encode()

    def describe(self, published: Published) -> dict[str, Any]:
        """A step as the page reads it: estimates in the state's units, releases in standard deviations of noise."""
        row, mean, std = published
        described: dict[str, Any] = {
            "step": row.step,
            "mean": _short(mean),
            "std": _short(std),
            "release": _short(row.to_release().value / GRID),
            "fusion_weight": _short([row.fusion_weight / GRID])[0],
            "loss": _short([self.loss(published)])[0],
        }
        if row.budget_left is not None:
            described["budget_left"] = _short([as_loss(self.guarantee.order, row.budget_left)])[0]
        return described | self._replayed(published) if self.is_replay else described

    def _replayed(self, published: Published) -> dict[str, Any]:
        assert self._notes is not None
        at = published.row.stream, published.row.step
        truth, latency_s = self._notes.truth.get(at, []), self._notes.latency_s.get(published.row.step)
        is_known = len(truth) == len(published.mean)
        return {
            "truth": _short(truth) if is_known else None,
            "error": _short(m - t for m, t in zip(published.mean, truth, strict=True)) if is_known else None,
            "latency_ms": None if latency_s is None else _short([1e3 * latency_s])[0],
            "reports": self._notes.num_reports.get(at, 0),
        }

    def loss(self, published: Published) -> float:
        """The Rényi loss of a step as it was charged; in individual accounting, the most that any sensor could pay."""
        row, structure = published.row, self.design.structure
        if row.cost is not None:
            return as_loss(self.guarantee.order, row.cost)
        longest = structure.dimension if structure.features == "box" else 1
        most = renyi_loss(self.guarantee.order, structure.charge_factor * longest, row.fusion_weight / GRID)
        return min(most, self.guarantee.budget)


def _short(values: Iterable[float]) -> list[float | None]:
    """Six digits, as much as a screen can show; JSON knows no infinity."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]
