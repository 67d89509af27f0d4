"""Releases leave at fixed moments, however long the work takes, and the clock decides which reports count."""

from __future__ import annotations

import itertools
import math
import threading
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import dpfuse
from dpfuse.centre import Ticker
from dpfuse.centre import clock as clock_module
from dpfuse.errors import LedgerRefused
from support.designs import make_design
from support.timing import can_be_told_apart, in_pairs
from support.wire import wait_for

INTERVAL, DELAY = 0.2, 0.1


class Clock:
    """A clock that moves only when the code under test waits or works."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1e9 + self.now

    def sleep(self, seconds):
        self.now += seconds


class SleepingEvent(threading.Event):
    """Waiting takes exactly the given time."""

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    def wait(self, timeout=None):
        self._clock.now += timeout
        return self.is_set()


class StandIn:
    """A centre whose steps take the listed times, and later ones no time."""

    without_answer = ()

    def __init__(self, clock, work=(), horizon=None, error=None):
        self.design = SimpleNamespace(interval_s=INTERVAL, structure=SimpleNamespace(horizon=horizon))
        self.now, self.ticked, self.skipped, self.ahead, self.work_ahead_s = 1, [], [], [], 0.0
        self._clock, self._work, self._error = clock, list(work), error

    @property
    def is_over(self):
        return self.now > (self.design.structure.horizon or math.inf)

    def warm_up(self):
        pass

    def follow_clock(self, open_step):
        self.open_step = open_step

    def check_interval(self, interval_s):
        pass

    def begin_step(self, closes_at_s, interval_s):
        assert closes_at_s == pytest.approx(1000 + self.now * interval_s)
        return self.now not in self.without_answer

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

    def work_ahead(self):
        self.ahead.append((self.now, round(self._clock.now - 1000, 9)))
        self._clock.now += self.work_ahead_s

    def maintain(self):
        pass


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(clock_module, "time", clock)
    return clock


def run(clock, work=(), horizon=6, error=None, delay=DELAY, work_ahead_s=0.0):
    """A run until the design is over: what was published and when, the stand-in, and the ticker."""
    centre, published = StandIn(clock, work, horizon, error), []
    centre.work_ahead_s = work_ahead_s
    own = Ticker(centre, lambda many: published.append((round(clock.now - 1000, 9), many)), INTERVAL, delay)
    own._is_stopping = SleepingEvent(clock)
    own.status = "running"
    own._run()
    return published, centre, own


def on_time(horizon):
    return [(round(INTERVAL * k + DELAY, 9), [k]) for k in range(1, horizon + 1)]


class TestMoments:
    @pytest.mark.parametrize("work", [[], [0.03] * 6, [0.099, 0.0, 0.05, 0.001, 0.0999, 0.0]])
    def test_the_moments_do_not_depend_on_work_that_is_done_in_time(self, clock, work):
        published, centre, own = run(clock, work)
        assert published == on_time(6) and own.status == "over"
        assert [round(at, 9) for _, at in centre.ticked] == [round(INTERVAL * k, 9) for k in range(1, 7)]

    @pytest.mark.parametrize("work", [[], [0.099, 0.55, 0.0]])
    def test_the_wall_clock_is_read_once_so_that_no_work_moves_the_time_of_a_step(self, clock, work):
        _, _, own = run(clock, work)
        assert [own.begins_at(k) for k in (1, 6)] == [1e9 + 1000, 1e9 + 1000 + 5 * INTERVAL]

    @pytest.mark.parametrize("work_ahead_s", [0.0, 0.03, 0.05, 0.09])
    def test_work_ahead_starts_shortly_before_the_step_ends(self, clock, work_ahead_s):
        """Also if it takes so long that the step ends late."""
        published, centre, _ = run(clock, [0.03] * 6, work_ahead_s=work_ahead_s)
        assert published == on_time(6)
        assert centre.ahead == [(k, round(INTERVAL * k - 0.05, 9)) for k in range(1, 7)]

    @pytest.mark.parametrize("work_ahead_s", [0.151, 0.16, 0.2, 0.24, 0.3])
    def test_work_that_begins_in_time_is_released_however_long_it_takes(self, clock, work_ahead_s):
        """It may be late, and the next step is skipped: a centre that is always late releases every other step."""
        published, centre, _ = run(clock, horizon=30, work_ahead_s=work_ahead_s)
        assert [step for _, [step] in published] == list(range(1, 31, 2)) and centre.skipped == list(range(2, 31, 2))
        beats = [(moment - DELAY) / INTERVAL for moment, _ in published]
        assert beats == pytest.approx(np.round(beats), abs=1e-6)

    @pytest.mark.parametrize("delay, lead", [(0.05, 0.05), (0.1, 0.05), (0.15, 0.025), (0.199, 0.0005)])
    def test_work_ahead_starts_well_after_the_release_before(self, clock, delay, lead):
        _, centre, _ = run(clock, delay=delay)
        assert [at for _, at in centre.ahead] == pytest.approx([INTERVAL * k - lead for k in range(1, 7)])

    def test_late_work_is_published_at_the_next_moment_and_the_next_step_is_skipped(self, clock):
        published, centre, _ = run(clock, [0.0, 0.15, 0.0])
        assert published == [(0.3, [1]), (0.7, [2]), (0.9, [4]), (1.1, [5]), (1.3, [6])]
        assert centre.skipped == [3]

    def test_steps_whose_moment_has_passed_are_skipped(self, clock):
        """Step 2 is worked on until 0.95 and leaves at 1.1: by then the moments of steps 3 to 5 have come."""
        published, centre, _ = run(clock, [0.0, 0.55])
        assert centre.skipped == [3, 4, 5]
        assert published == [(0.3, [1]), (1.1, [2]), (1.3, [6])]

    def test_the_last_step_is_published_even_if_it_is_late(self, clock):
        published, _, own = run(clock, [0.0, 0.0, 0.45], horizon=3)
        assert published == [(0.3, [1]), (0.5, [2]), (1.1, [3])] and own.status == "over"

    @pytest.mark.parametrize("work", [0.100001, 0.12, 0.2, 0.299])
    def test_with_constant_lateness_every_other_step_is_published_one_interval_late(self, clock, work):
        published, centre, _ = run(clock, [work] * 30, horizon=30)
        assert published == [(round(INTERVAL * (k + 1) + DELAY, 9), [k]) for k in range(1, 30, 2)]
        assert centre.skipped == list(range(2, 31, 2))

    def test_with_a_delay_of_a_whole_interval_work_may_take_all_of_it(self, clock):
        published, centre, _ = run(clock, [0.19] * 6, delay=INTERVAL)
        assert published == [(round(INTERVAL * (k + 1), 9), [k]) for k in range(1, 7)] and not centre.skipped

    def test_releases_leave_only_at_fixed_moments_for_any_work(self, clock):
        """And work that is done is published at the first moment after it."""
        rng = np.random.default_rng(0)
        for _ in range(50):
            clock.now = 1000.0
            work = rng.exponential(0.1, size=30) * rng.integers(0, 2, size=30)
            published, centre, own = run(clock, work.tolist(), horizon=30)
            assert own.status == "over"
            assert all(round((at - DELAY) / INTERVAL, 6).is_integer() for at, _ in published)
            done = [step for _, many in published for step in many]
            assert sorted(done + centre.skipped) == list(range(1, 31)) and done == sorted(done)
            for (at, [step]), (ticked, began_at), took in zip(published, centre.ticked, work, strict=False):
                assert step == ticked and at >= INTERVAL * step + DELAY - 1e-9
                assert at < max(began_at + took + INTERVAL, INTERVAL * step + DELAY + 1e-6)

    def test_without_the_delay_the_moments_would_show_the_work(self, clock, monkeypatch):
        """Negative control."""
        monkeypatch.setattr(Ticker, "_publish_at", lambda self, moment, due: self._publish(due))
        published, _, _ = run(clock, [0.03, 0.05])
        assert published != on_time(6)


class TestArrival:
    """The clock decides whether a report counts when it arrives, however long the work on others takes."""

    @pytest.fixture
    def counted(self, clock, tmp_path, shared_steps):
        """A function that runs a real centre by the clock and returns which sensors counted in each step.

        Its arguments: (id, moment, step) of each report, and how long the work of each step takes.
        """

        def run(sends, work):
            def finish(centre, took):
                until = clock.now + took
                for sensor, at, step in sorted(sends, key=lambda send: send[1]):
                    if clock.now <= 1000 + at < until:
                        clock.now = 1000 + at
                        centre.receive("main", sensor, step, [0.5, 0.5])
                        most.append(len(centre._inboxes))
                clock.now = until

            class Slow(dpfuse.FusionCentre):
                def tick(self):
                    step, inbox = self.now, self._inboxes.get(self.now)
                    senders[step] = [sensor for part in self._early.proposals for sensor in part.sensors.tolist()]
                    senders[step] += [] if inbox is None else inbox.by_stream(2)[1].tolist()
                    published = super().tick()
                    finish(self, work.get(step, 0.0))
                    return published

            class Waiting(SleepingEvent):
                def wait(self, timeout=None):
                    finish(centre, timeout)
                    return self.is_set()

            senders, most = {}, []
            design = make_design("individual", horizon=8, expected_stay=20.0)
            with Slow(design, tmp_path / f"{len(list(tmp_path.iterdir()))}.db", create=True) as centre:
                own = Ticker(centre, lambda many: None, INTERVAL, DELAY)
                own._is_stopping, clock.sleep = Waiting(clock), partial(finish, centre)
                clock.now = 1000.0
                own._run()
                assert own.status == "over" and max(most, default=0) <= 5
            return senders

        return run

    @pytest.mark.parametrize("took", [0.0, 0.09, 0.15, 0.25, 0.45, 0.65])
    def test_the_clock_decides_which_reports_count_however_long_a_tick_takes(self, counted, took):
        sends = [
            (1, 0.41, 2),  # ten milliseconds late, while step 2 may still be worked on
            (2, 0.61, 3),  # as late for step 3, of which the work may not have begun
            (3, 1.01, 6),  # in time, while step 2 may still be worked on
            (4, 0.41, 4),  # for the next step
            (5, 0.41, 5),  # early
            (6, 1.19, 6),
            (7, 1.21, 6),  # late
            (8, 1.01, 7),
            (9, 0.95, 7),  # early
        ]
        senders = counted(sends, {2: took})
        assert senders[2] == [] and senders[6] == [3, 6] and senders[7] == [8]
        assert senders.get(3, []) == [] and senders.get(4, [4]) == [4] and senders.get(5, []) == []
        assert (4 in senders) == (took < 0.45)  # otherwise it was skipped

    @pytest.mark.parametrize("took", [0.12, 0.25])
    def test_with_constant_lateness_every_step_that_is_drawn_has_its_reports(self, counted, took):
        sends = [(step, INTERVAL * step - 0.05, step) for step in range(1, 9)]
        late = [(step + 10, INTERVAL * step + 0.01, step) for step in range(1, 9)]
        senders = counted(sends + late, dict.fromkeys(range(1, 9), took))
        assert senders == {step: [step] for step in range(1, 9, 2)}

    def test_a_centre_that_decides_by_its_own_progress_would_be_detected(self, counted, monkeypatch):
        """Negative control."""
        monkeypatch.setattr(dpfuse.FusionCentre, "follow_clock", lambda self, open_step: None)
        sends = [(2, 0.61, 3), (3, 1.01, 6)]
        assert counted(sends, {2: 0.65}).get(6) != [3]

    def test_after_the_ticker_has_ended_the_centre_decides_again(self, clock):
        centre = StandIn(clock, horizon=2)
        own = Ticker(centre, lambda many: None, INTERVAL, DELAY)
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert centre.open_step is None


class TestEnds:
    def test_an_error_stops_all_releases_and_is_reported(self, clock):
        seen = []
        centre = StandIn(clock, horizon=6, error=LedgerRefused("the disk is full"))
        own = Ticker(centre, seen.append, INTERVAL, DELAY, on_error=lambda error: seen.append(str(error)))
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert seen == [[1], [2], "the disk is full"] and own.status == "failed"

    def test_stop_ends_the_ticker_between_steps(self, clock):
        centre, published = StandIn(clock), []

        def publish(many):
            published.extend(many)
            if many == [3]:
                own._is_stopping.set()

        own = Ticker(centre, publish, INTERVAL, DELAY)
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert published == [1, 2, 3] and own.status == "stopped"

    def test_a_centre_that_fails_to_start_releases_nothing(self, clock, monkeypatch):
        monkeypatch.setattr(StandIn, "warm_up", lambda self: self.no_device)
        seen = []
        with Ticker(StandIn(clock), print, INTERVAL, DELAY, on_error=seen.append) as own:
            assert own.status == "failed" and isinstance(seen[0], AttributeError)

    @pytest.mark.parametrize(("work", "moment"), [(0.05, 0.7), (0.15, 0.9)])
    def test_a_stop_during_a_step_still_publishes_what_was_committed(self, clock, work, moment):
        """At the moment at which it would have been published anyway."""

        class Stopping(StandIn):
            def tick(self):
                if self.now == 3:
                    own._is_stopping.set()
                return super().tick()

        seen = []
        own = Ticker(Stopping(clock, [0, 0, work]), lambda many: seen.append((clock.now - 1000, many)), INTERVAL, DELAY)
        own._is_stopping = SleepingEvent(clock)
        own._run()
        assert seen[-1] == (pytest.approx(moment), [3]) and own.status == "stopped"

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


def test_steps_that_a_bank_without_answer_does_not_allow_are_skipped(clock, monkeypatch):
    monkeypatch.setattr(StandIn, "without_answer", (2, 3), raising=False)
    published, centre, own = run(clock)
    assert centre.skipped == [2, 3] and own.status == "over"
    assert published == [one for one in on_time(6) if one[1] not in ([2], [3])]


def test_the_clock_depends_on_start_and_settings_alone(clock):
    """It does not show that a centre is behind."""
    own = Ticker(StandIn(clock, horizon=3), print)
    assert own.clock() == {"step": 1, "closes_in_s": INTERVAL, "interval_s": INTERVAL, "delay_s": 0.1, "is_over": False}
    clock.now += 0.25
    seen = own.clock()
    assert seen["step"] == 2 and seen["closes_in_s"] == pytest.approx(0.15) and not seen["is_over"]
    clock.now += 10
    assert own.clock()["is_over"]


def test_the_clock_starts_after_its_thread_has_warmed_up(clock, monkeypatch):
    warmed = []

    def warm_up(centre):
        warmed.append(threading.current_thread())
        clock.now += 30

    monkeypatch.setattr(StandIn, "warm_up", warm_up)
    own = Ticker(StandIn(clock, horizon=6), print, INTERVAL, DELAY)
    own._is_stopping = SleepingEvent(clock)
    monkeypatch.setattr(Ticker, "_tick_until_over", lambda self: None)
    own.start().join()
    assert warmed == [own._thread] and own._start_s == 1030
    assert own.clock()["closes_in_s"] == INTERVAL


@pytest.fixture
def real(tmp_path):
    """A real centre with calls of 64 rows, and a filter so wide that one more call takes milliseconds."""
    design = make_design("individual", horizon=None, expected_stay=1e4, filter_size=768)
    with dpfuse.FusionCentre(design, tmp_path / "ledger.db", create=True) as centre:
        yield centre


def test_releases_in_real_time_are_never_early_and_ignore_the_wall_clock(real, monkeypatch):
    """What was published is what was committed."""
    real.tick()
    years = itertools.cycle([0, 3e7, -3e7])
    monkeypatch.setattr(time, "time", lambda: next(years))
    monkeypatch.setattr(time, "time_ns", lambda: int(1e9 * next(years)))
    published = []
    with Ticker(real, lambda many: published.append((time.monotonic(), many)), 0.1) as own:
        start = own._start_s
        wait_for(lambda: len(published) >= 4)
        assert own.status == "running"
    assert own.status == "stopped"
    for moment, many in published:
        assert all(moment >= start + 0.1 * (one.row.step - 1) + 0.05 for one in many)
    rows = [one.row for _, many in published for one in many]
    assert rows == list(real._ledger.rows("main", start=2))[: len(rows)]


def test_no_step_compiles_anything(real, num_traces):
    own, before = Ticker(real, lambda many: own._is_stopping.set(), 0.1), num_traces()
    real.receive("main", 1, 1, [0.5, 0.5])
    with own:
        own.join()
    assert own.status == "stopped" and real.now > 1 and num_traces() == before


def offsets(centre, num_pairs, seed, num_more=1):
    """How long after its fixed moment each release left, in pairs of steps of which one, by a coin, has more sensors.

    One more sensor is the 65th, which takes a second call of the compiled step.
    """
    coin, left, has_more = np.random.default_rng(seed), {}, {}

    def publish(many):
        moment = time.monotonic()
        left.update({one.row.step: moment - own._closes_at(one.row.step) - own.delay_s for one in many})

    own = Ticker(centre, publish, 0.06, 0.055)
    with own:
        while len(pairs := in_pairs(left, has_more, own.interval_s)) < num_pairs:
            assert len(has_more) < 10 * num_pairs and own.status == "running"
            step = own.clock()["step"]
            has_more[step] = is_fuller = int(coin.integers(2))
            for number, is_full in ((step, is_fuller), (step + 1, 1 - is_fuller)):
                for sensor in range(64 + num_more * is_full):
                    centre.receive("main", sensor, number, [0.5, 0.5])
                while centre.now <= number:
                    time.sleep(0.002)
    return pairs


def test_the_test_of_times_finds_a_shift_and_a_spread_and_nothing_else():
    pairs = np.random.default_rng(0).normal(size=(200, 2))
    assert not can_be_told_apart(pairs)
    assert can_be_told_apart(pairs + [1.5, 0]) and can_be_told_apart(pairs * [5, 1])


@pytest.mark.slow
def test_release_times_do_not_show_one_more_sensor(real, monkeypatch):
    """One false alarm in a million.

    The negative control does all work after the step and publishes as soon as it is done. It shows many more sensors.
    """
    for _ in range(3):
        real.step({sensor: [0.5, 0.5] for sensor in range(65)})
    pairs = offsets(real, 250, seed=1)
    assert (pairs >= 0).all()
    assert not can_be_told_apart(pairs)
    monkeypatch.setattr(Ticker, "_publish_at", lambda self, moment, due: self._publish(due))
    monkeypatch.setattr(dpfuse.FusionCentre, "work_ahead", lambda self: None)
    assert can_be_told_apart(offsets(real, 250, seed=2, num_more=1000))
