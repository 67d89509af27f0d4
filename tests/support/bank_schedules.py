"""Centres and a bank over simulated schedules: crashes, hangs, lost disks, missed boundaries and new generations.

A schedule is drawn first and says everything that is not a sensor's own: when who is down, which messages arrive in
time, which boundaries are closed. `play` then runs the real `Book` and `Borrower` along it.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dpfuse import Guarantee
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank import BankAnswer, BankTerms, Book, Borrower
from dpfuse.ledger.debits import Debits
from dpfuse.ledger.slices import pays_for
from dpfuse.privacy.budget import IndividualFilter

STEPS = 3
"""Of each epoch."""


@dataclass
class Plan:
    """One schedule, and what each sensor reports and would like to pay along it."""

    terms: BankTerms
    num_centres: int
    num_epochs: int
    sensors: list[int]
    events: dict[tuple[int, int], tuple[str, int]]  # (epoch, centre): what happens, and for how long or at which step
    arrives: dict[tuple[int, int], bool]  # the submission made in that epoch is in time
    fetched: dict[tuple[int, int], bool]  # the answer is read before the boundary
    closes: list[bool]  # whether the boundary at the end of that epoch is closed
    wants: dict[tuple[int, int, int], dict[int, int]]  # (epoch, centre, step): by sensor


def draw_plan(seed: int) -> Plan:
    rng = random.Random(seed)
    num_centres, num_epochs = rng.randint(2, 4), rng.randint(6, 12)
    budget = rng.choice([0.00001, 0.01, 1.5])
    period = random.Random(-seed).choice([None, 4, 6])  # in epochs
    guarantee = Guarantee(order=2.0, budget=budget, adjacency="remove-one", accounting="individual", period=period)
    terms = BankTerms(bank_id="simulated", guarantee=guarantee, patience=3, capacity=100, epoch_s=1.0)
    sensors = rng.sample(range(1000), rng.randint(2, 5))
    events, keys = {}, [(epoch, centre) for epoch in range(num_epochs) for centre in range(num_centres)]
    for key in keys:
        if rng.random() < 0.2:
            kind = rng.choice(["crash before", "crash in step", "crash after submit", "hang", "disk lost"])
            events[key] = kind, rng.randint(0, STEPS)
    shares = {sensor: [rng.choice([0, 0.3, 1]) for _ in range(num_centres)] for sensor in sensors}
    steps = [(*key, step) for key in keys for step in range(STEPS)]
    wants = {
        step: {own: rng.randint(0, terms.budget // 4) for own in sensors if rng.random() < shares[own][step[1]]}
        for step in steps
    }
    return Plan(
        terms,
        num_centres,
        num_epochs,
        sensors,
        events,
        {key: rng.random() < 0.85 for key in keys},
        {key: rng.random() < 0.85 for key in keys},
        [rng.random() < 0.9 for _ in range(num_epochs)],
        wants,
    )


@dataclass
class Centre:
    """One simulated centre: a ledger that survives a crash, and a process that does not."""

    name: str
    keeps_claims: bool = False
    generation: int = 0
    balances: dict[int, int] = field(default_factory=dict)
    durable: dict = field(default_factory=dict)  # slices
    borrower: Borrower | None = None
    down_until: int = 0
    period: int = 0
    is_lost: bool = True  # the disk: no ledger that could be resumed

    def balance_of(self, sensors):
        return np.array([self.balances.get(sensor, 0) for sensor in sensors.tolist()], np.int64)

    def save(self):
        self.durable = _copies(self.borrower.slices)

    def crash(self, epoch, length):
        self.borrower, self.down_until = None, epoch + length

    def start(self, book: Book, epoch: int) -> bool:
        try:
            self.generation = book.register(self.name, epoch, is_same_ledger=not self.is_lost)
        except LedgerRefused:
            return False  # may still be releasing elsewhere: try again at the next boundary
        if self.is_lost:
            self.balances, self.durable, self.is_lost = {}, {}, False
        self.borrower = (KeepsOwnClaims if self.keeps_claims else Borrower)(
            _copies(self.durable).values(), self.balance_of, period_of=book.terms.period_of
        )
        self.save()
        return True

    def fetch(self, book: Book) -> None:
        """Read the answer: which statements were counted, and the loans that this centre does not know yet."""
        own = {key[2]: loan for key, loan in book.loans.items() if key[:2] == (self.name, self.generation)}
        known = set(self.borrower.slices)
        new = {epoch: loan for epoch, loan in own.items() if epoch not in known}
        self.borrower.receive(BankAnswer(book.closed, new, set(own)))


def _copies(slices):
    """Slices of their own; their arrays are replaced and not changed."""
    return {epoch: copy.copy(own) for epoch, own in slices.items()}


class KeepsOwnClaims(Borrower):
    """Planted fault: claims of the period before are sent."""

    def enter(self, epoch, balance_of):
        claims = self._claims
        super().enter(epoch, balance_of)
        self._claims = claims


def play(
    plan: Plan,
    without: int | None = None,
    *,
    opens_on_arrival: bool = False,
    book: Book | None = None,
    keeps_claims: bool = False,
    pays: Pays | None = None,
):
    """What each sensor adds: (epoch, centre, step, sensor) -> cost. Checks budgets on the way by its own record.

    Args:
        without: the sensor that reports nothing.
        pays: what each sensor pays in a step; by default `pay_quickly`.
        keeps_claims: negative control; centres send the claims of the period before.
        opens_on_arrival: negative control; a slice is spent from once it has arrived, and large messages take longer.
    """
    book = book or Book(plan.terms)
    centres = [Centre(f"c{number}", keeps_claims) for number in range(plan.num_centres)]
    record: dict[tuple[int, int, int, int], int] = {}
    for epoch in range(plan.num_epochs):
        submissions = []
        for number, centre in enumerate(centres):
            key = epoch, number
            what, length = plan.events.get(key, ("", 0))
            if epoch < centre.down_until or (what == "hang" and length):
                centre.down_until = max(centre.down_until, epoch + length)
                continue
            if what == "disk lost":
                centre.crash(epoch, length)
                centre.is_lost = True
                continue
            if what == "crash before":
                centre.crash(epoch, length)
            if centre.borrower is None and not centre.start(book, epoch):
                continue
            if epoch <= centre.borrower.epoch:
                continue
            if centre.period != plan.terms.period_of(epoch):
                centre.borrower.close_before(epoch, centre.balance_of)
                centre.balances, centre.period = {}, plan.terms.period_of(epoch)
            centre.borrower.enter(epoch, centre.balance_of)
            centre.save()
            own = centre.borrower.submit(centre.name, centre.generation, epoch + 1)
            if plan.arrives[key]:
                submissions.append(own)
            if what == "crash after submit":
                centre.crash(epoch, length)
                continue
            _spend_epoch(plan, centre, key, record, without, opens_on_arrival, pays or pay_quickly)
            if what == "crash in step":
                centre.crash(epoch, 1)
        if plan.closes[epoch]:
            book.close(epoch + 1, submissions)
        for number, centre in enumerate(centres):
            if centre.borrower is not None and epoch >= centre.down_until and plan.fetched[epoch, number]:
                centre.fetch(book)
        _check_budgets(plan, book, record)
    return record


def pay_quickly(terms: BankTerms, centre: Centre, wants: dict[int, int], sensors, caps) -> dict[int, int]:
    """The largest square of a whole number that each sensor wants and may pay: the cost of a row with one entry."""
    costs = {}
    for sensor, cap in zip(sensors.tolist(), caps.tolist(), strict=True):
        if cost := math.isqrt(min(wants.get(sensor, 0), cap)) ** 2:
            costs[sensor] = cost
    return costs


def pay_by_accounts(terms: BankTerms, centre: Centre, wants: dict[int, int], sensors, caps) -> dict[int, int]:
    """The same by the code of a centre and its ledger: accounts of what is lent, and the check of each debit."""
    accounts = IndividualFilter.lending(terms.budget, 1, sensors, caps)
    ids = np.array(sorted(wants), np.int64)
    most = accounts.left(ids).tolist()
    rows = [[math.isqrt(min(wants[own], left))] for own, left in zip(ids.tolist(), most, strict=True)]
    costs = accounts.spend(ids, np.array(rows, np.int64).reshape(-1, 1)).costs
    paid = costs > 0
    assert pays_for(centre.borrower.open, Debits(ids[paid], costs[paid]), centre.balance_of)
    return dict(zip(ids[paid].tolist(), costs[paid].tolist(), strict=True))


Pays = Callable[[BankTerms, Centre, dict[int, int], np.ndarray, np.ndarray], dict[int, int]]


def _spend_epoch(plan, centre, key, record, without, opens_on_arrival, pays):
    what, length = plan.events.get(key, ("", 0))
    last = length if what == "crash in step" else STEPS
    for step in range(last):
        wants = {own: want for own, want in plan.wants[*key, step].items() if own != without}
        centre.borrower.note(np.array(sorted(wants), np.int64))
        sensors, caps = centre.borrower.allowances(STEPS - step, centre.balance_of)
        if opens_on_arrival and step < len(sensors) % STEPS:
            continue
        for sensor, cost in pays(plan.terms, centre, wants, sensors, caps).items():
            centre.balances[sensor] = centre.balances.get(sensor, 0) + cost
            record[*key, step, sensor] = cost


def _check_budgets(plan, book, record):
    spent, period = dict.fromkeys(plan.sensors, 0), plan.terms.period_of(book.closed)
    for (epoch, *_, sensor), cost in record.items():
        spent[sensor] += cost if plan.terms.period_of(epoch) == period else 0
    lent = dict.fromkeys(plan.sensors, 0)
    for loan in book.loans.values():
        for sensor, amount in zip(*loan, strict=True):
            lent[sensor] += amount
    for sensor, account in book.accounts.items():
        assert account.lent == lent[sensor] and min(account.spent, account.lent) >= 0
        assert account.spent + account.lent <= plan.terms.budget
        assert spent[sensor] <= account.spent + account.lent


def play_by_arrival(plan: Plan, without: int | None = None):
    """Negative control: all centres debit one account, and the one with fewer reports is first."""
    left = dict.fromkeys(plan.sensors, plan.terms.budget // 8)
    record = {}
    for epoch in range(plan.num_epochs):
        for step in range(STEPS):
            keys = [(epoch, number, step) for number in range(plan.num_centres)]
            wants = {key: {own: want for own, want in plan.wants[key].items() if own != without} for key in keys}
            for key in sorted(keys, key=lambda key: len(wants[key])):
                for sensor, want in wants[key].items():
                    if cost := min(want, left[sensor]):
                        left[sensor] -= cost
                        record[*key, sensor] = cost
    return record


def of_others(record, sensor):
    return {key: cost for key, cost in record.items() if key[-1] != sensor}
