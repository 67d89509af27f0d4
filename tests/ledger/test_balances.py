"""Debits are stored beside their release first, and added to the accounts of many steps at once later."""

from __future__ import annotations

from types import SimpleNamespace

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse import Entry, Ledger
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import verify, writer
from dpfuse.ledger.entries import sum_debits
from support.ledger_contract import STREAMS, entry, make_ledger_design, spent
from support.ledger_files import edit


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**61)), max_size=6, unique_by=lambda pair: pair[0]))
)
def test_debits_of_several_streams_are_summed_for_each_sensor(streams):
    """Against a sum of Python integers. A sum above 2^62 stays at 2^62, for which no account has room."""
    entries, expected = [Entry("empty", 1, SimpleNamespace(debits=np.array([0])), [-1])], {}
    for number, paid in enumerate(streams):
        ids, costs = np.array(paid, np.int64).reshape(-1, 2).T
        entries.append(Entry(str(number), 1, SimpleNamespace(debits=costs), ids))
        for sensor, cost in paid:
            expected[sensor] = expected.get(sensor, 0) + cost
    found = sum_debits(entries)
    assert found.sensors.tolist() == sorted(sensor for sensor, cost in expected.items() if cost)
    assert found.costs.tolist() == [min(expected[sensor], 2**62) for sensor in found.sensors.tolist()]
    assert found.total == sum(found.costs.tolist())


class TestPendingDebits:
    @pytest.fixture
    def stopped(self, place):
        """A ledger whose writer ended before it added debits to the accounts, and what was spent."""
        design = make_ledger_design("individual")
        ledger = place.create(design, STREAMS)
        for step in (1, 2, 3):
            ledger.commit([entry(ledger, step, stream, 0.01 * step) for stream in STREAMS])
        expected = spent(ledger)
        ledger._close_files()  # as at the end of a process that is killed
        return place.path, design, expected

    def num_rows(self, path, *tables):
        connection = apsw.Connection(str(path))
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    def test_debits_of_a_writer_that_died_count(self, stopped):
        path, design, expected = stopped
        assert self.num_rows(path, "accounts", "debits") == [0, 3]
        assert verify(path).num_commits == 3
        for is_full_check in (False, True):
            with Ledger.open(path, design, is_full_check=is_full_check) as ledger:
                assert spent(ledger) == expected and len(expected) == 3
                assert self.num_rows(path, "accounts", "debits") == [3, 0]

    def test_checkpoint_commit_and_close_add_them_to_the_accounts(self, stopped, monkeypatch):
        path, design, expected = stopped
        monkeypatch.setattr(writer, "_PENDING_COMMITS", 2)
        monkeypatch.setattr(writer, "_MOST_PENDING", 16)
        with Ledger.open(path, design) as ledger:
            left = []
            for step in range(4, 9):
                ledger.commit([entry(ledger, step)])
                ledger.checkpoint()
                left += self.num_rows(path, "debits")
                assert verify(path).num_commits == step
            assert left == [1, 0, 1, 0, 1]
            last = spent(ledger)
        assert self.num_rows(path, "debits") == [0]
        with Ledger.open(path, design) as ledger:  # without a checkpoint
            for step in range(9, 40):
                ledger.commit([entry(ledger, step, weight=1e-4)])
                left += self.num_rows(path, "debits")
            assert max(left) == 16 and left[-1] < 16
            last = spent(ledger)
        assert self.num_rows(path, "debits") == [0]
        with Ledger.open(path, design) as ledger:
            assert spent(ledger) == last and all(last[sensor] > expected[sensor] for sensor in expected)

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_accounts_equal_a_dictionary_over_many_sensors_and_restarts(self, place, monkeypatch, is_full_check):
        """Against a plain dictionary, with a writer that is gone, tidies up or closes in between."""
        monkeypatch.setattr(writer, "_PENDING_COMMITS", 2)
        rng, design, expected = np.random.default_rng(0), make_ledger_design("individual"), {}
        ledger = place.create(design, STREAMS)
        for step in range(1, 13):
            ids = rng.permutation(600)[: 40 * step] + 50 * step
            one = entry(ledger, step, weight=0.001 * step, ids=ids)
            ledger.commit([one])
            for sensor, cost in zip(ids.tolist(), one.charged.debits.tolist(), strict=True):
                expected[sensor] = expected.get(sensor, 0) + cost
            if step % 3 == 0:
                ledger.checkpoint()
            if step % 4 == 0:
                ledger.close() if step == 8 else ledger._close_files()
                assert verify(place.path).num_commits == step
                ledger = Ledger.open(place.path, design, is_full_check=is_full_check)
            assert spent(ledger) == expected
        ledger.close()
        rows = dict(apsw.Connection(str(place.path)).execute("SELECT sensor, spent FROM accounts"))
        assert rows == expected and len(rows) > 600

    def test_they_count_towards_the_budget(self, place):
        """Two steps, each charged to accounts of its own, of which either would fit and not both."""
        with place.create(make_ledger_design("individual"), STREAMS) as ledger:
            mechanism = ledger.terms.mechanism
            one, other = (mechanism.charge(mechanism.open_accounts(), 1.0, [7], [[0.08, 0.0]]) for _ in range(2))
            ledger.commit([Entry("north", 1, one, [7])])
            with pytest.raises(LedgerRefused, match="a debit does not fit its account"):
                ledger.commit([Entry("north", 2, other, [7])])
        assert verify(place.path).num_commits == 1

    @pytest.mark.parametrize(
        "statement",
        [
            "DELETE FROM debits WHERE commit_number = 2",
            "UPDATE debits SET costs = sensors WHERE commit_number = 2",
            "UPDATE debits SET costs = x'00' WHERE commit_number = 2",
            "UPDATE debits SET costs = x'' WHERE commit_number = 2",
            "UPDATE debits SET sensors = zeroblob(24), costs = costs WHERE commit_number = 2",
            "UPDATE debits SET commit_number = 9 WHERE commit_number = 2",
            "UPDATE debits SET costs = (SELECT costs FROM debits WHERE commit_number = 1) WHERE commit_number = 2",
        ],
    )
    def test_a_ledger_in_which_one_was_changed_or_removed_is_refused(self, stopped, statement):
        path, design, _ = stopped
        edit(path, statement)
        for look in (lambda: verify(path), lambda: Ledger.open(path, design)):
            with pytest.raises(LedgerRefused, match="accounts do not|exceeds the budget") as caught:
                look()
            assert str(2**63 - 1) not in str(caught.value)

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE accounts SET sensor = 7",
            "UPDATE accounts SET number = number + 1 WHERE number = 2",
            "UPDATE accounts SET number = number - 1 WHERE number = 0",
            "INSERT INTO accounts VALUES (3, 7, 0)",
        ],
    )
    def test_accounts_must_be_numbered_and_each_of_one_sensor(self, stopped, statement):
        path, design, _ = stopped
        Ledger.open(path, design).close()
        edit(path, statement)
        for is_full_check in (True, False):
            with pytest.raises(LedgerRefused, match="accounts do not add up to what was debited"):
                Ledger.open(path, design, is_full_check=is_full_check)

    def test_none_is_added_after_another_program_wrote_to_the_ledger(self, stopped, monkeypatch):
        """Who got around the lock: what it debited stays, and this one stops."""
        path, design, _ = stopped
        ledger = Ledger.open(path, design)
        ledger.commit([entry(ledger, 4)])
        edit(path, "INSERT INTO commits SELECT number + 1, tip, commitment FROM commits WHERE number = 4")
        edit(path, "INSERT INTO debits SELECT commit_number + 1, nonce, sensors, costs FROM debits")
        monkeypatch.setattr(writer, "_PENDING_COMMITS", 1)
        with pytest.raises(LedgerRefused, match="was written to by another program"):
            ledger.checkpoint()
        assert self.num_rows(path, "debits") == [2]


def test_accounts_fit_63_bits_at_the_largest_budget(place):
    design = make_ledger_design("individual", budget=2.0**21)
    with place.create(design, STREAMS) as ledger:
        assert 2 * ledger.terms.mechanism.budget < 2**63
        for step in (1, 2):
            ledger.commit([entry(ledger, step, stream, weight=700.0) for stream in STREAMS])
        assert set(ledger.accounts("north").accounts().values()) == {4 * (700 * 2**20) ** 2}
    Ledger.open(place.path, design).close()
