"""Several `dpfuse serve` processes that share sensors and a bank, and a record of every loan and debit for the test."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dpfuse.ledger import Ledger, public_rows, verify
from dpfuse.ledger.bank.bank import Bank
from support.live_centre import Site, Subscriber

EPOCH_S = 1.0
INTERVAL_S = 0.2

# Runs inside the centre. Loans, and steps with their debits, are appended to the test's own file before they are made
# durable in the ledger, and releases before they are published. A line that a kill cuts short is of something that was
# not begun.
_RECORD = """
import json
from dpfuse.ledger.writer import Ledger
from dpfuse.public.hub import Hub
file = open({path!r}, "a", buffering=1)
print(file=file)
own_record, own_keep, own_publish, generations = Ledger._record, Ledger.keep_slices, Hub.publish, [None]
def amounts_of(sensors, amounts):
    return dict(zip(sensors.tolist(), amounts.tolist()))
def record(self, entries, left, debits, noise):
    steps = [(entry.stream, entry.step) for entry in entries]
    loan = generations[-1], None if self._open_slice is None else self._open_slice.epoch
    print(json.dumps(["steps", steps, loan, amounts_of(debits.sensors, debits.costs)]), file=file)
    return own_record(self, entries, left, debits, noise)
def keep_slices(self, generation, slices, *answer):
    kept = list(slices)
    generations.append(generation)
    for own in kept:
        print(json.dumps(["loan", (generation, own.epoch), amounts_of(own.sensors, own.amounts)]), file=file)
    return own_keep(self, generation, kept, *answer)
def publish(self, published, *messages):
    for row in (one.row for one in published):
        print(json.dumps(["published", row.stream, row.step, row.release.hex()]), file=file)
    return own_publish(self, published, *messages)
Ledger._record, Ledger.keep_slices, Hub.publish = record, keep_slices, publish
"""


class LoanKey(NamedTuple):
    """Which loan of the bank; `epoch` is None where a step had none."""

    centre: str
    generation: int | None
    epoch: int | None


class BankSite(Site):
    """A centre with a bank, as a process; `stream` names its stream and its files."""

    interval_s, expected_stay = INTERVAL_S, 300.0  # long: most of a slice is returned

    def __init__(self, folder: Path, name: str, bank: Bank, stream: str | None = None) -> None:
        stream = stream or name
        super().__init__(folder, folder / f"{stream}.db", stream)
        self.name, self.record = name, folder / f"{stream}.record"
        self.options = *self.options, f"--bank={bank.where}", f"--centre={name}"
        self.create(bank.terms.bank_id)

    def start(self, prelude: str = ""):
        return super().start(_RECORD.format(path=str(self.record)) + prelude)

    def lose(self, folder: Path) -> None:
        """Take its disk away: ledger, head and key are kept elsewhere, for the test alone."""
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in self.folder.glob(f"{Path(self.ledger).name}*"):
            path.rename(folder / path.name)
        self.ledger = str(folder / Path(self.ledger).name)

    def lent(self) -> dict[LoanKey, dict[int, int]]:
        """Every loan that it ever held, by the record; a loan never changes."""
        loans = {}
        for (generation, epoch), amounts in self._lines("loan"):
            loan, amounts = LoanKey(self.name, generation, epoch), _by_sensor(amounts)
            assert loans.setdefault(loan, amounts) == amounts, "a loan has changed"
        return loans

    def spent_of_loans(self) -> dict[LoanKey, Counter]:
        """What each sensor has paid from each loan, by the record: the debits of the steps that are in the ledger."""
        rows = list(public_rows(self.ledger))  # read first: what they cost is in the record by then
        last = {}  # of a step that was begun again after a kill, the last one
        for steps, loan, debits in self._lines("steps"):
            last |= {(stream, step): (loan, _by_sensor(debits)) for stream, step in steps}
        spent = {}
        for row in rows:
            loan, debits = last[row.stream, row.step]
            spent.setdefault(LoanKey(self.name, *loan), Counter()).update(debits)
        return spent

    def spent(self) -> Counter:
        """What each sensor has paid."""
        return sum_of(self.spent_of_loans().values())

    def check_published(self) -> int:
        """What was ever published is what the ledger holds, so no step had two releases; returns how many were."""
        rows = {(row.stream, row.step): row.release.hex() for row in public_rows(self.ledger)}
        published = list(self._lines("published"))
        assert all(rows.get((stream, step)) == release for stream, step, release in published), "two releases"
        return len({(stream, step) for stream, step, _ in published})

    def _lines(self, kind: str):
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        for line in lines:
            try:
                found, *content = json.loads(line)
            except ValueError:
                continue  # cut short by a kill
            if found == kind:
                yield content


def _by_sensor(amounts: dict[str, int]) -> dict[int, int]:
    return {int(sensor): amount for sensor, amount in amounts.items()}


def sum_of(counters: Iterable[Counter]) -> Counter:
    total = Counter()
    for one in counters:
        total.update(one)
    return total


def loans_at(bank: Bank, centre: str) -> dict[LoanKey, dict[int, int]]:
    """The loans of a centre's last generation that the bank has not settled."""
    [generation] = [one.generation for one in bank.verify().centres if one.centre == centre]
    return {
        LoanKey(centre, generation, epoch): dict(zip(loan.sensors.tolist(), loan.amounts.tolist(), strict=True))
        for epoch, loan in bank.loans(centre, generation).items()
    }


def check_budgets(
    sites: Iterable[BankSite], bank: Bank, forfeited: dict[LoanKey, dict[int, int]] | None = None
) -> Counter:
    """Nobody is above the budget over all centres, and the bank counts every loan exactly once; returns what was spent.

    All is computed from the records. The bank must have as spent or lent of every account what was really paid, and
    what is left of the loans that are not settled or were forfeited: neither more, as if a slice was counted twice, nor
    less, as if a debit was forgotten.

    Args:
        forfeited: the loans of generations that ended with their disk.
    """
    budget, sites = bank.terms.budget, list(sites)
    spent_of_loans = {}
    for site in sites:
        verify(site.ledger)
        own, lent = site.spent_of_loans(), site.lent()
        for loan, paid in own.items():
            amounts = lent.get(loan, {})
            assert all(cost <= amounts.get(sensor, 0) for sensor, cost in paid.items()), "more than a slice was spent"
        with Ledger.open(site.ledger, site.design) as ledger:
            accounts = ledger.accounts(ledger.streams[0]).accounts()
            assert accounts == {sensor: cost for sensor, cost in site.spent().items() if cost}
        assert not own.keys() & spent_of_loans.keys() - {LoanKey(site.name, None, None)}
        spent_of_loans |= own
    total = sum_of(spent_of_loans.values())
    assert 0 < max(total.values()) <= budget, "an account is above its budget"
    is_out = dict(forfeited or {})
    for site in sites:
        is_out |= loans_at(bank, site.name)
    for loan, amounts in is_out.items():  # what is left of them
        total.subtract(spent_of_loans.get(loan, {}))
        total.update(amounts)
    counted = {sensor: spent + lent for sensor, spent, lent in bank._rows("SELECT sensor, spent, lent FROM accounts")}
    assert counted == {sensor: total[sensor] for sensor in counted}, "the bank has not counted every loan once"
    assert not any(total[sensor] for sensor in total.keys() - counted.keys()) and max(counted.values()) <= budget
    return sum_of(spent_of_loans.values())


class TimedSubscriber(Subscriber):
    """Also records when each release arrived."""

    def __init__(self, site: BankSite) -> None:
        super().__init__(site, *site.streams)
        self.arrived = {}

    def _note(self, release: dict) -> None:
        super()._note(release)
        self.arrived.setdefault(release["step"], time.monotonic())

    def longest_gap(self, since_s: float) -> float:
        """The longest time between two releases from that moment on."""
        times = [moment for _, moment in sorted(self.arrived.items()) if moment >= since_s]
        return max(later - earlier for earlier, later in zip(times, times[1:], strict=False))

    def check(self) -> None:
        """What was received is what the ledger holds, and no step came with two releases."""
        assert not self.contradictions
        rows = {row.step: row.to_dict()["release"] for row in public_rows(self.site.ledger, self.stream)}
        assert all(rows[step] == own["release"] for step, own in dict(self.received).items())
