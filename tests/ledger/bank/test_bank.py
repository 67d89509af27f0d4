"""The bank in PostgreSQL: it computes what the pure code does, holds no lock for a centre, and shows nothing."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path

import numpy as np
import psycopg
import pytest

from dpfuse.errors import LedgerMismatch, LedgerRefused
from dpfuse.ledger.bank import Book, Submission
from dpfuse.ledger.bank.bank import Bank, BankBusy, OldCopy, Superseded
from dpfuse.ledger.bank.rules import NO_ANSWER, LastAnswer
from dpfuse.ledger.bank.server import BankAddress, array_from_bytes, array_to_bytes
from support.designs import make_guarantee


def first_boundary(bank):
    """A boundary whose deadline is long over."""
    return bank.terms.epoch_at(bank.now()) - 5000


def register(bank, centre="a", ledger="l", place="p", streams=(), num_commits=0):
    return bank.register(centre, f"{ledger}-{centre}", place, streams, num_commits)


def as_lists(loans):
    return {key: tuple(map(list, loan)) for key, loan in loans.items()}


@pytest.mark.parametrize("period", [None, 3.0])
def test_a_closing_equals_the_pure_code_for_random_claims_statements_and_generations(make_bank, period):
    """With periods of six epochs, too. New generations begin between submissions and closing, and forfeit loans.

    Messages are of one or two capacities. With periods the bank is restored once.
    """
    guarantee = make_guarantee("individual", period=period)
    bank, rng = make_bank(guarantee=guarantee, capacity=4, epoch_s=0.5), random.Random(5)
    book, centres, moments = Book(bank.terms), ["a", "b", "c"], itertools.count(10**12, 10**6)
    for centre in centres:
        assert register(bank, centre) == book.register(centre, next(moments)) == 1
    start, places, num_forfeited = first_boundary(bank), dict.fromkeys(centres, "p"), 0
    num_granted = []
    start -= start % 6 if period is not None else 0
    for boundary in range(start, start + 25):
        submissions = []
        for centre in centres:
            claims = rng.sample(range(10), rng.randint(0, 6))
            generation = book.generations[centre]
            statements = {
                epoch: [rng.choice([0, amount, amount // 3, -1, amount + 1]) for amount in loan.amounts]
                for (*whose, epoch), loan in book.loans.items()
                if whose == [centre, generation] and rng.random() < 0.7
            }
            if rng.random() < 0.8:
                submissions.append(Submission(centre, generation, boundary, claims, statements))
                bank.submit(submissions[-1], 0)
        for centre in centres:
            if rng.random() < 0.2:
                if is_new := rng.random() < 0.5:
                    places[centre] += "p"
                    bank._connection.execute("UPDATE centres SET boundary = boundary - 100")  # longer than the patience
                    num_forfeited += sum(name == centre for name, *_ in book.loans)
                begun = book.register(centre, next(moments), is_same_ledger=not is_new)
                assert register(bank, centre, place=places[centre]) == begun
        if period is not None and boundary == start + 12:
            bank._connection.execute("UPDATE bank SET restored_at = %s", (boundary + 1,))
            bank._connection.execute("UPDATE centres SET boundary = boundary - 100")
            book.restore(boundary + 1)
            for centre in centres:
                begun = book.register(centre, next(moments), is_same_ledger=True)
                assert register(bank, centre, place=places[centre]) == begun == boundary + 2
        granted = book.close(boundary, submissions)
        num_granted.append(sum(len(loan.sensors) for loan in granted.values()))
        assert bank.close_boundary(boundary)
        for centre in centres:
            for generation in (1, 2, 3, book.generations[centre]):
                expected = {key[2]: own for key, own in book.loans.items() if key[:2] == (centre, generation)}
                assert as_lists(bank.loans(centre, generation)) == as_lists(expected)
            assert (boundary in expected) == (centre in granted)
        rows = bank._rows("SELECT sensor, spent, lent FROM accounts")
        assert {sensor: own for sensor, *own in rows} == {
            sensor: [own.spent, own.lent] for sensor, own in book.accounts.items()
        }
        bank.verify()
    assert num_forfeited > 3
    if period is not None:
        assert sum(num_granted[12:18]) == 0 and min(sum(num_granted[6:12]), sum(num_granted[18:24])) > 0


def test_a_boundary_is_closed_once_and_not_before_its_deadline(make_bank):
    bank = make_bank(capacity=4, epoch_s=1000.0)
    register(bank)
    coming = bank.terms.epoch_at(bank.now()) + 2
    assert not bank.close_boundary(coming) and bank.last_closed() == -1
    past = coming - 3
    bank.submit(Submission("a", 1, past, [7]), 0)
    assert bank.close_boundary(past)
    before = as_lists(bank.loans("a", 1))
    assert bank.close_boundary(past) and as_lists(bank.loans("a", 1)) == before


def test_a_late_submission_is_not_counted(make_bank):
    bank = make_bank(capacity=4)
    register(bank)
    boundary = first_boundary(bank)
    assert bank.close_boundary(boundary)
    bank.submit(Submission("a", 1, boundary, [7]), 0)
    assert bank.close_boundary(boundary) and bank.loans("a", 1) == {}


def test_no_call_waits_for_a_closer_that_hangs(make_bank):
    """The lock of the closer is held by another session: centres submit, and the closing is left to the other."""
    bank = make_bank(capacity=4)
    register(bank)
    boundary = first_boundary(bank)
    with psycopg.connect(BankAddress.parse(bank.where).url) as hung:
        hung.execute("SELECT pg_advisory_xact_lock(1684108917, hashtext(%s))", (bank.address.schema,))
        begin = time.monotonic()
        bank.submit(Submission("a", 1, boundary, [7]), 0)
        assert not bank.close_boundary(boundary)
        assert time.monotonic() - begin < 2
    assert bank.close_boundary(boundary) and list(bank.loans("a", 1)) == [boundary]


def test_a_generation_goes_on_with_the_same_ledger_in_the_same_place_only(make_bank):
    bank = make_bank(capacity=4, epoch_s=0.05, patience=3)
    assert register(bank, num_commits=3) == register(bank, num_commits=3) == 1
    with pytest.raises(BankBusy, match=r"may still be releasing .* try again in 0 s"):
        register(bank, place="elsewhere")
    time.sleep(0.4)
    assert register(bank, place="elsewhere") == 2
    with pytest.raises(Superseded, match="has ended for good"):
        bank.submit(Submission("a", 1, 5, []), 0)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_new_generation_begins_once_the_last_one_has_stopped_for_sure(make_bank, is_answered):
    """Counted from its last answer, or from its registration if that is later."""
    bank = make_bank(capacity=4, epoch_s=1000.0, patience=5)
    register(bank)
    now = bank.terms.epoch_at(bank.now())
    bank.submit(Submission("a", 1, now - 50, [7]), 0)
    assert bank.close_boundary(now - 50)
    for ago in (6, 7, 8):
        table, other = ("answers", "centres") if is_answered else ("centres", "answers")
        bank._connection.execute(f"UPDATE {table} SET boundary = {now - ago}")
        bank._connection.execute(f"UPDATE {other} SET boundary = {now - 40}")
        if bank.terms.may_begin_anew(now, now - ago):
            assert ago == 8 and register(bank, place="elsewhere") == 2
        else:
            with pytest.raises(BankBusy):
                register(bank, place="elsewhere")


def test_what_was_submitted_before_a_restore_is_not_counted(make_bank):
    bank = make_bank(capacity=4)
    register(bank)
    boundary = first_boundary(bank)
    bank.submit(Submission("a", 1, boundary, [7]), 0)
    bank._connection.execute("UPDATE bank SET restored_at = %s", (boundary - 1,))
    assert bank.close_boundary(boundary)
    assert bank.loans("a", 1) == {} and bank.last_answer("a", 1) == NO_ANSWER


def test_a_ledger_with_fewer_commits_than_it_had_is_another_generation(make_bank):
    bank = make_bank(capacity=4, epoch_s=0.05, patience=3)
    register(bank, num_commits=0)
    boundary = bank.terms.epoch_at(bank.now())
    bank.submit(Submission("a", 1, boundary, [7]), 50)
    assert bank.close_boundary(boundary)
    assert register(bank, num_commits=50) == 1
    time.sleep(0.4)
    assert register(bank, num_commits=49) == 2
    assert bank.close_boundary(boundary + 3)
    [(spent, lent)] = bank._rows("SELECT spent, lent FROM accounts")
    assert (spent, lent) == (bank.terms.budget // 8, 0)  # forfeited


def test_the_bank_keeps_the_tip_of_the_latest_commit_whatever_comes_after_it(make_bank):
    bank = make_bank(capacity=4)
    register(bank)
    boundary = first_boundary(bank)
    for number, (num_commits, tip) in enumerate([(50, b"early"), (60, b"late"), (55, b"between")]):
        bank.submit(Submission("a", 1, boundary + number, [7]), num_commits, tip)
        assert bank.close_boundary(boundary + number)
    assert bank.private_tip("a", "l-a", "") == (60, b"late")


@pytest.mark.parametrize("lost", ["boundary = boundary - 1", "mark = 'another'"])
def test_a_bank_that_does_not_know_an_answer_of_a_centre_lends_to_nobody(make_bank, lost):
    """An old copy lacks the answer or, if it closed the boundary once more, has made another one."""
    bank = make_bank(capacity=4)
    register(bank), register(bank, "b")
    boundary = first_boundary(bank)
    bank.submit(Submission("a", 1, boundary, [7]), 0)
    assert bank.close_boundary(boundary)
    last = bank.last_answer("a", 1)
    assert last.boundary == boundary and bank.last_answer("b", 1) == NO_ANSWER
    bank.submit(Submission("a", 1, boundary + 1, [7], last_answer=last), 0)
    assert bank.close_boundary(boundary + 1)
    bank.submit(Submission("a", 1, boundary + 2, [7], last_answer=last), 0)  # the last answer did not arrive
    bank.check_knows("a", 1, last := bank.last_answer("a", 1))
    bank._connection.execute(f"UPDATE answers SET {lost}")
    with pytest.raises(OldCopy, match="is an old copy of itself"):
        bank.submit(Submission("a", 1, boundary + 3, [7], last_answer=last), 0)
    with pytest.raises(OldCopy):
        bank.submit(Submission("b", 1, boundary + 3, [7]), 0)
    assert not bank.close_boundary(boundary + 3)


def test_an_address_without_a_bank_is_neither_opened_nor_upgraded(server):
    for attempt in (Bank.open, Bank.upgrade):
        with pytest.raises(LedgerMismatch, match="holds no bank"):
            attempt(server.url("nothing"))


def test_a_restore_is_as_late_as_a_lost_answer_that_is_later_than_the_clock(make_bank):
    bank = make_bank(guarantee=make_guarantee("individual", period="day"), capacity=4)
    later = bank.terms.epoch_at(bank.now()) + 1000
    with pytest.raises(OldCopy):
        bank.check_knows("north", 1, LastAnswer(later, "mark"))
    assert bank.restore() == later == bank.verify().restored_at


def test_a_bank_of_version_3_is_refused_and_an_upgrade_keeps_its_accounts(server):
    """And with a message of more sensors than version 3 took."""
    where = server.url("version3")
    address = BankAddress.parse(where)
    with psycopg.connect(address.url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA version3; SET search_path = version3")
        connection.execute((Path(__file__).parent / "version3.sql").read_text())
        boundary = int(connection.execute("SELECT extract(epoch FROM clock_timestamp()) / 2").fetchone()[0]) - 5000
        connection.execute("SELECT register_centre('a', 'l-a', 'p', '{}', 0)")
        connection.execute(f"SELECT submit('a', 1, {boundary}, 0, '{{7,8,-1,-1}}', '{{}}', '{{}}', -1, '')")
        connection.execute(f"SELECT close_boundary({boundary})")
    with pytest.raises(LedgerMismatch, match="has version 3, and this dpfuse needs 4; .* `dpfuse bank upgrade`"):
        Bank.open(where)
    assert Bank.upgrade(where) == 3
    with Bank.open(where) as bank:
        assert register(bank) == 1 and bank.verify().restored_at is None
        loans = bank.loans("a", 1)
        assert as_lists(loans)[boundary][0] == [7, 8]
        bank.submit(Submission("a", 1, boundary + 1, range(6), {boundary: [3, 4]}, bank.last_answer("a", 1)), 0)
        assert bank.close_boundary(boundary + 1)
        assert bank._rows("SELECT sensor, spent FROM accounts WHERE spent > 0 ORDER BY sensor") == [(7, 3), (8, 4)]
        assert len(bank.loans("a", 1)[boundary + 1].sensors) == 6
        bank.verify()
    assert Bank.upgrade(where) == 4
    server.run("UPDATE version3.bank SET version = 2")
    with pytest.raises(LedgerMismatch, match="has no version from 3 to 4; use the dpfuse that made it"):
        Bank.upgrade(where)


def test_a_bank_without_periods_is_not_restored(make_bank):
    with pytest.raises(LedgerMismatch, match="it could never lend again"):
        make_bank(capacity=4).restore()


def test_a_stream_belongs_to_one_ledger(make_bank):
    bank = make_bank(capacity=4)
    register(bank, streams=["north"])
    with pytest.raises(LedgerRefused, match="has lent a stream of that name to another ledger"):
        register(bank, centre="b", streams=["south", "north"])
    assert register(bank, centre="b", streams=["south"]) == 1


def test_a_ledger_belongs_to_one_centre(make_bank):
    bank = make_bank(capacity=4)
    assert bank.register("a", "ledger", "p", ["north"], 0) == 1
    for place in ("p", "elsewhere"):
        with pytest.raises(LedgerRefused, match="under another name of its centre; give that name, not 'b'"):
            bank.register("b", "ledger", place, ["north"], 0)
    assert bank.register("a", "ledger", "p", ["north"], 0) == 1
    assert bank.register("b", "another", "p", ["south"], 0) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE accounts SET spent = 0",
        "UPDATE accounts SET lent = 0",
        "DELETE FROM accounts",
        "DELETE FROM loans",
        "ALTER TABLE accounts DROP CONSTRAINT accounts_check; UPDATE accounts SET spent = {budget} + 1",
    ],
)
def test_changes_by_hand_are_found(make_bank, server, change):
    bank = make_bank(capacity=4)
    register(bank)
    boundary = first_boundary(bank)
    bank.submit(Submission("a", 1, boundary, [7, 8]), 0)
    assert bank.close_boundary(boundary)
    bank.submit(Submission("a", 1, boundary + 1, [7], {boundary: [5, 6]}), 0)
    assert bank.close_boundary(boundary + 1)
    bank.verify()
    server.run(f"SET search_path = {bank.address.schema}", change.format(budget=bank.terms.budget))
    with pytest.raises(LedgerRefused, match="above its budget|do not add up"):
        bank.verify()


def test_messages_are_as_wide_for_no_sensor_as_for_many():
    few, many = np.full(100, -1), np.arange(2**62, 2**62 + 100)
    assert len(array_to_bytes(few)) == len(array_to_bytes(many))
    assert (array_from_bytes(array_to_bytes(many)) == many).all() and not len(array_from_bytes(array_to_bytes(few[:0])))


def test_a_password_in_the_address_is_refused_and_never_shown():
    in_options = [f"postgresql://host/db?{name}=secret" for name in ("password", "sslpassword")]
    for address in ("postgresql://me:secret@host/db", *in_options):
        with pytest.raises(ValueError, match="PGPASSFILE") as caught:
            BankAddress.parse(address)
        assert "secret" not in str(caught.value)
    assert "me" not in str(BankAddress.parse("postgresql://me@host/db"))


def test_a_missing_bank_is_refused(server):
    with pytest.raises(LedgerRefused, match="holds no bank; make one with `dpfuse bank init`"):
        Bank.open(server.url("nothing_here"))
    with pytest.raises(LedgerRefused, match="cannot be reached"):
        Bank.open("postgresql://nobody@/db?host=/nowhere")
