"""A centre's side of a real bank: it waits for nothing, and nobody's contribution depends on another sensor."""

from __future__ import annotations

import itertools
import shutil
import time

import numpy as np
import pytest

import dpfuse
from dpfuse import Entry, Ledger
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.bank import Borrower
from dpfuse.ledger.bank.bank import Bank, BankBusy, OldCopy, Superseded
from dpfuse.ledger.bank.client import BankClient
from dpfuse.privacy.release import Charged
from support.bank_steps import STEPS, Past, spend_epoch
from support.centres import held_releases
from support.designs import make_design
from support.wire import wait_for

SENSORS = np.arange(1, 7)


@pytest.fixture
def together(monkeypatch):
    """A boundary is closed when the submissions of both centres are there: the schedule is the same in every run."""
    close_boundary = Bank.close_boundary

    def close_when_complete(self, boundary):
        is_complete = self._value("SELECT count(*) FROM submissions WHERE boundary = %s", (boundary,)) == 2
        return (is_complete or self.last_closed() >= boundary) and close_boundary(self, boundary)

    monkeypatch.setattr(Bank, "close_boundary", close_when_complete)


_files = itertools.count()


def contributions(bank, join, design, without=None, num_epochs=6, until=1000):
    """What each sensor adds to two centres that share a bank, and what it has spent there.

    Args:
        without: a sensor that does not report before epoch `until`.
    """
    past, rng = Past(bank), np.random.default_rng(1)
    past.start -= past.start % 4
    clients = [join(bank, name, f"{name}{next(_files)}.db", design) for name in ("a", "b")]
    centres = [dpfuse.FusionCentre(design, ledger, bank=client) for client, ledger in clients]
    with held_releases() as steps:
        for step in range(1, num_epochs * STEPS + 1):
            for centre, (client, _) in zip(centres, clients, strict=True):
                centre.begin_step(past.closes_at(client, step), past.interval_s)
                for sensor in SENSORS.tolist():
                    values, reports = rng.uniform(-1, 1, 2), rng.random() < 0.8
                    if reports and (sensor != without or step > until * STEPS):
                        centre.receive(*centre.streams, sensor, step, values)
                centre.tick()
            if step % STEPS == 1:
                past.answered(*(client for client, _ in clients))
    return steps, sum(ledger.spent_of(SENSORS) for _, ledger in clients)


def test_no_sensor_changes_what_another_adds_to_two_centres_of_a_bank(make_bank, join, design, together):
    assert num_steps_that_differ(make_bank, join, design) == 0


def test_two_worlds_that_differ_in_one_period_add_the_same_in_the_next(make_bank, join, together):
    """Periods of four epochs. In the second also the sensor that reported nothing in the first adds the same."""
    design, runs = make_design("individual", spread=0.5, horizon=None, expected_stay=4.0, budget=0.2, period=1.6), []
    for without in (None, 3):
        bank = make_bank(guarantee=design.guarantee, capacity=20, epoch_s=0.4)
        steps, spent = contributions(bank, join, design, without, num_epochs=8, until=4)
        runs.append(steps)
        assert ((0 < spent) & (spent <= bank.terms.budget)).all()
        bank.verify()
    half = len(runs[0]) // 2
    firsts, seconds = [steps[:half] for steps in runs], [steps[half:] for steps in runs]
    assert sum(any(row) for step in seconds[0] for row in step.values()) > 20 and seconds[0] == seconds[1]
    others = [[{key: row for key, row in step.items() if key[1] != 3} for step in steps] for steps in firsts]
    assert firsts[0] != firsts[1] and others[0] == others[1]


def test_an_allowance_that_is_divided_by_the_number_of_sensors_is_found(make_bank, join, design, together, monkeypatch):
    """Negative control."""
    allowances = Borrower.allowances

    def shared(self, num_steps, balance_of):
        sensors, amounts = allowances(self, num_steps, balance_of)
        return sensors, amounts // max(1, len(sensors))

    monkeypatch.setattr(Borrower, "allowances", shared)
    assert num_steps_that_differ(make_bank, join, design) > 5


def num_steps_that_differ(make_bank, join, design):
    """In how many steps others than sensor 3 add something else if sensor 3 does not report."""
    runs = []
    for without in (None, 3):
        bank = make_bank(guarantee=design.guarantee, capacity=20, epoch_s=0.4)
        steps, spent = contributions(bank, join, design, without)
        runs.append([{key: row for key, row in step.items() if key[1] != 3} for step in steps])
        assert (spent <= bank.terms.budget).all() and (spent[SENSORS != without] > 0).all()
        bank.verify()
    assert sum(any(row) for step in runs[0] for row in step.values()) > 50
    return sum(ours != theirs for ours, theirs in zip(*runs, strict=True))


def test_loans_are_used_at_their_boundary_and_never_on_arrival(make_bank, join, design):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, _), past = join(bank), Past(bank)
    for step in range(1, 4 * STEPS + 1):
        sensors, amounts = past.begin(client, step)
        # Reported in epoch 0, claimed at the beginning of epoch 1 for epoch 2.
        assert sensors.tolist() == ([5] if step > 2 * STEPS else [])
        if step == 2 * STEPS + 1:
            assert amounts.tolist() == [bank.terms.budget // 8 // STEPS]
        client.note(np.array([5]))
        if step % STEPS == 1:
            past.answered(client)


def test_a_clock_that_is_set_back_gives_nothing_to_steps_after_those_of_the_epoch(make_bank, join, design):
    """The slice is for the steps that were counted when the epoch began, in equal parts; what is left is returned."""
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, _), past = join(bank), Past(bank)
    for step in range(1, 2 * STEPS + 1):
        past.begin(client, step)
        client.note(np.array([5]))
        if step % STEPS == 1:
            past.answered(client)
    for step in range(2 * STEPS + 1, 3 * STEPS + 1):
        assert past.begin(client, step)[0].tolist() == [5]
    past.start -= 1  # nothing was spent of the slice, and it is still open
    assert len(past.begin(client, 3 * STEPS + 1)[0]) == 0 and client._borrower.open is not None
    past.answered(client)
    past.begin(client, 4 * STEPS + 1)  # the boundary that would have come before
    past.answered(client)
    past.begin(client, 5 * STEPS + 1)
    assert past.start + 3 not in client._borrower.slices  # closed, stated and settled


def test_an_answer_that_comes_after_its_boundary_lends_nothing(make_bank, join, design):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, _), past = join(bank), Past(bank)
    client.note(np.array([5]))
    assert len(past.begin(client, 1)[0]) == 0
    past.answered(client)
    kept, client._link._answers = client._link._answers, []
    assert len(past.begin(client, STEPS + 1)[0]) == 0
    client._link._answers[:0] = kept
    wait_for(lambda: len(client._link._answers) > 1)
    assert len(past.begin(client, STEPS + 2)[0]) == 0  # on arrival
    assert len(past.begin(client, 2 * STEPS + 1)[0]) == 0
    past.answered(client)
    past.begin(client, 3 * STEPS + 1)
    past.answered(client)
    [(spent, lent)] = bank._rows("SELECT spent, lent FROM accounts")
    assert (spent, lent) == (0, 0)  # returned


def test_a_bank_that_hangs_delays_no_step_and_stops_releases_after_its_patience(make_bank, join, design, server):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.2, patience=3)
    client, _ = join(bank)
    server.suspend()
    try:
        longest, allowed, begin = 0.0, [], time.monotonic()
        for step in itertools.count(1):
            before = time.monotonic()
            client.begin_step(step, before, 0.05)
            longest = max(longest, time.monotonic() - before)
            allowed.append(client.may_release)
            # A call that waited for the bank would never return. The bounds are wide for a busy machine.
            assert time.monotonic() - begin < 20 and longest < 2
            if not client.may_release:
                break
            time.sleep(0.05)
        assert time.monotonic() - begin >= 0.6
    finally:
        server.resume()
    for step in itertools.count(len(allowed) + 1):
        client.begin_step(step, time.monotonic(), 0.05)
        if client.may_release:
            break
        time.sleep(0.05)


def test_the_log_says_once_that_the_bank_is_away_and_once_that_it_is_back(make_bank, join, design, server, caplog):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.2, patience=100)
    client, _ = join(bank)
    steps = itertools.count(1)

    def go_on_until(condition):
        while not condition():
            client.begin_step(next(steps), time.monotonic(), 0.05)
            time.sleep(0.05)

    server.kill()
    go_on_until(lambda: client._link._is_away)
    time.sleep(0.5)
    server.start()
    go_on_until(lambda: not client._link._is_away)
    texts = [record.getMessage() for record in caplog.records if "dpfuse.ledger.bank" in record.name]
    assert len(texts) == 2 and "trying again. Releases go on" in texts[0] and texts[1].endswith("answers again")


def test_a_restart_states_what_was_spent_of_the_slices_at_hand(make_bank, join, design):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, ledger), past = join(bank), Past(bank)
    for step in range(1, 2 * STEPS + 2):
        client.note(np.array([5]))
        sensors, amounts = past.begin(client, step)
        if step % STEPS == 1:
            past.answered(client)
    assert sensors.tolist() == [5]
    client.close()
    ledger.close()
    again, _ = join(bank)
    assert again.generation == 1
    assert len(past.begin(again, 2 * STEPS + 2)[0]) == 0  # its slice is closed
    for epoch in (3, 4):  # the second returns a loan that was on its way when the first process ended
        past.begin(again, epoch * STEPS + 1)
        past.answered(again)
    [(spent, lent)] = bank._rows("SELECT spent, lent FROM accounts")
    assert (spent, lent) == (0, 0)


def test_a_copy_of_the_ledger_forfeits_its_slices_and_ends_the_first(make_bank, join, design, tmp_path):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.1, patience=3)
    (client, ledger), past = join(bank), Past(bank)
    client.note(np.array([5]))
    past.begin(client, 1)
    past.answered(client)
    for suffix in ("", "-wal", ".head"):
        shutil.copy(f"{ledger.path}{suffix}", tmp_path / f"copy.db{suffix}")
    with Ledger.open(tmp_path / "copy.db", design) as copied:
        with pytest.raises(BankBusy, match="may still be releasing"):
            BankClient(bank, bank.where, "a", copied)
        time.sleep(0.8)
        with BankClient(Bank.open(bank.where), bank.where, "a", copied) as second:
            assert second.generation == 2
    past.begin(client, STEPS + 1)
    wait_for(lambda: client._link.ended is not None, 20)
    with pytest.raises(Superseded, match="has ended for good"):
        past.begin(client, STEPS + 2)


def test_another_name_of_the_centre_is_refused_and_returns_nothing_that_was_spent(make_bank, join, design, tmp_path):
    """The slices in a ledger are those of one centre: by two names in turn, spent ones were stated as unspent."""
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    past, rng, last = Past(bank), np.random.default_rng(0), 0
    for _ in range(2):
        client, ledger = join(bank)
        centre = dpfuse.FusionCentre(design, ledger, bank=client)
        for step in range(last + 1, last + 4 * STEPS + 1):
            centre.begin_step(past.closes_at(client, step), past.interval_s)
            centre.receive("a", 5, step, rng.uniform(-1, 1, 2))
            centre.tick()
            if step % STEPS == 1:
                past.answered(client)
        last += 4 * STEPS
        [(spent, lent)] = bank._rows("SELECT spent, lent FROM accounts")
        assert 0 < ledger.spent_of(np.array([5]))[0] <= spent + lent
        client.close()
        ledger.close()
        with Ledger.open(tmp_path / "a.db", design) as again, Bank.open(bank.where) as connection:
            with pytest.raises(LedgerRefused, match="under another name of its centre"):
                BankClient(connection, bank.where, "b", again)


_TABLES = "submissions", "statements", "answers", "loans", "accounts", "closings"


def keep_copy(bank):
    for table in _TABLES:
        bank._connection.execute(f"CREATE TABLE old_{table} AS TABLE {table}")


def put_copy_back(bank):
    for table in _TABLES:
        bank._connection.execute(f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM old_{table}")


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_old_copy_of_the_bank_is_found_though_all_slices_are_closed_and_others_closed_later_boundaries(
    make_bank, join, design, is_restarted
):
    """As after the fail-over to a standby that lags by two boundaries, while the centre made two epochs without a bank.

    The bank then lends to nobody: its accounts lack what the centre has spent.
    """
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, ledger), (other, other_ledger), past = join(bank), join(bank, "b"), Past(bank)
    for epoch in range(6):
        spend_epoch(past, client, ledger, epoch)
        past.answered(client)
        if epoch == 3:
            keep_copy(bank)
    for epoch in (6, 7, 8):
        past.begin(client, epoch * STEPS + 1)
        past.answered(client)
        client._link._answers.clear()
    assert not any(own.spent is None for own in client._borrower.slices.values())
    put_copy_back(bank)
    for epoch in (9, 10):  # above all that the first centre holds
        spend_epoch(past, other, other_ledger, epoch)
        past.answered(other)
    [(spent, lent)] = bank._rows("SELECT spent, lent FROM accounts")
    assert spent + lent - bank.terms.budget // 8 < ledger.spent_of(np.array([5]))[0]  # less than was really spent
    if is_restarted:
        client.close()
        ledger.close()
        with pytest.raises(OldCopy, match="a centre holds a later answer of it"):
            join(bank)
    else:
        past.begin(client, 11 * STEPS + 1)
        wait_for(lambda: client._link.ended is not None, 20)
        with pytest.raises(OldCopy, match="a centre holds a later answer of it"):
            past.begin(client, 11 * STEPS + 2)
    past.begin(other, 12 * STEPS + 1)
    wait_for(lambda: other._link.ended is not None, 20)
    with pytest.raises(OldCopy):
        past.begin(other, 12 * STEPS + 2)
    assert not bank.close_boundary(past.start + 13)
    with pytest.raises(OldCopy):
        bank.verify()


def test_a_centre_that_missed_answers_is_not_taken_for_one_that_holds_a_later_one(make_bank, join, design):
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    (client, ledger), past = join(bank), Past(bank)
    for epoch in range(3):
        spend_epoch(past, client, ledger, epoch)
        past.answered(client)
    held = client._borrower.last_answer
    client.close()
    ledger.close()  # before the last answer is durable
    assert bank.last_answer("a", 1).boundary > held.boundary
    again, ledger = join(bank)
    spend_epoch(past, again, ledger, 3)
    past.answered(again)
    spend_epoch(past, again, ledger, 4)
    assert again._borrower.last_answer.boundary == past.start + 4 and again._borrower.last_answer.mark
    assert ledger.last_answer() == (1, again._borrower.last_answer)
    bank.verify()


def test_ledgers_of_another_bank_or_none_are_refused(make_bank, join, design, tmp_path):
    bank, other = make_bank(guarantee=design.guarantee), make_bank(guarantee=design.guarantee)
    _, ledger = join(bank)
    with pytest.raises(LedgerRefused, match="spends what a bank lends to it; name that bank"):
        dpfuse.FusionCentre(design, ledger)
    ledger.close()
    with pytest.raises(LedgerRefused, match="was not created for"):
        join(other)
    client, _ = join(bank, "c")
    with Ledger.create(tmp_path / "own.db", design) as own:
        with pytest.raises(LedgerRefused, match="is not the ledger of this bank client"):
            dpfuse.FusionCentre(design, own, bank=client)
    with pytest.raises(LedgerRefused, match="the bank does not know what it has spent"):
        join(bank, "b", "own.db")


def test_more_sensors_than_the_capacity_change_nothing_for_each_other(make_bank, join, design):
    """Nine sensors are more than two capacities: their messages are of three."""
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=0.4)
    past, lent, spent = Past(bank), {}, {}
    for name, sensors in (("a", np.arange(4)), ("b", np.arange(100, 109))):
        client, ledger = join(bank, name)
        for step in range(1, 5 * STEPS + 1):
            client.note(sensors)
            own, amounts = past.begin(client, step)
            if step == 2 * STEPS + 1:
                lent[name] = set(amounts.tolist())
                assert own.tolist() == sensors.tolist()
            if len(amounts):
                charged = Charged(2**30, None, amounts, np.zeros(ledger.terms.dimension, np.int64))
                ledger.commit([Entry(name, step, charged, own)])
            if step % STEPS == 1:
                past.answered(client)
        spent[name] = set(ledger.spent_of(sensors).tolist())
        past.start += 10
    assert lent["a"] == lent["b"] == {bank.terms.budget // 8 // STEPS} and spent["a"] == spent["b"]
    stated = bank._rows("SELECT DISTINCT spent FROM accounts")
    assert len(stated) == 1 and stated[0][0] > 0
    assert {width for (width,) in bank._rows("SELECT cardinality(sensors) FROM loans")} == {4, 12}
    bank.verify()


def test_steps_longer_than_a_quarter_of_an_epoch_or_shorter_than_a_thousandth_are_refused(make_bank, join, design):
    client, _ = join(make_bank(guarantee=design.guarantee, epoch_s=2.0))
    client.check_interval(0.5)
    client.check_interval(0.002)
    for interval_s in (0.6, 0.001):
        with pytest.raises(ValueError, match=rf"from 0\.002 to 0\.5 s, .* of the bank's epoch, got {interval_s}; "):
            client.check_interval(interval_s)


def test_a_period_begins_with_an_epoch_and_nothing_of_the_last_one_is_lent(make_bank, join):
    """Periods of four epochs. In the first two of each nothing is lent; then a new account is."""
    design = make_design("individual", horizon=None, expected_stay=4.0, budget=0.2, period=4.0)
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=1.0)
    (client, ledger), past = join(bank, design=design), Past(bank)
    past.start -= past.start % 4
    for step in range(1, 12 * STEPS + 1):
        epoch = (step - 1) // STEPS
        sensors, amounts = past.begin(client, step)
        assert sensors.tolist() == ([5] if epoch % 4 >= 2 else [])
        assert ledger.period == (past.start + epoch) // 4
        if (step - 1) % (4 * STEPS) == 2 * STEPS:
            assert amounts.tolist() == [bank.terms.budget // 8 // STEPS]
        client.note(np.array([5]))
        if step % STEPS == 1:
            past.answered(client)
    bank.verify()


def test_a_crash_just_before_a_period_begins_carries_no_claim_into_it(make_bank, join, monkeypatch):
    """After the restart the steps of the same epoch are of the new period, as the bank takes them to be."""
    design = make_design("individual", horizon=None, expected_stay=4.0, budget=0.2, period=4.0)
    bank = make_bank(guarantee=design.guarantee, capacity=4, epoch_s=1.0)
    (client, ledger), past = join(bank, design=design), Past(bank)
    past.start -= past.start % 4
    for step in range(1, 4 * STEPS + 1):
        past.begin(client, step)
        client.note(np.array([5]))
        if step % STEPS == 1:
            past.answered(client)

    def crash(period):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "begin_period", crash)
        with pytest.raises(KeyboardInterrupt):
            past.begin(client, 4 * STEPS + 1)
    assert ledger.period == past.start // 4
    client.close()
    ledger.close()
    client, ledger = join(bank, design=design)
    past.begin(client, 4 * STEPS + 2)
    assert ledger.period == past.start // 4 + 1
