"""The clock: releases leave at moments that were fixed before, whatever the work takes and whatever happens."""

from __future__ import annotations

import itertools
import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import dpfuse
from conftest import make_design
from dpfuse.errors import LedgerRefused
from dpfuse.runtime import Ticker, ticker

INTERVAL, DELAY = 0.2, 0.1


class Clock:
    """Time that passes only while somebody waits or works."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class SleepingEvent(threading.Event):
    """Waiting takes exactly as long as was asked for."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def wait(self, timeout=None):
        self._clock.now += timeout
        return self.is_set()


class StandIn:
    """A centre whose work at each step takes what the list says, and nothing once it is used up."""

    def __init__(self, clock, work=(), horizon=None, error=None):
        self.design = SimpleNamespace(interval_s=INTERVAL, structure=SimpleNamespace(horizon=horizon))
        self.now, self.ticked, self.skipped = 1, [], []
        self._clock, self._work, self._error = clock, list(work), error

    @property
    def is_over(self):
        return self.now > (self.design.structure.horizon or math.inf)

    def tick(self):
        if self._error and self.now == 3:
            raise self._error
        self.ticked.append((self.now, self._clock.now - 1000))
        self._clock.now += self._work.pop(0) if self._work else 0
        self.now += 1
        return [self.now - 1]

    def skip(self):
        self.skipped.append(self.now)
        self.now += 1

    def tidy(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(ticker, "time", clock)
    return clock


def run(clock, work=(), horizon=6, error=None, delay=DELAY):
    """A run until the design is over: what was published and when, the stand-in, and the ticker."""
    centre, published = StandIn(clock, work, horizon, error), []
    own = Ticker(centre, lambda many: published.append((round(clock.now - 1000, 9), many)), INTERVAL, delay)
    own._is_stopping = SleepingEvent(clock)
    own.state = "running"
    own._run()
    return published, centre, own


def on_time(horizon):
    return [(round(INTERVAL * k + DELAY, 9), [k]) for k in range(1, horizon + 1)]


class TestMoments:
    @pytest.mark.parametrize("work", [[], [0.03] * 6, [0.099, 0.0, 0.05, 0.001, 0.0999, 0.0]])
    def test_work_that_is_done_in_time_leaves_no_trace(self, clock, work):
        published, centre, own = run(clock, work)
        assert published == on_time(6) and own.state == "over"
        assert [round(at, 9) for _, at in centre.ticked] == [round(INTERVAL * k, 9) for k in range(1, 7)]

    def test_late_work_leaves_at_the_next_moment(self, clock):
        published, centre, _ = run(clock, [0.0, 0.15, 0.0])
        assert published == [(0.3, [1]), (0.7, [2, 3]), (0.9, [4]), (1.1, [5]), (1.3, [6])]
        assert centre.skipped == []

    def test_windows_that_passed_are_skipped(self, clock):
        """Step 2 is worked on until 0.95, and the windows of steps 3 and 4 end meanwhile: only 4 can still be drawn."""
        published, centre, _ = run(clock, [0.0, 0.55])
        assert centre.skipped == [3]
        assert [step for step, _ in centre.ticked] == [1, 2, 4, 5, 6]
        assert published == [(0.3, [1]), (1.1, [2, 4, 5]), (1.3, [6])]

    def test_nothing_leaves_early_or_off_the_beat_whatever_the_work(self, clock):
        rng = np.random.default_rng(0)
        for _ in range(50):
            clock.now = 1000.0
            work = rng.exponential(0.1, size=30) * rng.integers(0, 2, size=30)
            published, centre, own = run(clock, work.tolist(), horizon=30)
            assert own.state == "over"
            assert all(round((at - DELAY) / INTERVAL, 6).is_integer() for at, _ in published)
            done = [step for _, many in published for step in many]
            assert sorted(done + centre.skipped) == list(range(1, 31)) and done == sorted(done)
            assert all(at >= INTERVAL * step + DELAY - 1e-9 for at, many in published for step in many)

    def test_without_the_delay_the_work_would_show(self, clock, monkeypatch):
        """Negative control."""
        monkeypatch.setattr(Ticker, "_publish_at", lambda self, moment, due: self._publish(due) or [])
        published, _, _ = run(clock, [0.03, 0.05])
        assert published != on_time(6)


class TestEnds:
    def test_an_error_stops_everything_and_is_told(self, clock):
        told = []
        centre = StandIn(clock, horizon=6, error=LedgerRefused("the disk is full"))
        own = Ticker(centre, told.append, INTERVAL, DELAY, on_error=lambda error: told.append(str(error)))
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert told == [[1], [2], "the disk is full"] and own.state == "failed"

    def test_a_stop_ends_it_between_steps(self, clock):
        centre, published = StandIn(clock), []

        def publish(many):
            published.extend(many)
            if many == [3]:
                own._is_stopping.set()

        own = Ticker(centre, publish, INTERVAL, DELAY)
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert published == [1, 2, 3] and own.state == "stopped"

    @pytest.mark.parametrize(("work", "moment"), [(0.05, 0.7), (0.15, 0.9)])
    def test_a_stop_in_the_middle_of_a_step_leaves_nothing_untold(self, clock, work, moment):
        """Committed is committed: it leaves when it would have."""

        class Stopping(StandIn):
            def tick(self):
                if self.now == 3:
                    own._is_stopping.set()
                return super().tick()

        told = []
        own = Ticker(Stopping(clock, [0, 0, work]), lambda many: told.append((clock.now - 1000, many)), INTERVAL, DELAY)
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert told[-1] == (pytest.approx(moment), [3]) and own.state == "stopped"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"interval_s": 0.0}, "interval_s must be finite and > 0"),
            ({"delay_s": 0.3}, "delay_s must be at most the interval, 0.2 s, got 0.3"),
            ({"delay_s": -1.0}, "delay_s must be finite and > 0"),
        ],
    )
    def test_settings_are_checked(self, clock, options, message):
        with pytest.raises(ValueError, match=message):
            Ticker(StandIn(clock), print, **options)


def test_the_clock_tells_what_a_watch_would(clock):
    """A function of the start and the settings: a centre that is behind does not show."""
    own = Ticker(StandIn(clock, horizon=3), print)
    assert own.clock() == {"step": 1, "closes_in_s": INTERVAL, "interval_s": INTERVAL, "delay_s": 0.1, "is_over": False}
    clock.now += 0.25
    told = own.clock()
    assert told["step"] == 2 and told["closes_in_s"] == pytest.approx(0.15) and not told["is_over"]
    clock.now += 10
    assert own.clock()["is_over"]


@pytest.fixture
def real(tmp_path):
    """A real centre for 64 rows a turn, with a filter so wide that one turn more takes milliseconds."""
    design = make_design("individual", horizon=None, expected_stay=1e4, filter_size=768)
    with dpfuse.FusionCentre(design, tmp_path / "ledger.db") as centre:
        yield centre


def test_in_real_time(real, monkeypatch):
    """Nothing leaves early, the wall clock may do as it likes, and what left is what was committed."""
    real.tick()
    years = itertools.cycle([0, 3e7, -3e7])
    monkeypatch.setattr(time, "time", lambda: next(years))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * next(years)))
    published = []
    with Ticker(real, lambda many: published.append((time.monotonic(), many)), 0.1) as own:
        start = own._start_s
        own.join(1.05)
        assert own.state == "running"
    assert own.state == "stopped" and len(published) >= 4
    for moment, many in published:
        assert all(moment >= start + 0.1 * (one.row.step - 1) + 0.05 for one in many)
    rows = [one.row for _, many in published for one in many]
    assert rows == list(real._ledger.rows("main", start=2))[: len(rows)]


def offsets(centre, num_pairs, seed):
    """How long after its fixed moment each release left, in pairs of steps: one sensor more in the first of a pair.

    Which step of a pair comes first is a coin's choice. It is the 65th, for which the centre takes a second turn.
    """
    more = (np.random.default_rng(seed).random(num_pairs) < 0.5)[:, None] ^ [True, False]
    crowd = {sensor: [0.5, 0.5] for sensor in range(64)}
    left, first = {}, centre.now

    def publish(many):
        moment = time.monotonic()
        left.update({one.row.step - first: moment - own._closes_at(one.row.step) - own.delay_s for one in many})

    own = Ticker(centre, publish, 0.06, 0.055)
    with own:
        for step, has_more in enumerate(more.ravel()):
            for sensor, values in (crowd | ({64: [0.5, 0.5]} if has_more else {})).items():
                centre.receive("main", sensor, first + step, values)
            while centre.now <= first + step:
                time.sleep(0.002)
    pairs = np.array([left.get(step, np.nan) for step in range(2 * num_pairs)]).reshape(-1, 2)
    pairs = np.where(more[:, :1], pairs, pairs[:, ::-1])
    return pairs[np.isfinite(pairs).all(1)]


def can_be_told_apart(pairs, false_alarms=1e-6):
    """Sign tests of the times, and of how far they are from the usual one, with at most that share of false alarms.

    Where the sensor has no effect a coin decided which of a pair is called first, so the first is the larger one in a
    number of n pairs that is binomial, and off n / 2 by more than t n with a chance of at most 2 exp(-2 n t^2).
    """
    for values in (pairs, np.abs(pairs - np.median(pairs))):
        decided = values[values[:, 0] != values[:, 1]]
        share = (decided[:, 0] > decided[:, 1]).mean()
        if abs(share - 0.5) > math.sqrt(math.log(2 * 2 / false_alarms) / (2 * len(decided))):
            return True
    return False


def test_the_test_of_times_finds_a_shift_and_a_spread_and_nothing_else():
    pairs = np.random.default_rng(0).normal(size=(200, 2))
    assert not can_be_told_apart(pairs)
    assert can_be_told_apart(pairs + [1.5, 0]) and can_be_told_apart(pairs * [5, 1])


@pytest.mark.slow
def test_one_sensor_more_cannot_be_told_from_the_times_of_the_releases(real, monkeypatch):
    """One false alarm in a million; the negative control is a ticker that publishes as soon as the work is done."""
    for _ in range(3):
        real.step({sensor: [0.5, 0.5] for sensor in range(65)})
    pairs = offsets(real, 250, seed=1)
    assert len(pairs) > 200 and (pairs >= 0).all()
    assert not can_be_told_apart(pairs)
    monkeypatch.setattr(Ticker, "_publish_at", lambda self, moment, due: self._publish(due) or [])
    assert can_be_told_apart(offsets(real, 250, seed=2))
