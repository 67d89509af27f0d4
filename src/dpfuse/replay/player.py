"""Sends recorded or simulated measurements to a running centre, one scene for each step of its clock."""

from __future__ import annotations

import heapq
import itertools
import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse.replay.faults import Faults, make_garbage
from dpfuse.replay.scenes import Scene, SceneSequence
from dpfuse.replay.transports import OutgoingMessage, OverHTTP, Transport, send_lines
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import write_report

if TYPE_CHECKING:
    import httpx

# Reports leave this share of an interval after their step has opened, so that delayed ones can still be in time.
_SEND_AT = 0.1
_READ_CLOCK_EVERY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_BATCH = 1000
_PUBLISHER = 0
_NUM_KEYS = 10_000  # kept, as it takes time to make them


@dataclass
class Tally:
    """What a replay has done so far.

    Attributes:
        step: the centre's step that was reported for last.
        num_steps: steps that were reported for.
        num_reports: reports that were sent, duplicates and garbage included.
        num_sensors: sensors that report at this step.
        num_lost, num_doubled, num_garbage: reports with each fault.
        num_outages: how many times the centre could not be reached.
        speed: seconds of data for each second.
    """

    step: int = 0
    num_steps: int = 0
    num_reports: int = 0
    num_sensors: int = 0
    num_lost: int = 0
    num_doubled: int = 0
    num_garbage: int = 0
    num_outages: int = 0
    speed: float = 0.0


class Replay:
    """Sends the scenes to a centre one after the other; each sensor has its own key.

    Public inputs have the key of a publisher. Those that hold at a step are published in the step before, when a real
    publisher knows them.

    Time goes on while the centre is away: when it is back, the scenes of that time have passed.

    Args:
        client: of the centre; see `make_client`.
        data: what the sensors measure.
        keys: those of the centre's key file.
        stream: the stream to report to.
        speed: seconds of data for each second; by default one scene for each step of the centre.
        faults: what goes wrong on the way.
        transport: sends the reports, by default over HTTP. Clock, truth and public inputs always use HTTP.
        is_sealed: encrypt the reports, so that only the centre can read them.
        tell: gets a line of text when the connection is lost or back.
    """

    def __init__(
        self,
        client: httpx.Client,
        data: SceneSequence,
        keys: Keys,
        *,
        stream: str = "main",
        speed: float | None = None,
        faults: Faults | None = None,
        transport: Transport | None = None,
        is_sealed: bool = False,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._url = str(client.base_url).rstrip("/")
        self._client, self._scenes, self._stream = client, data.scenes, stream
        self._ahead: deque[Scene] = deque()
        self._publisher = keys.issue_publisher(_PUBLISHER)
        self._issue = lru_cache(_NUM_KEYS)(keys.issue)
        self._interval_s = _check.is_positive("interval_s", data.interval_s)
        self._speed = None if speed is None else _check.is_positive("speed", speed)
        self._faults, self._tell = faults or Faults(), tell
        self._rng = np.random.default_rng(self._faults.seed)
        self._transport = transport or OverHTTP(client, expects_refusals=self._faults.garbage > 0)
        self._delayed: list[tuple[float, int, OutgoingMessage]] = []
        self._numbers = itertools.count()
        self._sends_truth, self._is_sealed = True, is_sealed
        self.tally = Tally()

    def run(self, seconds: float | None = None, every_second: Callable[[Tally], object] = lambda _: None) -> Tally:
        """Send for so long, or until the data or the design ends; `every_second` gets the tally."""
        shown_at = time.monotonic()
        ends_at = None if seconds is None else shown_at + seconds
        for _ in self._steps(ends_at):
            if time.monotonic() >= shown_at:
                every_second(self.tally)
                shown_at = time.monotonic() + 1.0
        return self.tally

    def _steps(self, ends_at: float | None) -> Iterator[None]:
        """Send one step after the other, through restarts of the centre."""
        import httpx

        clock, last_moment = None, None
        while ends_at is None or time.monotonic() < ends_at:
            try:
                if clock is None or time.monotonic() > clock.read_at + _READ_CLOCK_EVERY_S:
                    clock = _read_clock(self._client)
                if clock.is_over:
                    return
                step, moment = clock.next_step(self.tally.step)
                self._wait_until(moment)
                passed = 1 if last_moment is None else max(1, round((moment - last_moment) / clock.interval_s))
                scenes_each = self._scenes_each(clock.interval_s)
                scene = self._advance(passed * scenes_each)
                last_moment = moment
                if scene is None:
                    return
                if scene.inputs is not None:
                    self._publish_inputs(step + 1, self._look_ahead(scenes_each), scenes_each)
                self._post_truth(step, scene.state)
                self._send_scene(step, scene)
                yield
            except httpx.TransportError as error:
                self._tell(f"{self._url} is away ({type(error).__name__}); trying again")
                self.tally.num_outages += 1
                if not _wait_for_centre(self._client, ends_at):
                    return
                self._tell(f"{self._url} is back")
                self.tally.step, clock = 0, None

    def _scenes_each(self, centre_interval_s: float) -> int:
        """The number of scenes in a step of the centre."""
        speed = self._interval_s / centre_interval_s if self._speed is None else self._speed
        scenes = speed * centre_interval_s / self._interval_s
        if round(scenes) < 1 or abs(scenes - round(scenes)) > 1e-6 * scenes:
            raise ValueError(
                f"speed must be a multiple of {self._interval_s / centre_interval_s:g} for a centre with steps of "
                f"{centre_interval_s:g} s, got {speed:g}; speed N needs a centre with --interval {self._interval_s:g}/N"
            )
        self.tally.speed = speed
        return round(scenes)

    def _advance(self, num_scenes: int) -> Scene | None:
        """The scene after `num_scenes` steps of the data; None after the last."""
        scene, num_left = None, num_scenes
        while self._ahead and num_left:
            scene, num_left = self._ahead.popleft(), num_left - 1
        # Scenes of a long outage are skipped one by one: together they would not fit into memory.
        return next(itertools.islice(self._scenes, num_left - 1, None), None) if num_left else scene

    def _look_ahead(self, num_scenes: int) -> Scene | None:
        """The same scene, which is still to come; those up to it are kept."""
        self._ahead.extend(itertools.islice(self._scenes, max(0, num_scenes - len(self._ahead))))
        return self._ahead[num_scenes - 1] if len(self._ahead) >= num_scenes else None

    def _publish_inputs(self, step: int, scene: Scene | None, scenes_each: int) -> None:
        """Publish the inputs that hold at the step of that scene, the older ones again, so that none stays lost."""
        if scene is None or scene.inputs is None:
            return
        values, ages = scene.inputs[0], scene.inputs[1] // scenes_each
        lines = []
        for age in np.unique(ages[np.isfinite(values)]).tolist():
            own = [
                value if is_own else None
                for value, is_own in zip(values.tolist(), (ages == age) & np.isfinite(values), strict=True)
            ]
            lines.append(write_report(self._publisher.sign(self._stream, max(1, step - age), own)))
        send_lines(self._client, "/v1/inputs", lines)

    def _send_scene(self, step: int, scene: Scene) -> None:
        """Send a report for every sensor of the scene, with the faults."""
        now, faults, tally = time.monotonic(), self._faults, self.tally
        for sensor, measured in zip(scene.sensors.tolist(), scene.measurements.tolist(), strict=True):
            values = [None if math.isnan(value) else value for value in measured]
            chances = self._rng.random(4)
            if chances[0] < faults.loss:
                tally.num_lost += 1
                continue
            key = self._issue(sensor)
            line = write_report((key.seal if self._is_sealed else key.sign)(self._stream, step, values))
            if chances[1] < faults.garbage:
                tally.num_garbage += 1
                line = json.dumps(make_garbage(key.sign(self._stream, step, values), self._rng)).encode()
            sent, due = OutgoingMessage(key, line), now + faults.delay_s * chances[2]
            heapq.heappush(self._delayed, (due, next(self._numbers), sent))
            if chances[3] < faults.duplicates:
                tally.num_doubled += 1
                heapq.heappush(self._delayed, (due + faults.delay_s * chances[0], next(self._numbers), sent))
        tally.step, tally.num_sensors, tally.num_steps = step, len(scene.sensors), tally.num_steps + 1
        self._send_due()

    def _wait_until(self, moment: float) -> None:
        """Sleep until the moment, and send delayed reports in between when they are due."""
        while (now := time.monotonic()) < moment:
            first = self._delayed[0][0] if self._delayed else moment
            time.sleep(max(0.0, min(first, moment) - now))
            self._send_due()

    def _send_due(self) -> None:
        due: list[OutgoingMessage] = []
        while self._delayed and self._delayed[0][0] <= time.monotonic() and len(due) < _BATCH:
            due.append(heapq.heappop(self._delayed)[2])
        if due:
            self._transport.send(due)
            self.tally.num_reports += len(due)

    def _post_truth(self, step: int, state: NDArray[Any]) -> None:
        if self._sends_truth:
            truth = {"stream": self._stream, "step": step, "state": np.asarray(state).tolist()}
            self._sends_truth = self._client.post("/v1/replay/truth", json=truth).status_code == 202
            if not self._sends_truth:
                self._tell("the centre does not take the truth: it runs without --replay")


class _CentreClock(NamedTuple):
    """The centre's clock, as it was read at `read_at`: `step` closes at `closes_at`."""

    read_at: float
    step: int
    closes_at: float
    interval_s: float
    is_over: bool

    def next_step(self, last: int) -> tuple[int, float]:
        """The first step after `last` that can still be reported for, and the moment to send its reports."""
        opened_at = self.closes_at - self.interval_s
        now = self.step + int((time.monotonic() - opened_at) // self.interval_s)
        step = max(last + 1, now)
        return step, opened_at + (step - self.step + _SEND_AT) * self.interval_s


def _read_clock(client: httpx.Client) -> _CentreClock:
    asked_at = time.monotonic()
    answer = client.get("/v1/clock")
    read_at = time.monotonic()
    try:
        content = answer.json()
        # The answer was written at some time between the request and now.
        closes_at = (asked_at + read_at) / 2 + content["closes_in_s"]
        return _CentreClock(read_at, content["step"], closes_at, content["interval_s"], content["is_over"])
    except (KeyError, TypeError, ValueError):
        raise ConnectionError(
            f"{client.base_url} has no clock (status {answer.status_code}); is it a centre?"
        ) from None


def _wait_for_centre(client: httpx.Client, ends_at: float | None) -> bool:
    """Wait until the centre answers; False if the time ended before."""
    import httpx

    pause_s = _FIRST_PAUSE_S
    while ends_at is None or time.monotonic() < ends_at:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            _read_clock(client)
            return True
        except (httpx.TransportError, ConnectionError):
            continue
    return False
