"""The clock of a live centre: steps end, and releases leave, at moments that were fixed before any report came."""

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

# How long before the end of a step what came in so far is looked at, in intervals, at most.
_LEAD = 0.25

State = Literal["running", "over", "failed", "stopped"]


class Ticker:
    """Drives a centre by the monotonic clock, in a thread of its own.

    Step k ends at t0 + k interval, and what it released is handed to `publish` at t0 + k interval + delay: the time in
    between hides how long the work took, which depends on who is there.

    **Guarantees**
        - Nothing is published earlier, nor at any other moment than t0 + n interval + delay for a whole n, to the
          precision with which a thread wakes up. Work that is not done in time is published at the next such moment.
        - A step whose own moment has passed before its work could begin is skipped, and never drawn late. So work that
          is late costs the step after it, and the one after that is in time again.
        - Which reports are in time is decided when they come, by the clock: a centre that is busy with some does not
          keep the window open, or closed, for others.
        - `clock` tells what a watch would: it depends on the start and the settings alone.
        - Changes of the wall clock have no effect.
        - Any error stops the ticker for good, and with it every release; `on_error` is told.

    Args:
        centre: what to drive; nobody else calls its `tick` and `skip` meanwhile.
        publish: told what may leave, in the ticker's thread; it should return soon.
        interval_s: seconds between releases, by default the design's.
        delay_s: seconds from the end of a step to its release, by default half the interval; at most the interval.
        on_error: told of the error that stopped the ticker.
    """

    def __init__(
        self,
        centre: FusionCentre,
        publish: Callable[[list[Published]], object],
        interval_s: float | None = None,
        delay_s: float | None = None,
        on_error: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self.interval_s = _check.is_positive(
            "interval_s", centre.design.interval_s if interval_s is None else interval_s
        )
        self.delay_s = _check.is_positive("delay_s", self.interval_s / 2 if delay_s is None else delay_s)
        if self.delay_s > self.interval_s:
            raise ValueError(f"delay_s must be at most the interval, {self.interval_s:g} s, got {self.delay_s:g}")
        self.state: State = "stopped"
        self.last_latency_s = 0.0
        """How long the last step took. Private but in a replay: it depends on who is there."""
        self._centre, self._publish, self._on_error = centre, publish, on_error
        self._thread = threading.Thread(target=self._run, name="dpfuse-ticker", daemon=True)
        # Well after a release has left: what leaves does not show how long the work takes.
        self._lead_s = min(_LEAD * self.interval_s, (self.interval_s - self.delay_s) / 2)
        self._is_stopping, self._has_begun = threading.Event(), threading.Event()
        self._first_step, self._start_s = centre.now, time.monotonic()

    def start(self) -> Self:
        """Start the clock, once everything is ready: the first step ends one interval from when this returns."""
        # What is there now stays: for Python to look through all of it again and again would take longer than a step.
        gc.collect()
        gc.freeze()
        self._thread.start()
        self._has_begun.wait()
        return self

    def stop(self) -> None:
        """Stop after the step in progress: what was committed is still published, at its moment."""
        self._is_stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the ticker is over, failed or stopped."""
        self._thread.join(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def clock(self) -> dict[str, Any]:
        """The step that is collected for and the seconds until it ends, for sensors to set their watch by; public."""
        num_ended, into_s = divmod(time.monotonic() - self._start_s, self.interval_s)
        step, horizon = self._first_step + int(num_ended), self._centre.design.structure.horizon
        return {
            "step": step,
            "closes_in_s": self.interval_s - into_s,
            "interval_s": self.interval_s,
            "delay_s": self.delay_s,
            "is_over": horizon is not None and step > horizon,
        }

    def _run(self) -> None:
        try:
            self._centre.warm_up()  # here, as some things are made anew for each thread
            self._first_step, self._start_s, self.state = self._centre.now, time.monotonic(), "running"
            self._centre.keep_time(self._open_step)
            self._has_begun.set()
            self._tick_until_over()
            self.state = "stopped" if self._is_stopping.is_set() else "over"
        except BaseException as error:  # whatever it is, nothing more is released
            self.state = "failed"
            self._on_error(error)
        finally:
            self._centre.keep_time(None)
            self._has_begun.set()

    def _tick_until_over(self) -> None:
        while not self._centre.is_over and self._wait_until(self._closes_at(self._centre.now) - self._lead_s):
            step = self._centre.now
            if time.monotonic() >= self._leaves_at(step):
                self._centre.skip()
                continue
            if time.monotonic() < self._closes_at(step):
                self._centre.work_ahead()
            if not self._wait_until(self._closes_at(step)):
                return
            due = self._tick()
            done_at = time.monotonic()
            self.last_latency_s = done_at - self._closes_at(step)
            num_late = max(0, math.ceil((done_at - self._leaves_at(step)) / self.interval_s))
            self._publish_at(self._leaves_at(step + num_late), due)

    def _tick(self) -> list[Published]:
        """The step, during which Python does not look for what nobody needs any more."""
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._centre.tick()
        finally:
            if was_enabled:
                gc.enable()

    def _publish_at(self, moment_s: float, due: list[Published]) -> None:
        """Publish then what is due, also if the ticker is to stop meanwhile: it is committed."""
        time.sleep(max(0.0, moment_s - time.monotonic()))
        self._publish(due)
        self._centre.tidy()

    def _open_step(self) -> int:
        """The step that is collected for, by the clock alone."""
        return self._first_step + int((time.monotonic() - self._start_s) // self.interval_s)

    def _closes_at(self, step: int) -> float:
        return self._start_s + (step - self._first_step + 1) * self.interval_s

    def _leaves_at(self, step: int) -> float:
        return self._closes_at(step) + self.delay_s

    def _wait_until(self, moment_s: float) -> bool:
        """Whether the moment has come; False if the ticker is to stop."""
        while (left_s := moment_s - time.monotonic()) > 0:
            if self._is_stopping.wait(left_s):
                return False
        return not self._is_stopping.is_set()
