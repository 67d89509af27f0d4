"""A ledger in SQLite that was changed, damaged, moved or rolled back is refused."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

import apsw
import numpy as np
import pytest

from dpfuse import Ledger
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import LedgerCheck, public_rows, verify
from dpfuse.public_inputs import pack, unpack
from support.ledger_contract import STREAMS, entry, make_ledger_design
from support.ledger_files import edit, head_of, refused


@contextlib.contextmanager
def no_umask():
    """Files and folders get the modes that they are made with."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


class TestVerify:
    def test_an_unchanged_ledger_passes_and_its_rows_can_be_read(self, closed_ledger):
        path, design = closed_ledger
        found = verify(path)
        assert found.num_commits == 3 and {stream.num_rows for stream in found.streams.values()} == {3}
        rows = list(public_rows(path))
        assert [(row.step, row.stream) for row in rows] == [(k, name) for k in (1, 2, 4) for name in STREAMS]
        assert [row.step for row in public_rows(path, "south", 2)] == [2, 4]
        with Ledger.open(path, design) as ledger:
            assert verify(path).tip == found.tip  # beside a writer, too
            assert list(ledger.rows("south")) == [row for row in rows if row.stream == "south"]

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            (
                "UPDATE releases SET fusion_weight = fusion_weight + 1 WHERE step = 2",
                "step 2 of stream 'north' was changed",
            ),
            ("UPDATE releases SET release = zeroblob(16) WHERE step = 4", "step 4 of stream 'north' was changed"),
            ("DELETE FROM releases WHERE step = 1 AND stream = 'south'", "a row of commit 1 is missing"),
            ("DELETE FROM releases WHERE step = 4", "a row of commit 3 is missing"),
            ("DELETE FROM commits WHERE number = 2; DELETE FROM releases WHERE step = 2", "commit 2 is missing"),
            ("DELETE FROM commits WHERE number = 3; DELETE FROM releases WHERE step = 4", "the commit 3 that its head"),
            ("DELETE FROM commits WHERE number = 3", "a row belongs to no commit"),
            ("UPDATE releases SET step = 3 WHERE step = 4", "step 3 of stream 'north' was changed"),
            ("UPDATE releases SET commit_number = 3 - commit_number WHERE step < 4", "was changed"),
            ("UPDATE releases SET stream = 'west' WHERE stream = 'south'", "stream 'west', which is not in the ledger"),
            ("UPDATE commits SET tip = zeroblob(32) WHERE number = 3", "a row of commit 3"),
        ],
    )
    def test_changed_missing_moved_and_cut_off_rows_are_refused(self, closed_ledger, statement, message):
        path, design = closed_ledger
        edit(path, statement)
        refused(path, design, message)

    @pytest.mark.parametrize("number", [2, 3])
    def test_a_second_row_of_a_stream_in_a_commit_is_refused(self, closed_ledger, number):
        """As if the step that was skipped had been released."""
        path, design = closed_ledger
        columns = f"stream, 3, zeroblob(16), 1, cost, budget_left, design, period, inputs, hash, {number}"
        edit(path, f"INSERT INTO releases SELECT {columns} FROM releases WHERE step = 4 AND stream = 'north'")
        refused(path, design, f"a row of commit {number} was added")

    @pytest.mark.parametrize(
        "statement", ["UPDATE accounts SET spent = spent - 1 WHERE sensor = 7", "DELETE FROM accounts WHERE sensor = 0"]
    )
    def test_a_lowered_or_removed_account_is_refused(self, place, statement):
        design = make_ledger_design("individual")
        with place.create(design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1)])
        edit(place.path, statement)
        refused(place.path, design, "the accounts do not add up to what was debited")

    @pytest.mark.parametrize("changed", ["zeroblob(12)", "zeroblob(6)", "NULL"])
    def test_changed_public_inputs_are_refused(self, place, changed):
        design = make_ledger_design(num_public=2)
        with place.create(design, STREAMS) as ledger:
            for step in (1, 2):
                ledger.commit([entry(ledger, step, inputs=pack([step, -0.5, 0, 3]))])
        assert [unpack(row.inputs).tolist() for row in public_rows(place.path)] == [[1, -0.5, 0, 3], [2, -0.5, 0, 3]]
        assert verify(place.path).terms.num_public == 2
        edit(place.path, f"UPDATE releases SET inputs = {changed} WHERE step = 2")
        refused(place.path, design, "step 2 of stream 'north' was changed")

    def test_a_row_with_another_number_of_public_inputs_is_refused(self, place, monkeypatch):
        """Also if its hash is right: another program may have written it."""
        design = make_ledger_design(num_public=2)
        with place.create(design, STREAMS) as ledger:
            for wrong in (None, b"", pack([1, 0])):
                with pytest.raises(ValueError, match="inputs must be those that the design reads, 2 for each step"):
                    ledger.commit([entry(ledger, 1, inputs=wrong)])
            monkeypatch.setattr("dpfuse.ledger.writer.check_entries", lambda *_: None)
            ledger.commit([entry(ledger, 1, inputs=pack([1, 0]))])
        with pytest.raises(LedgerRefused, match="cost, period or public inputs of its design"):
            verify(place.path)

    def test_a_row_that_costs_less_than_its_weight_is_refused(self, place, monkeypatch):
        """Also if its hash is right."""
        with place.create(make_ledger_design("total"), STREAMS) as ledger:
            monkeypatch.setattr("dpfuse.ledger.writer.left_after", lambda entry, left, factor: left - 1)
            ledger.commit([entry(ledger, 1)])
        with pytest.raises(LedgerRefused, match="step 1 of stream 'north' does not have the size, cost"):
            verify(place.path)

    def test_without_public_inputs_rows_terms_and_hashes_are_those_of_before(self, closed_ledger):
        path, _ = closed_ledger
        row, terms = next(public_rows(path)), verify(path).terms
        assert row.inputs is None and b"inputs" not in row.content and "inputs" not in row.to_dict()
        assert "num_public" not in terms.to_json()

    def test_a_new_ledger_beside_an_old_head_file_is_refused(self, closed_ledger):
        path, design = closed_ledger
        head = head_of(path).read_bytes()
        path.unlink(), head_of(path).unlink()
        with Ledger.create(path, design, STREAMS) as ledger:
            ledger_id = ledger.terms.ledger_id
        head_of(path).write_bytes(head)
        refused(path, design, "the head file of another ledger")
        assert ledger_id not in head.decode()

    def test_a_ledger_that_was_rewritten_with_its_own_id_is_refused(self, closed_ledger, monkeypatch):
        """Every hash is right, but the tip is not the one that the head file holds."""
        path, design = closed_ledger
        head = head_of(path).read_bytes()
        path.unlink(), head_of(path).unlink()
        monkeypatch.setattr("secrets.token_hex", lambda size: head.split()[1].decode())
        with Ledger.create(path, design, STREAMS) as ledger:
            for step in (1, 2, 4):
                ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS])
        verify(path)
        head_of(path).write_bytes(head)
        refused(path, design, "does not hold the commit 3 that its head file names")

    def test_the_database_refuses_to_change_or_delete_rows(self, place):
        with place.create(make_ledger_design("individual"), STREAMS) as ledger:
            ledger.commit([entry(ledger, 4)])
        with contextlib.closing(apsw.Connection(str(place.path))) as connection:
            columns = "stream, 3, release, fusion_weight, cost, budget_left, design, period, inputs, hash, 9"
            for statement in (
                "UPDATE releases SET fusion_weight = 0",
                "DELETE FROM releases",
                "DELETE FROM commits",
                "UPDATE events SET content = ''",
                f"INSERT INTO releases SELECT {columns} FROM releases",
                "DELETE FROM accounts",
                "UPDATE accounts SET spent = spent - 1",
                "DELETE FROM seals",
            ):
                with pytest.raises(apsw.ConstraintError):
                    connection.execute(statement)
        assert verify(place.path).num_commits == 1


class TestLongReaders:
    @pytest.fixture
    def path(self, place):
        with place.create(make_ledger_design("individual"), STREAMS) as ledger:
            for step in range(1, 21):
                ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS])
        return place.path

    @pytest.mark.parametrize("is_full", [True, False])
    def test_the_log_is_emptied_while_a_ledger_is_verified_or_read(self, path, monkeypatch, is_full):
        found, follow, lengths = verify(path), LedgerCheck.follow, []
        with Ledger.open(path, make_ledger_design("individual")) as ledger:

            def write():
                if len(lengths) == 3:
                    return
                ledger.commit([entry(ledger, ledger.newest_step + 1)])
                ledger._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # busy if somebody reads
                lengths.append(path.with_name(f"{path.name}-wal").stat().st_size)

            def slow(*values):
                follow(*values)
                write()

            if is_full:
                monkeypatch.setattr(LedgerCheck, "follow", slow)
                assert verify(path).tip == found.tip  # as it was at the call
            else:
                steps = [row.step for row in public_rows(path, "north") if not write()]
                assert steps == list(range(1, 21))
        assert lengths == [0] * 3

    def test_a_row_that_is_missing_in_the_index_is_found(self, path):
        """Reading by commit would not find it."""
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            [(kept,)] = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'releases_by_commit'")
            connection.execute("PRAGMA writable_schema = ON; DROP INDEX releases_by_commit")
            connection.execute(f"{kept} WHERE step <> 3")
            connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'releases_by_commit'", (kept,))
        with pytest.raises(LedgerRefused, match="is damaged"):
            verify(path)


class TestChangedFiles:
    def test_a_missing_ledger_or_head_file_is_refused(self, closed_ledger):
        path, design = closed_ledger
        head = head_of(path).read_bytes()
        head_of(path).unlink()
        refused(path, design, r"ledger.db.head is missing, so nothing shows that its ledger was not rolled back")
        head_of(path).write_bytes(head)
        path.rename(path.with_name("moved"))
        refused(path, design, "is missing and its head file is there: what was spent is not known")
        with pytest.raises(LedgerRefused, match="or its head file is there already"):
            Ledger.create(path, design)
        head_of(path).unlink()
        refused(path, design, "is missing; put the ledger back")

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_a_ledger_that_was_rolled_back_is_refused(self, closed_ledger, is_full_check):
        path, design = closed_ledger
        old = path.read_bytes()
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
        path.write_bytes(old)
        with pytest.raises(LedgerRefused, match="the commit 4 that its head file names: it was rolled back"):
            Ledger.open(path, design, is_full_check=is_full_check)
        refused(path, design, "rolled back")

    def test_a_copy_without_its_log_is_refused(self, closed_ledger):
        """A copy of the database alone, taken while its writer was at work, lacks what is in the log."""
        path, design = closed_ledger
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
            copy = path.with_name("copy.db")
            shutil.copy2(path, copy), shutil.copy2(head_of(path), head_of(copy))
        refused(copy, design, "rolled back, cut short or replaced")

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_rows_after_the_head_are_checked_and_kept(self, closed_ledger, is_full_check):
        path, design = closed_ledger
        old = head_of(path).read_bytes()
        with Ledger.open(path, design) as ledger:
            [row] = ledger.commit([entry(ledger, 5, weight=0.001)])
        head_of(path).write_bytes(old)
        with Ledger.open(path, design, is_full_check=is_full_check) as ledger:
            assert list(ledger.rows("north"))[-1] == row and head_of(path).read_bytes() != old
        edit(path, "UPDATE releases SET fusion_weight = 1 WHERE step = 5")
        head_of(path).write_bytes(old)
        with pytest.raises(LedgerRefused, match="step 5 of stream 'north' was changed"):
            Ledger.open(path, design, is_full_check=is_full_check)

    def test_a_restart_searches_for_what_is_new_and_scans_no_table_of_rows(self, closed_ledger, monkeypatch):
        path, design = closed_ledger
        statements = set()

        def trace(connection):
            connection.exec_trace = lambda _, statement, values: not statements.add((statement, values))

        with monkeypatch.context() as patch:
            patch.setattr(apsw, "connection_hooks", [trace])
            Ledger.open(path, design, is_full_check=False).close()
        with contextlib.closing(apsw.Connection(str(path))) as connection:
            plans = [
                step
                for statement, values in statements
                if statement.startswith("SELECT")
                for *_, step in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            ]
        assert any("SEARCH releases" in step for step in plans)
        assert not [step for step in plans if re.search("SCAN (releases|commits)$", step)]

    @pytest.mark.parametrize("size", [0, 50, 4096, -4096])
    def test_a_truncated_file_is_refused(self, closed_ledger, size):
        path, design = closed_ledger
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)
        refused(path, design, "cut short|damaged|cannot be read")

    def test_a_page_of_noise_is_refused(self, closed_ledger):
        """For each page of the file."""
        path, design = closed_ledger
        content, rng = path.read_bytes(), np.random.default_rng(0)
        tip = verify(path).tip
        for start in range(0, len(content), 4096):
            path.write_bytes(content[:start] + rng.bytes(4096) + content[start + 4096 :])
            with pytest.raises(LedgerRefused, match="damaged|not a dpfuse ledger|put the right"):
                Ledger.open(path, design)
        path.write_bytes(content)
        assert verify(path).tip == tip

    @pytest.mark.parametrize("line", [b"", b"dpfuse-ledger-head-2", b"\xff" * 157])
    def test_a_damaged_head_file_is_refused(self, closed_ledger, line):
        path, design = closed_ledger
        head_of(path).write_bytes(line)
        refused(path, design, "ledger.db.head is damaged")

    @pytest.mark.parametrize("version", [5, 6, 10])
    def test_a_ledger_of_an_older_or_newer_version_is_refused(self, closed_ledger, version):
        path, design = closed_ledger
        edit(path, f"PRAGMA user_version = {version}")
        refused(path, design, f"has ledger version {version}, this dpfuse reads 9; use the dpfuse that wrote it")

    def test_a_file_that_is_no_database_is_refused(self, closed_ledger):
        path, design = closed_ledger
        path.write_text("not a database " * 500)
        refused(path, design, "is not a database")

    def test_files_are_private_and_one_that_others_may_read_is_refused(self, closed_ledger):
        path, design = closed_ledger
        modes = [stat.S_IMODE(file.stat().st_mode) for file in (path, head_of(path))]
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
            modes += [stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("ledger.db-*")]
        assert modes == [0o600] * 4
        path.chmod(0o640)
        refused(path, design, "others may read it; chmod 600 it")

    def test_a_folder_that_others_may_search_is_refused_and_a_new_one_is_its_owners(self):
        design = make_ledger_design("individual")
        with tempfile.TemporaryDirectory(dir="/tmp") as name, no_umask():
            (open_folder := Path(name)).chmod(0o755)
            with pytest.raises(LedgerRefused, match=r"road/road\.db makes one\), or chmod 700"):
                Ledger.create(open_folder / "road.db", design)
            assert not list(open_folder.iterdir())
            Ledger.create(open_folder / "a" / "b" / "road.db", design).close()
            made = [open_folder / "a", open_folder / "a" / "b"]
            assert [stat.S_IMODE(folder.stat().st_mode) for folder in made] == [0o700] * 2
            assert {stat.S_IMODE(file.stat().st_mode) for file in made[1].iterdir()} == {0o600}
            made[0].chmod(0o755)
            Ledger.open(made[1] / "road.db", design).close()  # nobody can get past the inner folder
            for mode in (0o710, 0o701):
                made[1].chmod(mode)
                with pytest.raises(LedgerRefused, match="may be searched by others"):
                    Ledger.open(made[1] / "road.db", design)
