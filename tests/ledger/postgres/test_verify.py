"""A ledger in PostgreSQL that was changed or rolled back is refused, and so is a host without its head file."""

from __future__ import annotations

import os

import psycopg
import pytest

from dpfuse.errors import LedgerRefused
from dpfuse.ledger import PostgresLedger, join, postgres_reader, public_rows, verify
from support.ledger_contract import STREAMS, entry, make_ledger_design
from support.postgres_ledger import by_hand, either, refused


class TestVerify:
    @either
    def test_an_unchanged_ledger_passes_and_its_rows_can_be_read(self, closed_ledger):
        place, design = closed_ledger
        found, rows = verify(place.url), list(public_rows(place.url))
        assert found.num_commits == 3 and [(row.step, row.stream) for row in rows] == [
            (step, name) for step in (1, 2, 4) for name in STREAMS
        ]
        assert [row.step for row in public_rows(place.url, "south", 2)] == [2, 4]
        with place.open(design, is_full_check=False) as ledger:
            assert verify(place.url).tip == found.tip  # beside a writer, too
            assert list(ledger.rows("south")) == [row for row in rows if row.stream == "south"]
        with pytest.raises(ValueError, match="stream must be one of north, south, got 'west'"):
            list(public_rows(place.url, "west"))

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            (
                "UPDATE releases SET fusion_weight = fusion_weight + 1 WHERE step = 2",
                "step 2 of stream 'north' was changed",
            ),
            ("DELETE FROM releases WHERE step = 1 AND stream = 'south'", "a row of commit 1 is missing"),
            ("UPDATE releases SET step = 3 WHERE step = 4", "step 3 of stream 'north' was changed"),
            ("UPDATE releases SET stream = 'west' WHERE stream = 'south'", "stream 'west', which is not in the ledger"),
            ("INSERT INTO commits VALUES (4, '', '0')", "a row of commit 4 is missing"),
            ("UPDATE version SET number = 1", "has ledger version 1, this dpfuse reads 2; use the dpfuse that wrote"),
            ("UPDATE version SET number = 3", "has ledger version 3, this dpfuse reads 2; use the dpfuse that wrote"),
            ("UPDATE terms SET content = '{}'", "has terms that cannot be read; it was changed by hand"),
            ("DROP TABLE commits", "lacks a table of the ledger; it was changed by hand"),
            ("DROP TABLE version", "holds no ledger in schema ledger_[0-9]+; put the ledger back"),
        ],
    )
    def test_a_ledger_that_was_changed_by_hand_is_refused(self, server, closed_ledger, statement, message):
        place, design = closed_ledger
        by_hand(server, place, statement)
        refused(place, design, message)

    @pytest.mark.parametrize(
        "statement", ["UPDATE accounts SET spent = spent - 1 WHERE sensor = 7", "DELETE FROM accounts WHERE sensor = 0"]
    )
    def test_a_lowered_or_removed_account_is_refused(self, server, place, statement):
        design = make_ledger_design("individual")
        with place.create(design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1)])
        by_hand(server, place, statement)
        refused(place, design, "accounts do not add up to what was debited")

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_a_ledger_that_was_rolled_back_is_refused(self, server, place, is_full_check):
        design = make_ledger_design("total")
        with place.create(design, STREAMS) as ledger:
            for step in (1, 2, 3):
                ledger.commit([entry(ledger, step)])
        by_hand(server, place, "DELETE FROM commits WHERE number = 3", "DELETE FROM releases WHERE step = 3")
        with pytest.raises(LedgerRefused, match="not hold the commit 3 that its head file names: it was rolled back"):
            place.open(design, is_full_check=is_full_check)
        refused(place, design, "rolled back, cut short or replaced")

    def test_the_database_refuses_to_change_or_delete_rows(self, server, closed_ledger):
        place, _ = closed_ledger
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"SET search_path = {place.schema}")
            columns = "stream, 3, release, fusion_weight, cost, budget_left, hash, 9"
            for statement in (
                "UPDATE releases SET fusion_weight = 0",
                "DELETE FROM releases",
                "TRUNCATE releases",
                "DELETE FROM commits",
                "UPDATE terms SET content = ''",
                "UPDATE version SET number = 2",
                f"INSERT INTO releases SELECT {columns} FROM releases",
                "DELETE FROM accounts",
                "TRUNCATE accounts",
                "UPDATE accounts SET spent = spent - 1",
                "UPDATE accounts SET spent = spent + 9223372036854775807 / 2",
            ):
                with pytest.raises((psycopg.errors.IntegrityError, psycopg.errors.NumericValueOutOfRange)):
                    connection.execute(statement)
        assert verify(place.url).num_commits == 3


class TestHeads:
    def test_a_host_without_a_head_file_is_refused_until_it_joins(self, closed_ledger, monkeypatch, tmp_path):
        place, design = closed_ledger
        tip = verify(place.url).tip
        monkeypatch.setenv("DPFUSE_STATE", str(tmp_path / "other host"))
        refused(place, design, r"\.head is missing, so nothing shows .* was not rolled back; .*`dpfuse ledger join`")
        with pytest.raises(LedgerRefused, match="does not hold that tip"):
            join(place.url, tip=bytes(32))
        head = join(place.url, tip=tip)
        assert head.parent == tmp_path / "other host"
        with pytest.raises(LedgerRefused, match="is there already"):
            join(place.url)
        with place.open(design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
        monkeypatch.undo()
        assert verify(place.url).num_commits == 4  # ahead of the first host's head

    def test_a_damaged_head_file_and_one_of_another_ledger_are_refused(self, closed_ledger, make_place, state):
        place, design = closed_ledger
        with place.open(design) as ledger:
            head = state / f"{ledger.terms.ledger_id}.head"
        good = head.read_bytes()
        head.write_bytes(good[:-10])
        refused(place, design, "is damaged; put the right one back")
        with make_place().create(design, STREAMS) as other:
            head.write_bytes((state / f"{other.terms.ledger_id}.head").read_bytes())
        refused(place, design, "has the head file of another ledger")

    def test_centres_of_one_host_share_a_head_file_whose_number_never_decreases(self, shared, state):
        north, south = shared
        head = state / f"{north.terms.ledger_id}.head"
        north.commit([entry(north, 1)])
        old = north._progress.num_commits, north._progress.tip
        south.commit([entry(south, 1, "south")])
        after = head.read_bytes()
        north._advance(*old, [])  # as if it had been slow to write
        assert head.read_bytes() == after and south._progress.num_commits == 2

    def test_the_environment_names_the_folder_of_the_head_file(self, monkeypatch, tmp_path):
        monkeypatch.setenv("DPFUSE_STATE", str(tmp_path))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        paths = [postgres_reader.head_path("ab"), postgres_reader.head_path("ab", "named")]
        monkeypatch.delenv("DPFUSE_STATE")
        paths.append(postgres_reader.head_path("ab"))
        monkeypatch.delenv("XDG_STATE_HOME")
        paths.append(postgres_reader.head_path("ab"))
        found = [os.path.relpath(path, tmp_path) for path in paths[:1] + paths[2:]]
        assert found == ["ab.head", "xdg/dpfuse/ab.head", "home/.local/state/dpfuse/ab.head"]
        assert paths[1] == paths[1].cwd() / "named"

    def test_a_head_file_may_be_named(self, place, tmp_path):
        design, head = make_ledger_design(), tmp_path / "named.head"
        PostgresLedger.create(place.url, design, head=head).close()
        place_too = PostgresLedger.open(place.url, design, head=head)
        place_too.close()
        assert postgres_reader.verify(place.url, head).num_commits == 0
        refused(place, design, "is missing")
