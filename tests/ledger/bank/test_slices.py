"""A ledger with a bank: slices are durable, and a debit is made from a slice or not at all."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import apsw
import numpy as np
import pytest
from typer.testing import CliRunner

from dpfuse import Entry, Ledger, cli
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import Terms, backup, upgrade, verify
from dpfuse.ledger.bank import HeldSlice
from dpfuse.ledger.bank.rules import NO_ANSWER, LastAnswer
from dpfuse.ledger.events import TERMS
from dpfuse.privacy.release import Charged
from support.designs import make_design

LENT = 987_654
SENSORS, AMOUNTS = np.array([3, 4, 9]), np.array([LENT, 7, 0])
ANSWER = LastAnswer(4, "mark")


@pytest.fixture(scope="module")
def design():
    return make_design("individual", horizon=None)


@pytest.fixture
def ledger(tmp_path, design):
    with Ledger.create(tmp_path / "ledger.db", design, bank_id="b") as ledger:
        yield ledger


def hold(ledger, before=(0, 0, 0), spent=None, generation=1, last_answer=ANSWER):
    spent = None if spent is None else np.array(spent)
    own = HeldSlice(5, SENSORS, AMOUNTS, None if before is None else np.array(before), spent)
    ledger.keep_slices(generation, [own], last_answer)


def pay(ledger, **costs):
    """Commit a step in which these sensors, such as `s3`, pay so much."""
    ids = np.array([int(name[1:]) for name in costs], np.int64)
    charged = Charged(0, None, np.array(list(costs.values()), np.int64), np.zeros(ledger.terms.dimension, np.int64))
    return ledger.commit([Entry("main", ledger.last_step("main") + 1, charged, ids)])


def spent(ledger):
    return ledger.spent_of(SENSORS).tolist()


def test_debits_are_made_from_the_open_slice_up_to_its_amount(ledger):
    hold(ledger)
    pay(ledger, s3=LENT - 10, s4=7)
    pay(ledger, s3=10)
    pay(ledger)
    assert spent(ledger) == [LENT, 7, 0]


@pytest.mark.parametrize(
    ("slice_of", "costs"),
    [
        (None, {"s3": 1}),
        ({"before": None}, {"s3": 1}),
        ({"spent": (0, 0, 0)}, {"s3": 1}),
        ({}, {"s3": LENT + 1}),
        ({}, {"s3": 1, "s4": 8}),
        ({}, {"s9": 1}),
        ({}, {"s5": 1}),
        ({}, {"s10": 1}),
    ],
    ids=["none", "not opened", "closed", "above", "one above", "empty", "not lent", "past the last"],
)
def test_a_debit_that_was_not_lent_is_refused_and_nothing_is_recorded(ledger, design, slice_of, costs):
    if slice_of is not None:
        hold(ledger, **slice_of)
    with pytest.raises(LedgerRefused, match="a debit does not fit its account") as caught:
        pay(ledger, **costs)
    assert str(LENT)[:-1] not in str(caught.value)
    with Ledger.open(ledger.path, design) as again:
        assert again.last_step("main") == 0 and spent(again) == [0, 0, 0]


def test_slices_outlive_the_process_with_what_was_spent_of_them(ledger, design):
    hold(ledger)
    pay(ledger, s3=50)
    ledger.close()
    verify(ledger.path)
    with Ledger.open(ledger.path, design) as again:
        [own] = again.slices(1)
        assert (own.epoch, own.sensors.tolist(), own.amounts.tolist()) == (5, [3, 4, 9], [LENT, 7, 0])
        assert own.before.tolist() == [0, 0, 0] and own.spent is None
        own.close(again.spent_of)
        assert own.spent.tolist() == [50, 0, 0] and again.slices(2) == []
        with pytest.raises(LedgerRefused, match="does not fit"):  # a slice is opened by `keep_slices` alone
            pay(again, s3=1)


def test_a_new_generation_keeps_the_last_answer_until_it_has_one_of_its_own(ledger):
    """Otherwise an old copy of the bank, which lacks that answer, would not be noticed."""
    hold(ledger)
    hold(ledger, generation=2, last_answer=NO_ANSWER)
    assert ledger.last_answer() == (1, ANSWER)
    hold(ledger, generation=2, last_answer=LastAnswer(6, "other"))
    assert ledger.last_answer() == (2, LastAnswer(6, "other"))


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE slices SET balances = x'{np.array([LENT, 0, 0]).tobytes().hex()}'",
        "UPDATE slices SET balances = NULL",
        "UPDATE slices SET amounts = x'00'",
        "UPDATE slices SET epoch = 6",
        "UPDATE slices SET generation = 2",
        "UPDATE slices SET spent = zeroblob(24)",
        "DELETE FROM slices",
        "DELETE FROM last_answer",
        "UPDATE last_answer SET boundary = 9",
    ],
)
def test_slices_changed_by_hand_are_refused(ledger, design, statement, is_closed):
    """Also those that are closed, and by an open that does not check every row.

    With the first change the ledger would state to the bank that nothing was spent.
    """
    hold(ledger)
    pay(ledger, s3=LENT)
    if is_closed:
        hold(ledger, spent=(LENT, 0, 0))
    ledger.close()
    verify(ledger.path)
    if is_closed and "spent" in statement:
        statement = f"UPDATE slices SET spent = x'{np.array([1, 0, 0]).tobytes().hex()}'"
    with closing(apsw.Connection(str(ledger.path))) as connection:
        connection.execute(statement)
    for look in (lambda: verify(ledger.path), lambda: Ledger.open(ledger.path, design, is_full_check=False)):
        with pytest.raises(LedgerRefused, match="do not add up to what was debited"):
            look()


def test_slices_kept_between_commits_are_found_after_a_crash(ledger, design):
    """Also twice without a commit in between, and with debits that are not added to the accounts yet."""
    pay(ledger)
    hold(ledger, before=None)
    hold(ledger)
    pay(ledger, s3=50)
    hold(ledger, spent=(50, 0, 0))
    ledger._close_files()  # without the seal of `close`
    verify(ledger.path)
    with Ledger.open(ledger.path, design, is_full_check=False) as again:
        assert spent(again) == [50, 0, 0] and [own.spent.tolist() for own in again.slices(1)] == [[50, 0, 0]]


def test_a_ledger_with_a_bank_has_one_for_ever(ledger, design, tmp_path):
    with pytest.raises(LedgerRefused, match="never changes its bank"):
        ledger._progress.adopt(TERMS, Terms.of(design, ["main"], ledger.terms.ledger_id).to_json())
    with pytest.raises(LedgerRefused, match="belongs to another design"):
        ledger.terms.check_design(make_design("total"), ledger.path)
    with pytest.raises(ValueError, match="must have individual accounting"):
        Ledger.create(tmp_path / "total.db", make_design("total"), bank_id="b")


def test_show_names_all_centres_of_the_bank(ledger):
    ledger.close()
    shown = CliRunner().invoke(cli.app, ["ledger", "show", str(ledger.path)], env={"COLUMNS": "100"}).output
    assert "for one sensor at all centres of one bank (remove-one)." in shown and "of a ledger" not in shown


def test_an_upgrade_keeps_the_bank_and_the_slices(ledger):
    hold(ledger)
    pay(ledger, s3=50)
    ledger.close()
    other = make_design("individual", horizon=None, seed=1)
    upgrade(ledger.path, other, add=["second"])
    assert verify(ledger.path).terms.bank_id == "b"
    with Ledger.open(ledger.path, other) as again:
        assert again.streams == ("main", "second") and spent(again) == [50, 0, 0]
        [own] = again.slices(1)
        again.keep_slices(1, [own])
        pay(again, s3=LENT - 50)
        with pytest.raises(LedgerRefused, match="does not fit"):
            pay(again, s3=1)


def test_a_restored_ledger_pays_from_no_slice_of_the_lost_one(ledger, design, tmp_path):
    hold(ledger)
    pay(ledger, s3=50)
    backup(ledger.path, copy := tmp_path / "copy.db")
    pay(ledger, s3=LENT - 50)
    command = ["ledger", "restore", str(copy), str(target := tmp_path / "restored.db"), "--last-step", "9"]
    assert "what the bank had lent counts as spent" in CliRunner().invoke(cli.app, command).output
    with Ledger.open(target, design) as restored:
        assert restored.slices(2) == [] and restored.last_step("main") == 9
        with pytest.raises(LedgerRefused, match="does not fit"):
            pay(restored, s3=1)


def test_a_ledger_without_a_bank_is_as_it_was(tmp_path, design):
    with Ledger.create(tmp_path / "own.db", design) as ledger:
        assert "bank" not in ledger.terms.to_json()
        tables = {name for (name,) in ledger._connection.execute("SELECT name FROM sqlite_schema")}
        assert "slices" not in tables
        pay(ledger, s3=1)
        assert ledger.spent_of(SENSORS).tolist() == [1, 0, 0]


def test_no_repr_shows_a_slice(ledger):
    hold(ledger)
    for shown in (HeldSlice(5, SENSORS, AMOUNTS), SimpleNamespace(ledger=ledger)):
        assert str(LENT) not in repr(shown)
