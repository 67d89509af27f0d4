"""The clock of a live centre: steps end and releases are published at moments that do not depend on reports."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, Self

from dpfuse import _check
from dpfuse.centre.centre import FusionCentre
from dpfuse.public.rows import Published
from dpfuse.public.status import TickerStatus

# `work_ahead` is called at most so many intervals before the end of a step.
_LEAD = 0.25


SkipReason = Literal["late", "bank"]
"""`late`: the step's moment had passed before its work began. `bank`: the bank has not answered for its patience."""


class StepObserver:
    """Told about every step, in the ticker's thread, after its release; its methods must be quick."""

    def on_release(self, step: int, latency_s: float) -> None:
        """The step was published. How long its work took is private, as it depends on who reports."""

    def on_skip(self, step: int, reason: SkipReason) -> None:
        """The step was skipped; public."""


class Ticker:
    """Calls a centre's steps by the monotonic clock, in a thread of its own.

    Step k ends at t0 + k interval, and `publish` gets its rows at t0 + k interval + delay. The delay hides how long the
    work takes, which depends on who reports.

    **Guarantees**
        - Rows are published at t0 + n interval + delay for a whole n, as precisely as a thread wakes up, and never
          earlier than the moment of their own step. Work that is late is published at the next such moment.
        - A step is skipped if its own moment has passed before its work begins. It is never drawn late.
        - With a bank that has not answered for its patience, steps are skipped.
        - If the work of step k is late by less than one interval, step k + 1 is skipped and step k + 2 is on time.
        - Whether a report is in time is decided by the clock when it arrives. A centre that is busy neither extends nor
          shortens the time for reports.
        - `clock` depends on the start and the settings alone.
        - Changes of the wall clock have no effect, but for a guarantee with periods: it says which period it is.
        - Any error stops the ticker and every later release; `on_error` is called with it.

    Args:
        centre: the centre to run; nothing else may call its `tick` and `skip` meanwhile.
        publish: called with what may be published, in the ticker's thread; it should return soon.
        prepare: called with the same between the commit and that moment, such as to sign it.
        interval_s: seconds between releases; the design's by default.
        delay_s: seconds from the end of a step to its release; half the interval by default, at most the interval.
        on_error: called with the error that stopped the ticker.
        observer: told about every step.
    """

    def __init__(
        self,
        centre: FusionCentre,
        publish: Callable[[list[Published]], object],
        interval_s: float | None = None,
        delay_s: float | None = None,
        on_error: Callable[[BaseException], object] = lambda error: None,
        prepare: Callable[[list[Published]], object] = lambda published: None,
        observer: StepObserver | None = None,
    ) -> None:
        self.interval_s = _check.is_positive(
            "interval_s", centre.design.interval_s if interval_s is None else interval_s
        )
        self.delay_s = _check.is_positive("delay_s", self.interval_s / 2 if delay_s is None else delay_s)
        centre.check_interval(self.interval_s)
        if self.delay_s > self.interval_s:
            raise ValueError(f"delay_s must be at most the interval, {self.interval_s:g} s, got {self.delay_s:g}")
        self.status: TickerStatus = "stopped"
        self.last_latency_s = 0.0
        """How long the last step took. Private except in a replay, as it depends on who reports."""
        self._centre, self._publish, self._on_error, self._prepare = centre, publish, on_error, prepare
        self._observer = observer or StepObserver()
        self._thread = threading.Thread(target=self._run, name="dpfuse-ticker", daemon=True)
        # `work_ahead` begins only after the release of the step before, so that it cannot delay that release.
        self._lead_s = min(_LEAD * self.interval_s, (self.interval_s - self.delay_s) / 2)
        self._is_stopping, self._has_begun = threading.Event(), threading.Event()
        self._first_step, self._start_s, self._start_unix_s = centre.now, time.monotonic(), time.time()

    def start(self) -> Self:
        """Start the clock; the first step ends one interval after this returns."""
        # The garbage collector does not visit frozen objects. To visit all of them takes longer than a step.
        gc.collect()
        gc.freeze()
        self._thread.start()
        self._has_begun.wait()
        return self

    def stop(self) -> None:
        """Stop after the step in progress; what was committed is still published, at its moment."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the ticker has ended."""
        self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def clock(self) -> dict[str, Any]:
        """The step in progress, the seconds until it ends, and the settings; public. Sensors set their clocks by it."""
        num_ended, into_s = divmod(time.monotonic() - self._start_s, self.interval_s)
        step, horizon = self._first_step + int(num_ended), self._centre.design.structure.horizon
        return {
            "step": step,
            "closes_in_s": self.interval_s - into_s,
            "interval_s": self.interval_s,
            "delay_s": self.delay_s,
            "is_over": horizon is not None and step > horizon,
        }

    def begins_at(self, step: int) -> float:
        """When the step begins, in seconds since 1970 by the wall clock at the start; public, whatever the load."""
        return self._start_unix_s + (step - self._first_step) * self.interval_s

    def _run(self) -> None:
        try:
            self._centre.warm_up()  # in this thread: some of the set-up is done for each thread
            self._first_step, self._start_s, self._start_unix_s = self._centre.now, time.monotonic(), time.time()
            self.status = "running"
            self._centre.follow_clock(self._open_step)
            self._has_begun.set()
            self._tick_until_over()
            self.status = "stopped" if self._is_stopping.is_set() else "over"
        except BaseException as error:  # after any error nothing more is released
            self.status = "failed"
            self._on_error(error)
        finally:
            self._centre.follow_clock(None)
            self._has_begun.set()

    def _tick_until_over(self) -> None:
        while not self._centre.is_over:
            step, reason = self._centre.now, "late"
            if time.monotonic() < self._leaves_at(step):
                reason = "" if self._centre.begin_step(self._closes_at(step), self.interval_s) else "bank"
            if not self._wait_until(self._closes_at(step) - self._lead_s):
                return
            if reason or time.monotonic() >= self._leaves_at(step):
                self._centre.skip()
                self._observer.on_skip(step, "bank" if reason == "bank" else "late")
                continue
            if time.monotonic() < self._closes_at(step):
                self._centre.work_ahead()
            if not self._wait_until(self._closes_at(step)):
                return
            due = self._tick()
            self._prepare(due)
            done_at = time.monotonic()
            self.last_latency_s = done_at - self._closes_at(step)
            num_late = max(0, math.ceil((done_at - self._leaves_at(step)) / self.interval_s))
            self._publish_at(self._leaves_at(step + num_late), due)
            self._observer.on_release(step, self.last_latency_s)

    def _tick(self) -> list[Published]:
        """End the step, without garbage collection meanwhile."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._centre.tick()
        finally:
            if was_enabled:
                gc.enable()

    def _publish_at(self, moment_s: float, due: list[Published]) -> None:
        """Publish the rows at that moment, also if the ticker is told to stop meanwhile: they are committed."""
        time.sleep(max(0.0, moment_s - time.monotonic()))
        self._publish(due)
        self._centre.maintain()

    def _open_step(self) -> int:
        """The step in progress, by the clock alone."""
        return self._first_step + int((time.monotonic() - self._start_s) // self.interval_s)

    def _closes_at(self, step: int) -> float:
        return self._start_s + (step - self._first_step + 1) * self.interval_s

    def _leaves_at(self, step: int) -> float:
        return self._closes_at(step) + self.delay_s

    def _wait_until(self, moment_s: float) -> bool:
        """Wait for the moment; False if the ticker is told to stop."""
        while (left_s := moment_s - time.monotonic()) > 0:
            if self._is_stopping.wait(left_s):
                return False
        return not self._is_stopping.is_set()
