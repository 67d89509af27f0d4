"""A budget for each period: accounts are renewed, and nothing private crosses a boundary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dpfuse
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import verify
from dpfuse.policy.exact import ExactStep
from dpfuse.policy.memory import Memory
from support.centres import held_releases, reports
from support.designs import make_design

PERIOD_S, STEPS = 10.0, 5
"""Each period has so many steps of 2 s."""
BUDGET = 0.2


class WallClock:
    """Seconds since 1970, set by the test."""

    def __init__(self, now_s=1000 * PERIOD_S):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


@pytest.fixture(scope="module", params=["total", "individual"])
def design(request):
    return make_periodic(request.param)


def make_periodic(accounting):
    stay = float(STEPS) if accounting == "total" else 1.0
    made = make_design(
        accounting, spread=0.3, horizon=None, expected_stay=stay, budget=BUDGET, period=PERIOD_S, spending="adaptive"
    )
    return replace(made, interval_s=2.0)


@pytest.fixture
def open_centre(tmp_path):
    opened = []

    def make(design, clock, name="a.db", streams=("main",)):
        path = tmp_path / name
        is_new = not path.exists()
        ledger = dpfuse.Ledger.create(path, design, streams) if is_new else dpfuse.Ledger.open(path, design)
        opened.append(ledger)
        return dpfuse.FusionCentre(design, ledger, wall_clock=clock), ledger

    yield make
    for ledger in opened:
        ledger.close()


def run(centre, clock, values, steps):
    """Steps of 2 s in which every row of values is a sensor."""
    published = []
    for _ in range(steps):
        published.append(centre.step(dict(enumerate(values.tolist()))))
        clock.now_s += 2.0
    return published


def test_accounts_are_renewed_with_each_period_and_not_before(design, open_centre):
    clock, values = WallClock(), reports(num_steps=1)[0]
    centre, ledger = open_centre(design, clock)
    spent = []
    for period in range(3):
        rows = run(centre, clock, values, STEPS)
        assert {one.row.period for one in rows} == {1000 + period}
        spent.append(left_of(ledger, 5))
    budget = ledger.terms.mechanism.budget
    assert all((0 <= one).all() and (one < budget).all() for one in spent)  # each period spends, none above its budget
    if design.guarantee.accounting == "individual":
        assert sum((budget - one).max() for one in spent) > budget  # more than one budget in three periods
    found = verify(ledger.path)
    assert (found.period, found.num_commits) == (1002, 3 * STEPS + 3)


def left_of(ledger, num_sensors):
    accounts = ledger.accounts("main")
    return accounts.left(np.arange(num_sensors)) if hasattr(accounts, "factor") else np.array([accounts.left])


def num_steps_that_differ(design, open_centre, names=("with.db", "without.db")):
    """Steps of the second period in which some sensor adds something else, if sensor 3 reports nothing in the first."""
    runs, values = [], reports(num_steps=1)[0]
    for name, absent in zip(names, ((), (3,)), strict=True):
        clock = WallClock()
        centre, _ = open_centre(design, clock, name)
        with held_releases() as steps:
            for step in range(2 * STEPS):
                sensors = [one for one in range(5) if one not in absent or step >= STEPS]
                centre.step({one: values[one].tolist() for one in sensors})
                clock.now_s += 2.0
        runs.append(steps)
    assert runs[0][:STEPS] != runs[1][:STEPS]
    assert any(any(row) for row in runs[0][STEPS].values())
    return sum(ours != theirs for ours, theirs in zip(runs[0][STEPS:], runs[1][STEPS:], strict=True))


def test_what_a_sensor_adds_does_not_depend_on_its_reports_of_an_earlier_period(design, open_centre):
    assert num_steps_that_differ(design, open_centre) == 0


def test_memory_that_is_kept_over_a_boundary_is_found(design, open_centre, monkeypatch):
    """Negative control."""
    renew = ExactStep.begin_period

    def keeping(self, carry, accounts=None):
        return renew(self, carry, accounts)._replace(memory=carry.memory)

    monkeypatch.setattr(ExactStep, "begin_period", keeping)
    assert num_steps_that_differ(design, open_centre) > 0


def test_accounts_that_are_kept_over_a_boundary_are_found(open_centre, monkeypatch):
    """Negative control; in total accounting the account is public, and may be kept."""
    design, renew = make_periodic("individual"), ExactStep.begin_period

    def keeping(self, carry, accounts=None):
        return renew(self, carry, carry.accounts)

    monkeypatch.setattr(ExactStep, "begin_period", keeping)
    with pytest.raises((AssertionError, LedgerRefused)):
        assert num_steps_that_differ(design, open_centre) == 0


def test_a_restart_within_a_period_renews_nothing_and_a_later_one_does(design, open_centre):
    clock, values = WallClock(), reports(num_steps=1)[0]
    centre, ledger = open_centre(design, clock)
    run(centre, clock, values, 3)
    before = left_of(ledger, 5)
    ledger.close()
    centre, ledger = open_centre(design, clock)
    assert ledger.period == 1000 and (left_of(ledger, 5) == before).all()
    run(centre, clock, values, 2)
    ledger.close()
    centre, ledger = open_centre(design, clock)
    [one] = run(centre, clock, values[:0], 1)  # nobody reports, so a renewed account is whole
    assert one.row.period == 1001
    assert (left_of(ledger, 5) == ledger.terms.mechanism.budget - (one.row.cost or 0)).all()


def test_periods_never_go_back(design, open_centre):
    clock, values = WallClock(), reports(num_steps=1)[0]
    centre, ledger = open_centre(design, clock)
    run(centre, clock, values, 2)
    before = left_of(ledger, 5)
    clock.now_s -= 5 * PERIOD_S
    [one] = run(centre, clock, values, 1)
    assert one.row.period == 1000 and (left_of(ledger, 5) <= before).all()
    with pytest.raises(ValueError, match="period must be at least 1000"):
        ledger.begin_period(999)


def test_a_step_belongs_to_the_period_in_which_it_begins(open_centre):
    design, clock = make_periodic("individual"), WallClock()
    centre, _ = open_centre(design, clock)
    import time

    for begins_s, period in ((9.9, 1000), (10.1, 1001)):
        clock.now_s = 1000 * PERIOD_S + 9.0
        begins_in_s = begins_s - 9.0
        centre.begin_step(time.monotonic() + begins_in_s + 2.0, 2.0)
        clock.now_s += 3.0  # work and tick come later
        centre.work_ahead()
        [published] = centre.tick()
        assert published.row.period == period


def test_work_done_ahead_is_of_the_step_and_its_period(open_centre):
    """Reports that came before the boundary for the step after it are of the new period."""
    design, clock = make_periodic("individual"), WallClock()
    centre, ledger = open_centre(design, clock)
    run(centre, clock, reports(num_steps=1)[0], STEPS - 1)
    centre.receive("main", 3, centre.now + 1, [0.5, 0.5])  # for the first step of the next period
    run(centre, clock, reports(num_steps=1)[0], 1)
    [published] = centre.tick()
    assert published.row.period == 1001
    assert (ledger.spent_of(np.arange(5)) > 0).tolist() == [False, False, False, True, False]


def test_all_streams_begin_a_period_together(design, open_centre):
    clock = WallClock()
    centre, _ = open_centre(design, clock, streams=("north", "south"))
    for _ in range(2):
        assert len({one.row.period for one in centre.tick()}) == 1
        clock.now_s += PERIOD_S


def test_memory_is_empty_after_a_boundary(design):
    step = ExactStep(design, num_rows=4, forget_after=50)
    carry, _ = step.contribute(step.init(), [1, 2], np.zeros((2, 2)))
    fresh = step.begin_period(carry)
    assert isinstance(fresh.memory, Memory)
    assert (fresh.memory.find(np.zeros(2, np.int64), np.array([1, 2])) < 0).all()
    assert fresh.num_steps == carry.num_steps and fresh.public is carry.public


@pytest.mark.slow
def test_thirty_days_of_half_hours_keep_every_account_within_its_day(open_centre, tmp_path):
    """A greedy design, so that accounts run out; the last days are spent like the second one."""
    made = make_design("individual", horizon=None, expected_stay=4.0, budget=BUDGET, period="day", spread=0.3)
    design, clock = replace(made, interval_s=1800.0), WallClock(20_000 * 86_400.0)
    centre, ledger = open_centre(design, clock)
    rng, spent = np.random.default_rng(0), []
    for day in range(30):
        for _ in range(48):
            published = centre.step(dict(enumerate(rng.uniform(-1, 1, (20, 2)).tolist())))
            clock.now_s += 1800.0
        assert published.row.period == 20_000 + day
        spent.append(ledger.spent_of(np.arange(20)))
        if day == 15:  # a restart in the middle
            ledger.close()
            centre, ledger = open_centre(design, clock)
    budget = ledger.terms.mechanism.budget
    assert max(int(one.max()) for one in spent) <= budget
    assert min(int(one.min()) for one in spent) > 0.9 * budget  # in every day all of it, by every household
    found = verify(ledger.path)
    assert found.streams["main"].num_rows == 30 * 48 and found.num_commits == 30 * 49
