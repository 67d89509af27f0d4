"""Which reports count, and that when they are worked on changes nothing."""

from __future__ import annotations

import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from support.centres import STREAMS, held_releases, public_part, reports
from support.designs import make_design
from support.wire import wait_for

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


def added(centre, *received):
    """What each sensor added in the step that the reports were sent to."""
    with held_releases() as steps:
        for report in received:
            assert centre.receive(*report) is None
        centre.tick()
    return steps[0]


def test_the_first_report_counts(individual, open_centre):
    alone = added(open_centre(individual), ("main", 3, 1, [0.5, 0.5]))
    centre = open_centre(individual, "other.db")
    assert added(centre, ("main", 3, 1, [0.5, 0.5]), ("main", 3, 1, [-0.5, 0.1])) == alone
    assert any(alone[0, 3])


def test_malformed_reports_are_dropped_and_change_nothing(individual, open_centre):
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
def test_a_valid_report_counts_after_a_malformed_one(individual, open_centre, values):
    rows = added(open_centre(individual), ("main", 3, 1, values), ("main", 3, 1, [0.5, 0.5]))
    assert any(rows[0, 3])


def test_a_report_for_the_next_step_counts_in_that_step(individual, open_centre):
    centre = open_centre(individual)
    with held_releases() as steps:
        centre.receive("main", 3, 2, (0.5, 0.5))
        centre.tick()
        centre.receive("main", 3, 1, [0.1, 0.1])  # late
        centre.tick()
        centre.tick()
    assert [list(step) for step in steps] == [[], [(0, 3)], []]


def test_large_numbers_are_clipped_to_the_range(individual, open_centre):
    rows = [
        added(open_centre(individual, f"{number}.db"), ("main", 3, 1, values))[0, 3]
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
def test_numpy_numbers_are_accepted(individual, open_centre, sensor, step, values):
    plain = added(open_centre(individual), ("main", 3, 1, [0.5, -0.25]))
    other = open_centre(individual, "other.db")
    assert added(other, ("main", sensor, step, values), ("main", 3, 1, [0.1, 0.1])) == plain
    with held_releases() as steps:
        other.step({sensor: values})
    assert any(steps[0][0, 3])


def test_a_block_counts_as_single_reports_do(individual, open_centre):
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
def test_work_ahead_changes_no_result(design, open_centre, calls):
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
                published.append([public_part(one) for one in centre.tick()])
                if calls:
                    centre.maintain()
                    assert centre._early.noise is not None  # drawn meanwhile
        left = centre._carry.accounts
        if isinstance(left, tuple):
            return steps, published, [own.spent for own in left]
        assert left.accounts() == centre._ledger._balances.spent()  # the accounts of the centre are those of the ledger
        return steps, published, left.accounts()

    plain, ahead = run("plain.db", ()), run("ahead.db", calls)
    assert ahead == plain
    assert len(plain[0]) == 4 and all(any(row) for row in plain[0][0].values())


def test_the_first_of_a_block_and_a_single_report_counts(individual, open_centre):
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


def test_skip_drops_reports_that_were_worked_on_ahead(individual, open_centre):
    centre = open_centre(individual)
    with held_releases() as steps:
        centre.receive("main", 3, 1, [0.5, 0.5])
        centre.work_ahead()
        centre.skip()
        centre.tick()
    assert steps == [{}]


def test_reports_may_arrive_from_many_threads_during_ticks(individual, open_centre):
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


@pytest.fixture(scope="module")
def partial():
    return make_design("individual", spread=0.5, horizon=None, expected_stay=20.0, partial_reports=True)


class TestPartialReports:
    def test_a_missing_channel_is_read_as_such_however_it_is_sent(self, partial, open_centre):
        expected = added(open_centre(partial), ("main", 3, 1, [None, 0.5]))
        for number, missing in enumerate((float("nan"), float("inf"), np.float32("-inf"))):
            assert added(open_centre(partial, f"{number}.db"), ("main", 3, 1, [missing, 0.5])) == expected
        assert any(expected[0, 3])
        assert added(open_centre(partial, "complete.db"), ("main", 3, 1, [0.0, 0.5])) != expected
        centre = open_centre(partial, "many.db")
        with held_releases() as steps:
            centre.receive_many([0], [3], 1, np.array([[np.nan, 0.5]]))
            centre.tick()
        assert steps[0] == expected

    @pytest.mark.parametrize("values", [[None, None], [None, float("nan")], ["a", 0.5], [None], [None, True]])
    def test_a_report_without_any_channel_is_absent_and_the_next_one_counts(self, values, partial, open_centre):
        alone = added(open_centre(partial), ("main", 3, 1, [0.5, 0.5]))
        centre = open_centre(partial, "other.db")
        assert added(centre, ("main", 3, 1, values), ("main", 3, 1, [0.5, 0.5])) == alone

    def test_a_design_without_partial_reports_drops_the_report(self, individual, open_centre):
        assert not added(open_centre(individual), ("main", 3, 1, [None, 0.5]))
