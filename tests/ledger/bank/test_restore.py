"""Ledgers with a bank, and banks, that are restored from a backup: no budget is lent or spent twice."""

from __future__ import annotations

import subprocess
import time

import numpy as np
import pytest

from dpfuse import Entry, Ledger
from dpfuse.errors import LedgerRefused, LedgerUnavailable
from dpfuse.ledger import backup, restore
from dpfuse.ledger.bank.bank import Bank, BankBusy, OldCopy
from dpfuse.ledger.bank.client import BankClient
from dpfuse.privacy.release import Charged
from support.bank_steps import Past, spend_epoch
from support.designs import make_design
from support.postgres_server import Server

SENSOR = np.array([5])


def remove_ledger(path):
    for suffix in ("", "-wal", "-shm", ".head"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def test_a_restored_ledger_is_a_new_generation_and_what_it_had_borrowed_counts_as_spent(
    make_bank, join, design, tmp_path
):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, ledger), past, path = join(bank), Past(bank), tmp_path / "a.db"
    for epoch in range(5):
        spend_epoch(past, client, ledger, epoch)
        past.answered(client)
        if epoch == 3:
            backup(path, tmp_path / "copy")
    last, spent = ledger.newest_step, ledger.spent_of(SENSOR)[0]
    client.close()
    ledger.close()
    found_again = [(file, file.read_bytes()) for file in (path, path.with_name("a.db.head"))]
    marks = set()
    for _ in range(2):  # the first restored ledger is lost, too
        remove_ledger(path)
        found, restored = restore(tmp_path / "copy", path, last_step=last)
        assert restored.charge == 0 and found.streams["a"].last_step == last
        with Ledger.open(path, design) as opened:
            assert opened.spent_of(SENSOR)[0] < spent  # the copy does not know it
            marks.add(opened.restore_mark())
    assert len(marks) == 2 and "" not in marks
    with Ledger.open(path, design) as opened, Bank.open(bank.where) as connection, pytest.raises(BankBusy):
        BankClient(connection, bank.where, "a", opened)
    bank._connection.execute("UPDATE centres SET boundary = boundary - 100")  # longer than the patience
    again, ledger = join(bank)
    assert again.generation == 2
    before = ledger.spent_of(SENSOR)[0]
    for epoch in range(5, 9):
        spend_epoch(past, again, ledger, epoch)
        past.answered(again)
    spent += ledger.spent_of(SENSOR)[0] - before
    assert ledger.spent_of(SENSOR)[0] > before  # it goes on
    [(stated, lent)] = bank._rows("SELECT spent, lent FROM accounts")
    assert spent <= stated + lent <= bank.terms.budget
    bank.verify()
    again.close()
    ledger.close()
    remove_ledger(path)
    for file, content in found_again:
        file.touch(mode=0o600)
        file.write_bytes(content)
    bank._connection.execute("UPDATE centres SET boundary = boundary - 100")
    with pytest.raises(LedgerRefused, match="does not hold commit"):  # it lacks what was spent after the restore
        join(bank)


@pytest.mark.parametrize(("went_on", "is_new_file"), [(False, False), (True, False), (False, True)])
def test_an_old_copy_of_a_ledger_in_its_place_is_refused_by_the_tip_that_its_bank_keeps(
    make_bank, join, design, tmp_path, went_on, is_new_file
):
    """It states less than was spent and would release steps a second time; if it went on, it has as many commits."""
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, ledger), past, path = join(bank), Past(bank), tmp_path / "a.db"

    def end():
        client.close()
        ledger.close()

    spend_epoch(past, client, ledger, 0)
    past.answered(client)
    end()
    files = {file: file.read_bytes() for file in (path, path.with_name("a.db.head"))}
    client, ledger = join(bank)  # an unchanged ledger goes on
    assert client.generation == 1
    for epoch in (1, 2, 3):
        spend_epoch(past, client, ledger, epoch)
        past.answered(client)
    num_commits = ledger.num_commits
    end()
    for file, content in files.items():
        if is_new_file:  # with another inode: it would be a new generation
            file.rename(tmp_path / f"lost-{file.name}")
            file.touch(mode=0o600)
        file.write_bytes(content)
    bank._connection.execute("UPDATE centres SET boundary = boundary - 100")  # longer than the patience
    with Ledger.open(path, design) as old:
        while went_on and old.num_commits <= num_commits:
            old.keep_slices(1, old.slices(1), old.last_answer()[1])
    with pytest.raises(
        LedgerRefused, match="does not hold commit .* with the private tip that its bank keeps: it was rolled back"
    ):
        join(bank)


class LiveCentre:
    """A centre with one sensor that spends all it may, by the clock; `record` holds what it spent, by period."""

    interval_s = 0.05

    def __init__(self, where, path, design):
        self.where, self.path, self.design = where, path, design
        self.record, self.step = {}, 0

    def start(self):
        bank = Bank.open(self.where)
        make = Ledger.open if self.path.exists() else Ledger.create
        more = () if self.path.exists() else (["a"], bank.terms.bank_id)
        self.ledger = make(self.path, self.design, *more)
        try:
            self.client = BankClient(bank, self.where, "a", self.ledger)
        except BaseException:
            self.ledger.close()
            bank.close()
            raise

    def stop(self):
        self.client.close()
        self.ledger.close()

    def run_until(self, condition):
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline
            self.step += 1
            sensors, amounts = self.client.begin_step(self.step, time.monotonic() + self.interval_s, self.interval_s)
            self.client.note(SENSOR)
            if amounts.sum():
                charged = Charged(2**30, None, amounts, np.zeros(self.ledger.terms.dimension, np.int64))
                self.ledger.commit([Entry("a", self.step, charged, sensors)])
                period = self.ledger.period
                self.record[period] = self.record.get(period, 0) + int(amounts.sum())
            time.sleep(self.interval_s)

    def total(self):
        return sum(self.record.values())


@pytest.mark.slow
def test_a_bank_that_is_restored_lends_nothing_of_a_period_twice_and_goes_on_in_the_next(tmp_path):
    """PostgreSQL's files are put back as they were before a part of the budget was lent and spent."""
    server = Server()
    try:
        design = make_design("individual", horizon=None, expected_stay=4.0, budget=0.2, period=4.0)
        with Bank.create(server.url("roads"), design.guarantee, epoch_s=0.2, patience=3, capacity=4) as bank:
            terms = bank.terms
        centre = LiveCentre(server.url("roads"), tmp_path / "a.db", design)
        centre.start()
        centre.run_until(lambda: centre.total() > 0)
        server.stop()
        subprocess.run(["cp", "-a", server.data, tmp_path / "backup"], check=True)
        server.start()
        before, answered = centre.total(), centre.ledger.last_answer()[1].boundary
        centre.run_until(lambda: centre.total() > before and centre.ledger.last_answer()[1].boundary > answered + 2)
        centre.stop()
        server.stop()
        subprocess.run(["rm", "-r", server.data], check=True)
        subprocess.run(["cp", "-a", tmp_path / "backup", server.data], check=True)
        server.start()
        with pytest.raises(OldCopy):
            centre.start()
        with Bank.open(centre.where) as bank:
            restored_at = bank.restore()
            assert bank.verify().restored_at == restored_at
        while True:
            try:
                centre.start()
                break
            except LedgerUnavailable:
                time.sleep(0.1)
        assert centre.client.generation == restored_at + 1
        known = dict(centre.record)
        centre.run_until(lambda: len(centre.record) > len(known) and max(centre.record) > terms.period_of(restored_at))
        centre.stop()
        new = {period: spent for period, spent in centre.record.items() if spent != known.get(period)}
        assert min(new) > terms.period_of(restored_at)
        assert max(centre.record.values()) <= terms.budget
    finally:
        server.remove()
