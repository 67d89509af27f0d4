"""The private chain commits to debits and accounts: whoever changes them by hand is found, and nothing is shown."""

from __future__ import annotations

import json
from itertools import pairwise

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpfuse import Ledger, cli
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import verify
from dpfuse.ledger.commitments import commit_to_accounts, commit_to_debits, next_private_tip
from dpfuse.ledger.debits import NO_DEBITS, Debits
from support.ledger_contract import IDS, STREAMS, entry, make_ledger_design
from support.ledger_files import edit, head_of


def refused_in_every_way(path, design, message):
    for look in (
        lambda: verify(path),
        lambda: Ledger.open(path, design, is_full_check=True),
        lambda: Ledger.open(path, design, is_full_check=False),
    ):
        with pytest.raises(LedgerRefused, match=message):
            look()


@pytest.fixture
def individual(place):
    """A closed ledger with three accounts, and its design."""
    design = make_ledger_design("individual")
    with place.create(design, STREAMS) as ledger:
        for step in (1, 2):
            ledger.commit([entry(ledger, step, stream) for stream in STREAMS])
    return place.path, design


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE accounts SET spent = 0",
        "UPDATE accounts SET spent = 0 WHERE sensor = 7",
        "UPDATE accounts SET spent = spent + CASE sensor WHEN 7 THEN -5 WHEN 0 THEN 5 ELSE 0 END",
        "UPDATE accounts SET sensor = 8 WHERE sensor = 7",
        "INSERT INTO accounts VALUES (3, 99, 0)",
        "UPDATE streams SET last_step = 1",
        "DELETE FROM streams WHERE name = 'south'",
        "DELETE FROM seals",
        "UPDATE seals SET nonce = zeroblob(32)",
    ],
)
def test_accounts_and_seals_changed_by_hand_are_refused(individual, statement):
    """Also where the accounts' total stays, which the ledger of version 3 did not notice."""
    path, design = individual
    edit(path, statement)
    refused_in_every_way(path, design, "the accounts do not add up to what was debited")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER accounts_only_grow",
        "DROP TRIGGER releases_UPDATE",
        "CREATE TRIGGER extra AFTER INSERT ON commits BEGIN DELETE FROM debits; END",
        "CREATE INDEX extra ON accounts (sensor)",
        "ALTER TABLE accounts ADD COLUMN note TEXT",
        "DROP TABLE debits; CREATE TABLE debits (commit_number INTEGER, nonce BLOB, sensors BLOB, costs BLOB)",
    ],
)
def test_missing_triggers_and_altered_tables_are_refused(closed_ledger, statement):
    path, design = closed_ledger
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()
    refused_in_every_way(path, design, "its tables or triggers were changed by hand")


def test_debits_rewritten_with_a_new_commitment_are_refused(place):
    """A person who may write the file can open and redo the commitment, but not the head file's private tip."""
    design = make_ledger_design("individual")
    ledger = place.create(design, STREAMS)
    ledger.commit([entry(ledger, 1)])
    ledger._close_files()  # as at the end of a process that is killed: the debits are pending
    connection = apsw.Connection(str(place.path))
    [(nonce, sensors, costs)] = connection.execute("SELECT nonce, sensors, costs FROM debits").fetchall()
    connection.close()
    other = Debits.from_bytes(sensors, costs)._replace(costs=np.array([1, 1, 1]))
    commitment = commit_to_debits(1, other, 3, nonce)
    parts = (other.to_bytes()[1].hex(), commitment.hex())
    edit(place.path, f"UPDATE debits SET costs = x'{parts[0]}'", f"UPDATE commits SET commitment = x'{parts[1]}'")
    refused_in_every_way(place.path, design, "what was debited is not what its head file names")


def test_every_commit_has_one_commitment_of_fixed_length(place):
    """With and without debits; equal debits have different commitments."""
    with place.create(make_ledger_design("individual"), STREAMS) as ledger:
        for step, ids in enumerate([IDS, IDS[:0], np.arange(100), IDS[:0]], 1):
            ledger.commit([entry(ledger, step, weight=1e-4, ids=ids)])
        sizes = [len(row) for (row,) in ledger._connection.execute("SELECT commitment FROM commits")]
        distinct = ledger._connection.execute("SELECT count(DISTINCT commitment) FROM commits").fetchone()
    assert sizes == [32] * 4 and distinct == (4,)


def test_the_private_chain_is_the_hash_of_its_commitments(individual):
    """Recomputed here from the file."""
    path, _ = individual
    found, connection = verify(path), apsw.Connection(str(path))
    commitments = dict(connection.execute("SELECT number, commitment FROM commits"))
    seals = {row[0]: row for row in connection.execute("SELECT * FROM seals")}
    tip = seals[0][3]
    for number, commitment in commitments.items():
        tip = next_private_tip(tip, commitment)
        tip = next_private_tip(tip, seals[number][2]) if number in seals else tip
    assert tip == found.private_tip and tip.hex() in head_of(path).read_text()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 2**61)), max_size=5, unique_by=lambda pair: pair[0]))
def test_a_commitment_changes_with_every_part_of_what_it_is_to(paid):
    """And is the same for the same parts."""
    sensors, costs = np.array(sorted(paid), np.int64).reshape(-1, 2).T
    debits, nonce = Debits(sensors, costs), bytes(32)
    first = commit_to_debits(5, debits, 17, nonce)
    assert first == commit_to_debits(5, Debits(sensors.copy(), costs.copy()), 17, nonce)
    others = [
        commit_to_debits(6, debits, 17, nonce),
        commit_to_debits(5, debits, 18, nonce),
        commit_to_debits(5, debits, 17, bytes([1] * 32)),
        commit_to_debits(5, Debits(np.append(sensors, 10), np.append(costs, 1)), 17, nonce),
        commit_to_accounts(5, debits.to_bytes(), "[]", nonce),
    ]
    if paid:
        others += [
            commit_to_debits(5, Debits(sensors, costs + 1), 17, nonce),
            commit_to_debits(5, NO_DEBITS, 17, nonce),
        ]
    assert len({first, *others}) == 1 + len(others)


def test_commands_print_the_private_tip_only_if_asked(individual):
    path, _ = individual
    tip = verify(path).private_tip.hex()
    asked = ["verify"], ["verify", "--json"], ["show"], ["show", "--json"], ["show", "--rows"]
    printed = [CliRunner().invoke(cli.app, ["ledger", *words, str(path)]).output for words in asked]
    assert all(printed) and not any(tip in text for text in printed) and tip not in repr(verify(path))
    private = CliRunner().invoke(cli.app, ["ledger", "verify", str(path), "--private-tip", "--json"]).output
    assert json.loads(private)["private_tip"] == tip


def test_the_head_is_found_before_and_after_a_seal(place):
    """A writer that ends between two of its writes leaves the head file behind the database by one seal or commit."""
    design = make_ledger_design("individual")
    ledger = place.create(design, STREAMS)
    heads = [head_of(place.path).read_bytes()]
    for step in (1, 2):
        ledger.commit([entry(ledger, step)])
        heads.append(head_of(place.path).read_bytes())
        ledger._seal()
        heads.append(head_of(place.path).read_bytes())
    ledger._close_files()
    assert all(before != after for before, after in pairwise(heads))
    for head in heads:
        head_of(place.path).write_bytes(head)
        assert verify(place.path).num_commits == 2
        Ledger.open(place.path, design, is_full_check=False).close()
