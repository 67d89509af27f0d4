"""Vehicles as clients: recorded or simulated traffic, played to a live centre at the pace of its clock."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.remote.follower import make_client
from dpfuse.replay.transports import OverHTTP, Sent, Transport, post
from dpfuse.wire.tokens import Tokens

if TYPE_CHECKING:
    import httpx

# Reports leave this share of an interval after their step has opened: there is time for those that are held up.
_SENT_AT = 0.1
_SET_WATCH_EVERY_S = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_BATCH = 1000


class Scene(NamedTuple):
    """The road at one moment: the true state, shape (n_x,), and id and measurements of who reports, (m,), (m, n_y)."""

    state: NDArray[Any]
    sensors: Integers
    measurements: NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Troubles:
    """What goes wrong between a vehicle and the centre.

    Attributes:
        loss: chance that a report is never sent.
        delay_s: each report is held up for a time drawn evenly from 0 to this.
        duplicates: chance that a report is sent twice.
        garbage: chance that a vehicle sends something else in place of its report.
        seed: of all of these.
    """

    loss: float = 0.0
    delay_s: float = 0.0
    duplicates: float = 0.0
    garbage: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicates", "garbage"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if not 0 <= self.delay_s <= 3600:
            raise ValueError(f"delay_s must be from 0 to 3600, got {self.delay_s}")
        _check.is_count("seed", self.seed, minimum=0)


@dataclass
class Tally:
    """What was played so far.

    Attributes:
        step: of the centre, for which was reported last.
        num_steps, num_reports: that were played and sent, duplicates and garbage included.
        num_vehicles: that report at this moment.
        num_lost, num_doubled, num_garbage: of the troubles.
        num_outages: how often the centre was away.
        speed: seconds of traffic in a second.
    """

    step: int = 0
    num_steps: int = 0
    num_reports: int = 0
    num_vehicles: int = 0
    num_lost: int = 0
    num_doubled: int = 0
    num_garbage: int = 0
    num_outages: int = 0
    speed: float = 0.0


class Replay:
    """Plays scenes to a centre: one after the other, each vehicle with its own token.

    Time is real time: while the centre is away the traffic moves on, and a centre that comes back finds it further on.

    Args:
        url: of the centre.
        scenes: the traffic, `interval_s` seconds from one to the next.
        tokens: made with the centre's secret.
        speed: seconds of traffic in a second; by default one scene for each step of the centre.
        troubles: what goes wrong on the way.
        transport: how reports travel, by default over HTTP; clock and truth always do.
        ca: certificates to trust, for a centre with one of its own making.
        tell: is handed a line when something happens.
    """

    def __init__(
        self,
        url: str,
        scenes: Iterator[Scene],
        interval_s: float,
        tokens: Tokens,
        *,
        stream: str = "main",
        speed: float | None = None,
        troubles: Troubles | None = None,
        transport: Transport | None = None,
        ca: Path | None = None,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._url, self._scenes, self._tokens, self._stream, self._ca = url, scenes, tokens, stream, ca
        self._interval_s = _check.is_positive("interval_s", interval_s)
        self._speed = None if speed is None else _check.is_positive("speed", speed)
        self._troubles, self._tell = troubles or Troubles(), tell
        self._rng = np.random.default_rng(self._troubles.seed)
        self._transport = transport
        self._held_up: list[tuple[float, int, Sent]] = []
        self._numbers = itertools.count()
        self._tells_truth = True
        self.tally = Tally()

    def run(self, seconds: float | None = None, every_second: Callable[[Tally], object] = lambda _: None) -> Tally:
        """Play for so long, or until the traffic or the design ends; `every_second` sees how far it has come."""
        with make_client(self._url, self._ca) as client:
            shown_at = time.monotonic()
            ends_at = None if seconds is None else shown_at + seconds
            transport = self._transport or OverHTTP(client, expects_refusals=self._troubles.garbage > 0)
            for _ in self._steps(client, transport, ends_at):
                if time.monotonic() >= shown_at:
                    every_second(self.tally)
                    shown_at = time.monotonic() + 1.0
        return self.tally

    def _steps(self, client: httpx.Client, transport: Transport, ends_at: float | None) -> Iterator[None]:
        """One step of the centre after the other, through its restarts."""
        import httpx

        watch, last_moment = None, None
        while ends_at is None or time.monotonic() < ends_at:
            try:
                if watch is None or time.monotonic() > watch.set_at + _SET_WATCH_EVERY_S:
                    watch = _ask_clock(client)
                if watch.is_over:
                    return
                step, moment = watch.next_step(self.tally.step)
                self._wait_until(transport, moment)
                passed = 1 if last_moment is None else max(1, round((moment - last_moment) / watch.interval_s))
                scene = self._advance(passed * self._scenes_each(watch.interval_s))
                last_moment = moment
                if scene is None:
                    return
                self._post_truth(client, step, scene.state)
                self._play(transport, step, scene)
                yield
            except httpx.TransportError as error:
                self._tell(f"{self._url} is away ({type(error).__name__}); trying again")
                self.tally.num_outages += 1
                if not _wait_for_centre(client, ends_at):
                    return
                self._tell(f"{self._url} is back")
                self.tally.step, watch = 0, None

    def _scenes_each(self, centre_interval_s: float) -> int:
        """How many scenes go by in a step of the centre."""
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
        """The scene so many further on; None past the last."""
        return next(itertools.islice(self._scenes, num_scenes - 1, None), None)

    def _play(self, transport: Transport, step: int, scene: Scene) -> None:
        """One scene: a report from every vehicle, whatever becomes of it."""
        now, troubles, tally = time.monotonic(), self._troubles, self.tally
        for sensor, values in zip(scene.sensors.tolist(), scene.measurements.tolist(), strict=True):
            chances = self._rng.random(4)
            if chances[0] < troubles.loss:
                tally.num_lost += 1
                continue
            token = self._tokens.issue(sensor)
            report: Any = {"token": token, "stream": self._stream, "step": step, "values": values}
            if chances[1] < troubles.garbage:
                tally.num_garbage += 1
                report = spoil(report, self._rng)
            sent, due = Sent(sensor, token, report), now + troubles.delay_s * chances[2]
            heapq.heappush(self._held_up, (due, next(self._numbers), sent))
            if chances[3] < troubles.duplicates:
                tally.num_doubled += 1
                heapq.heappush(self._held_up, (due + troubles.delay_s * chances[0], next(self._numbers), sent))
        tally.step, tally.num_vehicles, tally.num_steps = step, len(scene.sensors), tally.num_steps + 1
        self._send_due(transport)

    def _wait_until(self, transport: Transport, moment: float) -> None:
        """Sleep, and send in between what was held up."""
        while (now := time.monotonic()) < moment:
            first = self._held_up[0][0] if self._held_up else moment
            time.sleep(max(0.0, min(first, moment) - now))
            self._send_due(transport)

    def _send_due(self, transport: Transport) -> None:
        due: list[Sent] = []
        while self._held_up and self._held_up[0][0] <= time.monotonic() and len(due) < _BATCH:
            due.append(heapq.heappop(self._held_up)[2])
        if due:
            transport.send(due)
            self.tally.num_reports += len(due)

    def _post_truth(self, client: httpx.Client, step: int, state: NDArray[Any]) -> None:
        if self._tells_truth:
            truth = {"stream": self._stream, "step": step, "state": np.asarray(state).tolist()}
            self._tells_truth = post(client, "/v1/replay/truth", truth).status_code == 202
            if not self._tells_truth:
                self._tell("the centre does not ask for the truth: it runs without --replay")


class _Watch(NamedTuple):
    """The centre's clock as it was read: at `set_at`, `step` had so long to go."""

    set_at: float
    step: int
    closes_at: float
    interval_s: float
    is_over: bool

    def next_step(self, last: int) -> tuple[int, float]:
        """The first step after `last` whose reports are still to leave, and the moment when they do."""
        opened_at = self.closes_at - self.interval_s
        now = self.step + int((time.monotonic() - opened_at) // self.interval_s)
        step = max(last + 1, now)
        return step, opened_at + (step - self.step + _SENT_AT) * self.interval_s


def _ask_clock(client: httpx.Client) -> _Watch:
    asked_at = time.monotonic()
    answer = client.get("/v1/clock")
    set_at = time.monotonic()
    try:
        clock = answer.json()
        # The answer was written somewhere between question and now.
        closes_at = (asked_at + set_at) / 2 + clock["closes_in_s"]
        return _Watch(set_at, clock["step"], closes_at, clock["interval_s"], clock["is_over"])
    except (KeyError, TypeError, ValueError):
        raise ConnectionError(
            f"{client.base_url} has no clock (status {answer.status_code}); is it a centre?"
        ) from None


def _wait_for_centre(client: httpx.Client, ends_at: float | None) -> bool:
    """Whether the centre came back in time."""
    import httpx

    pause_s = _FIRST_PAUSE_S
    while ends_at is None or time.monotonic() < ends_at:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        try:
            _ask_clock(client)
            return True
        except (httpx.TransportError, ConnectionError):
            continue
    return False


def spoil(report: dict[str, Any], rng: np.random.Generator) -> Any:
    """What a broken or malicious vehicle might send in place of its report."""
    kinds: list[Callable[[], Any]] = [
        lambda: report | {"values": [float("nan")] * len(report["values"])},
        lambda: report | {"values": [1e308] * len(report["values"])},
        lambda: report | {"values": [-(10**400)] * len(report["values"])},
        lambda: report | {"values": []},
        lambda: report | {"values": report["values"] * 50},
        lambda: report | {"values": "fast"},
        lambda: report | {"values": {"x": [[[[]]]]}},
        lambda: report | {"values": [None, True]},
        lambda: report | {"step": -1},
        lambda: report | {"step": 2**70},
        lambda: report | {"step": "now"},
        lambda: report | {"stream": "elsewhere"},
        lambda: report | {"token": report["token"][:-4] + "0000"},
        lambda: report | {"token": "0"},
        lambda: {"token": report["token"]},
        lambda: [report],
        lambda: None,
        lambda: "\x00" * 100,
    ]
    return kinds[int(rng.integers(len(kinds)))]()
