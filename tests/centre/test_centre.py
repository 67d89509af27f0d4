"""The live centre: what it takes in, what it gives out, and that it goes on after a restart as if nothing had been."""

from __future__ import annotations

import contextlib
import threading
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest

import dpfuse
from dpfuse.centre import centre as centre_module
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import public_rows
from dpfuse.policy.networks import RecurrentFilter
from dpfuse.privacy import GRID, release
from dpfuse.privacy.budget import TotalFilter
from dpfuse.public import Published
from support.designs import make_design
from support.wire import wait_for

STREAMS = ("north", "south", "west")
NUM_STEPS, CANARY, SENT = 4, 7_654_321, 0.123456789


NO_REPORTS = [
    [float("nan"), 0.5],
    [0.5],
    ["0.5", "0.5"],
    [0.5, 0.5, 0.5],
    [[0.5, 0.5]],
    [True, False],
    [float("inf"), 0.5],
    [10**400, 0.5],
    "ab",
    b"ab",
    {0: 0.5, 1: 0.5},
    None,
    0.5,
    object(),
    np.array(0.5),
    np.array([0.5, 1j]),
    np.array([True, False]),
    np.array(["0.5", "0.5"]),
    [np.float64("nan"), 0.5],
    [np.float32("inf"), 0.5],
    [np.bool_(True), 0.5],
    [Fraction(10**400), 0.5],
    [Decimal("0.5"), 0.5],
]


@pytest.fixture(params=["total", "individual"])
def design(request):
    return make_design(request.param, spread=0.5, horizon=40, expected_stay=20.0)


@pytest.fixture
def individual():
    return make_design("individual", spread=0.5, horizon=None, expected_stay=20.0)


@pytest.fixture
def open_centre(tmp_path):
    """Centres that are closed at the end; the same name is the same ledger."""
    opened = []

    def open_one(design, name="ledger.db", streams=("main",), **options):
        path = tmp_path / name
        ledger = dpfuse.Ledger.open(path, design) if path.exists() else dpfuse.Ledger.create(path, design, streams)
        opened.append(dpfuse.FusionCentre(design, ledger, **options))
        return opened[-1]

    yield open_one
    for centre in opened:
        centre.close()


@contextmanager
def held_releases(seed=0):
    """Releases that are what they are, whatever the sensors add; yields what each of them added in each step.

    What a sensor adds may depend on past releases, and these on everybody: so they are held. The list has a
    {(stream, id): row of integers} for each step.
    """
    rng, steps, now = np.random.default_rng(seed), [], {}
    own_sum, own_charge = release.sum_by_stream, release.Mechanism.charge_many

    def sum_by_stream(rows, stream, num_streams):
        now["rows"] = rows.copy()
        return own_sum(rows, stream, num_streams)

    def charge_many(self, accounts, weights, stream, ids, values):
        charged = own_charge(self, accounts, weights, stream, ids, values)
        owners = list(zip(stream.tolist(), np.asarray(ids).tolist(), strict=True))
        rows = list(map(tuple, now["rows"].tolist()))
        steps.append(dict(zip(owners[::-1], rows[::-1], strict=True)))  # of a sensor's rows the first
        return charged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "sum_by_stream", sum_by_stream)
        patch.setattr(release.Mechanism, "charge_many", charge_many)
        patch.setattr(release, "add_noise", lambda total, noise: rng.integers(-2 * GRID, 2 * GRID, size=len(total)))
        yield steps


def reports(num_sensors=5, num_steps=NUM_STEPS, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, size=(num_steps, num_sensors, 2))


def publish(published: Published):
    return published.row.fusion_weight, published.row.release, published.mean, published.std


class TestReceiving:
    def added(self, centre, *received):
        """What each sensor added in the step that the reports were sent to."""
        with held_releases() as steps:
            for report in received:
                assert centre.receive(*report) is None
            centre.tick()
        return steps[0]

    def test_the_first_report_counts(self, individual, open_centre):
        alone = self.added(open_centre(individual), ("main", 3, 1, [0.5, 0.5]))
        centre = open_centre(individual, "other.db")
        assert self.added(centre, ("main", 3, 1, [0.5, 0.5]), ("main", 3, 1, [-0.5, 0.1])) == alone
        assert any(alone[0, 3])

    def test_what_is_no_report_is_dropped_without_a_word_and_costs_nobody_anything(self, individual, open_centre):
        def run(centre, nonsense):
            with held_releases() as steps:
                for stream, sensor, late, values in nonsense:
                    step = centre.now + late if type(late) is int else late
                    for _ in range(2):
                        assert centre.receive(stream, sensor, step, values) is None
                    centre.receive("main", 4, centre.now, [0.1, 0.2])
                    centre.tick()
            return steps

        good, no_steps = [0.5, 0.5], (-1, -2, 2, 10**30, 1.0, "1", None, [1])
        nonsense = [(stream, 3, 0, good) for stream in ("elsewhere", ["main"], None, 7)]
        nonsense += [("main", 3, late, good) for late in no_steps]
        nonsense += [
            ("main", sensor, 0, good)
            for sensor in (
                -1,
                2**63,
                "3",
                True,
                3.0,
                None,
                [3],
                np.int64(-1),
                np.uint64(2**63),
                np.float64(3),
                np.True_,
            )
        ]
        nonsense += [("main", 3, 0, values) for values in NO_REPORTS]
        plain = run(open_centre(individual), [("elsewhere", 3, 0, good)] * len(nonsense))
        assert run(open_centre(individual, "other.db"), nonsense) == plain
        assert all(set(step) == {(0, 4)} for step in plain)

    @pytest.mark.parametrize("values", NO_REPORTS[:3])
    def test_what_is_no_report_is_not_the_first_of_its_sensor(self, individual, open_centre, values):
        added = self.added(open_centre(individual), ("main", 3, 1, values), ("main", 3, 1, [0.5, 0.5]))
        assert any(added[0, 3])

    def test_a_report_for_the_next_step_waits_for_it(self, individual, open_centre):
        centre = open_centre(individual)
        with held_releases() as steps:
            centre.receive("main", 3, 2, (0.5, 0.5))
            centre.tick()
            centre.receive("main", 3, 1, [0.1, 0.1])  # late
            centre.tick()
            centre.tick()
        assert [list(step) for step in steps] == [[], [(0, 3)], []]

    def test_large_and_whole_numbers_are_clipped_to_the_range(self, individual, open_centre):
        rows = [
            self.added(open_centre(individual, f"{number}.db"), ("main", 3, 1, values))[0, 3]
            for number, values in enumerate([[1e308, -1e308], [2, -1], np.array([1.0, -1.0])])
        ]
        assert len(set(rows)) == 1 and any(rows[0])

    @pytest.mark.parametrize(
        ("sensor", "step", "values"),
        [
            (np.int64(3), np.int64(1), np.array([0.5, -0.25])),
            (np.uint8(3), 1, [np.float64(0.5), np.float32(-0.25)]),
            (3, np.int32(1), (Fraction(1, 2), -0.25)),
            (3, 1, np.array([0.5, -0.25], object)),
        ],
    )
    def test_numbers_of_numpy_are_numbers(self, individual, open_centre, sensor, step, values):
        plain = self.added(open_centre(individual), ("main", 3, 1, [0.5, -0.25]))
        other = open_centre(individual, "other.db")
        assert self.added(other, ("main", sensor, step, values), ("main", 3, 1, [0.1, 0.1])) == plain
        with held_releases() as steps:
            other.step({sensor: values})
        assert any(steps[0][0, 3])

    def test_blocks_are_as_good_as_reports_one_by_one(self, individual, open_centre):
        one, many = open_centre(individual, "1.db", STREAMS), open_centre(individual, "2.db", STREAMS)
        values, ids = reports(6)[0], np.array([5, 6, 5, 6, 7, 5])
        stream = np.array([2, 0, 1, 1, 0, 2])  # the last is the second of its sensor and stream
        with held_releases() as steps:
            for row in range(6):
                one.receive(STREAMS[stream[row]], int(ids[row]), 1, values[row].tolist())
            one.tick()
        with held_releases() as blocks:
            many.receive_many(stream, ids, 5, values)  # early
            bad = np.where(np.arange(6)[:, None] == 3, np.nan, values)
            many.receive_many(stream, ids, 1, bad)
            many.receive_many(stream[3:4], ids[3:4], 1, values[3:4])
            many.receive_many([0, 9, -1], [-4, 1, 1], 1, np.zeros((3, 2)))
            many.tick()
        assert len(steps[0]) == 5
        counted = {owner: row for owner, row in blocks[0].items() if owner != (2, 5)}
        assert counted == {owner: row for owner, row in steps[0].items() if owner != (2, 5)}

    @pytest.mark.parametrize("calls", [(0,), (3,), (2, 4), (1, 2, 3, 4, 5)])
    def test_work_ahead_changes_nothing(self, design, open_centre, calls):
        """In two streams, with one that is in both, one that reports twice and one that comes and goes; bit for bit."""
        senders = [("b", 0), ("a", 1), ("a", 2), ("b", 1), ("a", 1)]

        def run(name, calls):
            centre = open_centre(design, name, ("a", "b"))
            with held_releases() as steps:
                published = []
                for own in reports():
                    gone = centre.now % 3 == 0
                    for number, (sender, values) in enumerate(zip(senders, own, strict=True)):
                        if number in calls:
                            centre.work_ahead()
                        if not (gone and sender == ("a", 2)):
                            centre.receive(*sender, centre.now, values)
                    if len(senders) in calls:
                        centre.work_ahead()
                    published.append([publish(one) for one in centre.tick()])
            left = centre._carry.accounts
            if isinstance(left, tuple):
                return steps, published, [own.spent for own in left]
            assert left.accounts() == centre._ledger._spent()  # whoever paid in the centre paid in the ledger
            return steps, published, left.accounts()

        plain, ahead = run("plain.db", ()), run("ahead.db", calls)
        assert ahead == plain
        assert len(plain[0]) == NUM_STEPS and all(any(row) for row in plain[0][0].values())

    def test_of_blocks_and_single_reports_the_first_counts(self, individual, open_centre):
        def added(name, is_block_first, is_ahead):
            centre = open_centre(individual, name)
            sends = [
                lambda: centre.receive_many([0, 0], [3, 4], 1, [[0.5, 0.5], [0.1, 0.2]]),
                lambda: centre.receive("main", 3, 1, [-0.5, 0.3]),
            ]
            with held_releases() as steps:
                for send in sends if is_block_first else sends[::-1]:
                    send()
                    if is_ahead:
                        centre.work_ahead()
                centre.tick()
            return steps[0]

        first, second = (added(f"{is_first}.db", is_first, False) for is_first in (True, False))
        assert first[0, 3] != second[0, 3] and first[0, 4] == second[0, 4]
        assert added("ahead.db", True, True) == first and added("ahead2.db", False, True) == second

    def test_what_was_worked_on_ahead_goes_with_a_step_that_is_skipped(self, individual, open_centre):
        centre = open_centre(individual)
        with held_releases() as steps:
            centre.receive("main", 3, 1, [0.5, 0.5])
            centre.work_ahead()
            centre.skip()
            centre.tick()
        assert steps == [{}]

    def test_reports_may_come_from_many_threads_while_the_clock_ticks(self, individual, open_centre):
        centre, is_over, errors = open_centre(individual), threading.Event(), []

        def send(sensor):
            try:
                while not is_over.is_set():
                    centre.receive("main", sensor, centre.now, [0.5, 0.5])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=send, args=(sensor,)) for sensor in range(4)]
        for thread in threads:
            thread.start()
        try:
            with held_releases() as steps:
                for _ in range(20):
                    centre.tick()
                wait_for(lambda: any(steps) or not centre.tick())  # threads that were held up have their turn
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        assert not errors and len(steps) >= 20 and any(steps)


class TestTicks:
    def test_what_comes_back_is_what_was_committed(self, design, open_centre):
        centre = open_centre(design, streams=STREAMS)
        assert centre.streams == STREAMS and centre.now == 1
        published = [centre.tick() for _ in range(3)]
        assert centre.now == 4
        for number, stream in enumerate(STREAMS):
            rows = [step[number].row for step in published]
            assert list(centre._ledger.rows(stream)) == rows
            assert [row.step for row in rows] == [1, 2, 3]
        for one in published[-1]:
            assert np.isfinite(one.mean).all() and (np.array(one.std) > 0).all()
            assert all(type(number) is float for number in (*one.mean, *one.std))

    def test_one_call_for_one_stream(self, individual, tmp_path):
        with dpfuse.FusionCentre(individual, tmp_path / "new.db", create=True) as centre:
            with held_releases() as steps:
                published = centre.step({3: [0.5, 0.5], 4: (0.1, 0.2), 5: "nothing"})
            assert published.row.stream == "main" and set(steps[0]) == {(0, 3), (0, 4)}
            with pytest.raises(ValueError, match="stream must be one of main, got 'west'"):
                centre.step({}, stream="west")
        with dpfuse.FusionCentre(individual, str(tmp_path / "new.db")) as centre:
            assert centre.now == 2

    def test_a_ledger_is_made_only_if_told_and_never_twice(self, individual, tmp_path, open_centre):
        path = tmp_path / "new.db"
        with pytest.raises(LedgerRefused, match="new.db is missing; a new ledger never replaces .* create=True"):
            dpfuse.FusionCentre(individual, path)
        assert not list(tmp_path.iterdir())
        dpfuse.FusionCentre(individual, path, create=True).close()
        with pytest.raises(LedgerRefused, match="is there already; open it"):
            dpfuse.FusionCentre(individual, path, create=True)
        with pytest.raises(ValueError, match="create must be False for a ledger that is open"):
            open_centre(individual, create=True)

    def test_nobody_there_is_a_step_like_any_other(self, design, open_centre):
        centre = open_centre(design)
        with held_releases():
            quiet = centre.tick()
        other = open_centre(design, "other.db")
        with held_releases():
            busy = [other.step(dict(enumerate(reports()[0].tolist())))]
        assert publish(quiet[0]) == publish(busy[0])  # the releases were held, and nothing else moves these

    def test_a_finite_design_ends_for_good(self, open_centre):
        design = make_design(horizon=3)
        centre = open_centre(design)
        centre.tick()
        centre.skip()
        assert not centre.is_over
        centre.tick()
        assert centre.is_over
        for act in (centre.tick, centre.skip):
            with pytest.raises(ValueError, match="the design ends after 3 releases; it never starts again"):
                act()
        centre.close()
        assert open_centre(design).is_over

    def test_after_the_end_no_report_is_kept(self, open_centre):
        centre = open_centre(make_design(horizon=2))
        for step in (1, 2, 3):
            centre.receive("main", 1, step, [0.5, 0.5])
        assert set(centre._inboxes) == {1, 2}
        centre.tick()
        centre.receive("main", 1, 3, [0.5, 0.5])
        centre.tick()
        for step in (1, 2, 3, 4):
            centre.receive("main", 1, step, [0.5, 0.5])
            centre.receive_many([0], [1], step, [[0.5, 0.5]])
        assert centre.is_over and not centre._inboxes

    def test_a_stationary_design_has_no_end(self, individual, open_centre):
        assert not open_centre(individual).is_over

    def test_a_ledger_that_fails_stops_the_centre(self, design, open_centre):
        centre = open_centre(design)
        centre.tick()
        centre._ledger.close()
        for _ in range(2):
            with pytest.raises(LedgerRefused, match="is closed"):
                centre.tick()

    def test_a_total_budget_that_is_spent_is_told(self, open_centre):
        design = make_design("total", horizon=3, spending="constant")
        centre = open_centre(design)
        left = [centre.tick()[0].row.budget_left for _ in range(3)]
        assert left == sorted(left, reverse=True) and 0 <= left[-1] < 0.001 * centre._step.mechanism.budget


class TestRestarts:
    """A centre that was stopped knows what anybody could know, and each sensor's account."""

    def run(self, open_centre, design, name, stops):
        """Ten steps, one of them skipped, with a restart after each step in `stops`; reports come every third step."""
        centre, published = open_centre(design, name, STREAMS), []
        sent = reports(num_steps=10)
        with held_releases():
            for step in range(10):
                if step % 3 == 0:
                    for sensor, values in enumerate(sent[step].tolist()):
                        centre.receive("south", sensor, centre.now, values)
                if step == 4:
                    centre.skip()
                else:
                    published.append([publish(one) for one in centre.tick()])
                if step in stops:
                    centre.close()
                    centre = open_centre(design, name)
        return published, centre

    def asked(self, centre):
        """What the sensors will be asked next, to the last bit."""
        return [np.asarray(part).tobytes() for part in jax.tree.leaves(centre._carry.query)]

    def test_it_goes_on_as_if_nothing_had_been(self, design, open_centre):
        plain, unstopped = self.run(open_centre, design, "plain.db", stops=())
        stopped, centre = self.run(open_centre, design, "stopped.db", stops=(0, 3, 6, 9))
        assert stopped == plain  # weights and estimates to the last bit, given the same releases
        assert self.asked(centre) == self.asked(unstopped) and len(self.asked(centre)) == 2
        assert centre.now == 11

    def test_a_gap_counts_as_a_step_without_news(self, design, open_centre):
        plain, _ = self.run(open_centre, design, "plain.db", stops=())
        stopped, _ = self.run(open_centre, design, "stopped.db", stops=(5,))
        assert stopped == plain
        centre = open_centre(design, "other.db")
        with held_releases():
            first = [publish(centre.tick()[0]) for _ in range(5)]
        assert first[4][0] != plain[4][0][0]  # without the gap the weight is another one

    @pytest.fixture
    def followed(self, monkeypatch):
        """The steps that were followed once more."""
        steps, own = [], dpfuse.ExactStep.follow

        def follow(step, carry, *released):
            steps.append(carry.num_steps + 1)
            return own(step, carry, *released)

        monkeypatch.setattr(dpfuse.ExactStep, "follow", follow)
        return steps

    @pytest.mark.parametrize("num_steps", [1, 150, 200])
    def test_without_an_end_no_more_is_made_up_than_is_remembered(
        self, individual, open_centre, monkeypatch, followed, num_steps
    ):
        """Up to there it is the same to the last bit; past it, what is forgotten had faded."""
        monkeypatch.setattr(centre_module, "_REBUILT_STEPS", 150)
        plain, stopped = open_centre(individual, "plain.db", STREAMS), open_centre(individual, "stopped.db", STREAMS)
        with held_releases():
            for _ in range(num_steps):
                plain.tick()
            expected = [publish(one) for one in plain.tick()]
        with held_releases():
            for _ in range(num_steps):
                stopped.tick()
            stopped.close()
            stopped = open_centre(individual, "stopped.db")
            assert followed == list(range(max(1, num_steps - 149), num_steps + 1)) and stopped.now == num_steps + 1
            found = [publish(one) for one in stopped.tick()]
        if num_steps <= 150:
            assert found == expected
        for one, two in zip(found, expected, strict=True):
            assert one[0] == pytest.approx(two[0], rel=1e-3)
            np.testing.assert_allclose(one[2:], two[2:], rtol=1e-3)

    def test_a_design_with_an_end_is_made_up_from_its_start(self, open_centre, monkeypatch, followed):
        monkeypatch.setattr(centre_module, "_REBUILT_STEPS", 3)
        design = make_design(horizon=10)
        centre = open_centre(design)
        for _ in range(8):
            centre.tick()
        centre.close()
        assert open_centre(design).now == 9 and followed == list(range(1, 9))

    def test_steps_skipped_at_the_end_come_back_and_cost_nothing(self, design, open_centre):
        def books(centre):
            accounts = centre._ledger.accounts("main")
            spent = accounts.spent if isinstance(accounts, TotalFilter) else accounts.accounts()
            return spent, list(centre._ledger.rows("main"))

        centre = open_centre(design)
        centre.step({3: [0.5, 0.5]})
        before = books(centre)
        for _ in range(4):
            centre.receive("main", 3, centre.now, [0.5, 0.5])
            centre.skip()
        assert centre.now == 6
        centre.close()
        again = open_centre(design)
        assert again.now == 2 and before[0] and books(again) == before
        with held_releases() as steps:
            assert again.tick()[0].row.step == 2
        assert steps == [{}]

    def test_accounts_survive_and_memories_do_not(self, individual, open_centre):
        centre = open_centre(individual)
        sent = reports(num_steps=3)
        for step in sent[:2].tolist():
            centre.step(dict(enumerate(step)))
        spent = centre._ledger.accounts("main").accounts()
        assert set(spent) == set(range(5))
        centre.close()
        again = open_centre(individual)
        assert again._ledger.accounts("main").accounts() == spent
        with held_releases() as steps:
            again.receive("main", 0, 3, sent[2, 0].tolist())
            again.receive("main", 99, 3, sent[2, 0].tolist())  # a newcomer with the same to say
            again.tick()
        assert steps[0][0, 0] == steps[0][0, 99]


class TestMemory:
    def rows_after_a_silence(self, individual, open_centre, silence, forget_after=3):
        centre = open_centre(individual, f"{silence}.db", forget_after=forget_after)
        with held_releases() as steps:
            centre.step({5: [0.9, -0.9]})
            for _ in range(silence):
                centre.skip() if silence % 2 else centre.tick()
            centre.step({5: [0.1, 0.2], 6: [0.1, 0.2]})
        return steps[-1][0, 5], steps[-1][0, 6]

    @pytest.mark.parametrize(("silence", "is_remembered"), [(0, True), (1, True), (2, True), (3, True), (4, False)])
    def test_a_silent_sensor_is_remembered_for_a_while(self, individual, open_centre, silence, is_remembered):
        known, newcomer = self.rows_after_a_silence(individual, open_centre, silence)
        assert (known != newcomer) == is_remembered

    def test_by_sensor_and_stream(self, individual, open_centre):
        centre = open_centre(individual, streams=STREAMS)
        with held_releases() as steps:
            centre.step({5: [0.9, -0.9]}, stream="north")
            for stream in STREAMS:
                centre.receive(stream, 5, 2, [0.1, 0.2])
            centre.tick()
        north, south, west = (steps[1][number, 5] for number in range(3))
        assert north != south and any(south) and any(west)

    def test_room_for_newcomers_is_made_between_steps(self, individual, open_centre):
        """Nothing that grows with those who came does so in the step that they come in."""
        centre = open_centre(individual)

        def report(ids):
            centre.receive_many(np.zeros_like(ids), ids, centre.now, np.full((len(ids), 2), 0.5))
            centre.tick()

        def rooms():
            memory, accounts, balances = centre._carry.memory, centre._carry.accounts, centre._ledger._balances
            keyed = memory._sensors, accounts._accounts, balances._accounts
            return [array for each in keyed for array in (*each._arrays.values(), each._keys, each._slots)]

        report(np.arange(60))
        before = rooms()
        centre.maintain()
        after = rooms()
        assert not any(new is old for new, old in zip(after, before, strict=True))  # there was not enough
        report(np.arange(60 + 16))
        assert all(new is old for new, old in zip(rooms(), after, strict=True))


class TestIndependence:
    """Rule 2 for many streams and turns: a thousand rows, five turns of the compiled shape."""

    IDS = np.random.default_rng(1).integers(0, 2**62, size=900)
    STREAM = np.arange(900) % 3

    def run(self, design, open_centre, name, change=lambda block, step: block):
        centre = open_centre(design, name, STREAMS)
        values = reports(900, num_steps=3)
        with held_releases() as steps:
            for step in range(3):
                present = np.random.default_rng(step).random(900) < 0.9
                block = change((self.STREAM[present], self.IDS[present], values[step][present]), step)
                centre.receive_many(block[0], block[1], centre.now, block[2])
                centre.tick()
        return steps, centre

    @staticmethod
    def without(sensor):
        return lambda block, step: tuple(part[block[1] != sensor] for part in block)

    @staticmethod
    def shuffled(block, step):
        order = np.random.default_rng(step + 10).permutation(len(block[1]))
        return tuple(part[order] for part in block)

    @staticmethod
    def only_half(block, step):
        return tuple(part[block[1] % 2 == 0] for part in block)

    @staticmethod
    def crowded(block, step):
        """Two thousand more, half of them in another stream too, who send nonsense."""
        rng = np.random.default_rng(step)
        more = rng.integers(0, 3, 2000), rng.integers(2**62, 2**63 - 1, 2000), rng.normal(0, 1e30, (2000, 2))
        return tuple(np.concatenate([extra, part]) for extra, part in zip(more, block, strict=True))

    def test_nobody_can_move_what_another_adds(self, design, open_centre):
        before, _ = self.run(design, open_centre, "before.db")
        assert sum(any(row) for step in before for row in step.values()) > 2000  # they are heard
        changes = {"gone": self.without(self.IDS[450]), "shuffled": self.shuffled, "half": self.only_half}
        for name, change in (changes | {"crowded": self.crowded}).items():
            after, _ = self.run(design, open_centre, f"{name}.db", change)
            for one, two in zip(before, after, strict=True):
                shared = set(one) & set(two)
                assert len(shared) > 300 and all(one[owner] == two[owner] for owner in shared), name

    def test_a_mean_over_sensors_would_be_seen(self, design, open_centre, monkeypatch):
        """Negative control."""
        own = RecurrentFilter._features

        def centred(self, raw, present):
            features = own(self, raw, present)
            return 0.5 * (features - features.mean(-2, keepdims=True))

        monkeypatch.setattr(RecurrentFilter, "_features", centred)
        before, _ = self.run(design, open_centre, "before.db")
        after, _ = self.run(design, open_centre, "after.db", self.without(self.IDS[450]))
        assert any(one[owner] != row for one, two in zip(before, after, strict=True) for owner, row in two.items())


class TestAccounts:
    def test_an_id_in_several_streams_pays_for_each_and_never_more_than_its_budget(self, open_centre):
        design = make_design("individual", spread=0.5, horizon=None, expected_stay=2.0, budget=0.5)
        centre, sent = open_centre(design, streams=STREAMS), reports(4, num_steps=12)
        totals, budget = {}, centre._step.mechanism.budget
        with held_releases() as steps:
            for step in sent:
                for stream in STREAMS:
                    for sensor, values in enumerate(step.tolist()):
                        centre.receive(stream, sensor, centre.now, values)
                centre.tick()
        for step in steps:
            for (_, sensor), row in step.items():
                totals[sensor] = totals.get(sensor, 0) + centre._step.mechanism.factor * sum(q * q for q in row)
        assert centre._ledger.accounts("north").accounts() == totals
        assert all(0.9 * budget < total <= budget for total in totals.values())

    def test_one_charge_for_all_streams_is_the_charge_of_each(self, design):
        """`charge_many` against `charge`, stream after stream; ids are in several streams, and accounts run dry."""
        mechanism = dpfuse.ExactStep(design, 1).mechanism
        rng = np.random.default_rng(0)
        is_individual = design.guarantee.accounting == "individual"
        together, apart = (
            mechanism.open_accounts() if is_individual else tuple(mechanism.open_accounts() for _ in STREAMS)
            for _ in range(2)
        )
        for _ in range(30):
            stream, ids = np.sort(rng.integers(0, 3, 20)), rng.integers(-1, 12, 20)
            values, weights = rng.normal(0, 0.4, (20, 2)), rng.uniform(0, 0.5, 3)
            many = mechanism.charge_many(together, weights.tolist(), stream, ids, values)
            for number, one in enumerate(many):
                own = apart if is_individual else apart[number]
                rows = stream == number
                expected = mechanism.charge(own, weights[number], ids[rows], values[rows])
                assert (one.fusion_weight, one.budget_left) == (expected.fusion_weight, expected.budget_left)
                assert one.debits.tolist() == expected.debits.tolist()
                assert one.exact_sum.tolist() == expected.exact_sum.tolist()


def test_nothing_private_is_shown(individual, open_centre, capfd, caplog):
    centre = open_centre(individual)
    shown = []
    for _ in range(3):
        centre.receive("main", CANARY, centre.now, [SENT, -SENT])
        shown.append(repr(centre.tick()))
    before = repr(centre)
    centre.step({sensor: [0.1, 0.1] for sensor in range(10)})
    shown += [before, repr(centre._carry.memory), str(centre), repr(centre._carry.accounts)]
    assert repr(centre) == before.replace("step 4", "step 5")  # nothing about who is there
    centre._ledger.close()
    centre.receive("main", CANARY, centre.now, [SENT, -SENT])
    with pytest.raises(LedgerRefused) as caught:
        centre.tick()
    text = "\n".join([*shown, str(caught.value), *capfd.readouterr(), caplog.text])
    assert str(CANARY) not in text and str(SENT) not in text and "0.1234" not in text
    assert str(SENT) in repr([SENT])  # the search would find it


def test_settings_are_checked(individual, tmp_path):
    with pytest.raises(ValueError, match="forget_after must be at least 0, got -1"):
        dpfuse.FusionCentre(individual, tmp_path / "a.db", forget_after=-1)
    assert not list(tmp_path.iterdir())
    with pytest.raises(LedgerRefused, match="belongs to another design"):
        dpfuse.FusionCentre(individual, tmp_path / "b.db", create=True).close()
        dpfuse.FusionCentre(make_design("individual", seed=1, horizon=None), tmp_path / "b.db")


def test_the_example_of_the_documentation(individual, tmp_path, capsys):
    page = (Path(__file__).parents[2] / "docs/live.md").read_text()
    with contextlib.chdir(tmp_path):
        exec(page.split("```py\n")[1].split("```")[0], {"design": individual})
    assert "'step': 1" in capsys.readouterr().out
    assert [row.step for row in public_rows(tmp_path / "library.db")][:1] == [1]
