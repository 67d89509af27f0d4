"""The ledger in SQLite: the contract, kills, and everything that can be wrong with its files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpfuse import Entry, Ledger, cli
from dpfuse.errors import LedgerRefused, MissingExtra
from dpfuse.ledger import create_ledger, open_ledger, public_rows, verify, writer
from dpfuse.ledger.entries import sum_debits
from dpfuse.policy import ExactStep
from support.designs import make_design
from support.ledger_contract import STREAMS, LedgerContract, charge, entry, make_terms, spent
from support.ledger_kills import check_published, run_kills
from support.parts import mounted

CANARY = 4242424242424242


class Place:
    """Where one ledger is."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"

    def create(self, design, streams):
        return Ledger.create(self.path, design, streams)

    def open(self, design):
        return Ledger.open(self.path, design)


@pytest.fixture(scope="session")
def make_place(tmp_path_factory):
    return lambda: Place(tmp_path_factory.mktemp("ledger"))


@pytest.fixture
def place(make_place):
    return make_place()


class TestSQLite(LedgerContract):
    pass


@pytest.fixture(params=["total", "individual"])
def kept(request, place):
    """A ledger of six rows that nobody has open: its path, and its design."""
    design = make_terms(request.param)
    with place.create(design, STREAMS) as ledger:
        for step in (1, 2, 4):
            ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS])
    return place.path, design


def head_of(path):
    return path.with_name(path.name + ".head")


def edit(path, *statements):
    """Change the file by hand, as somebody would who knows SQLite: the triggers go first."""
    connection = apsw.Connection(str(path))
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    for statement in [*(f"DROP TRIGGER {name}" for name in names), *statements]:
        connection.execute(statement)
    connection.close()


def refused(path, design, message):
    """Neither opened, in full or in part of it, nor verified."""
    for attempt in (lambda: Ledger.open(path, design), lambda: verify(path)):
        with pytest.raises(LedgerRefused, match=message):
            attempt()


class TestVerify:
    def test_a_ledger_in_order(self, kept):
        path, design = kept
        audit = verify(path)
        assert audit.num_commits == 3 and {story.num_rows for story in audit.streams.values()} == {3}
        rows = list(public_rows(path))
        assert [(row.step, row.stream) for row in rows] == [(k, name) for k in (1, 2, 4) for name in STREAMS]
        assert [row.step for row in public_rows(path, "south", 2)] == [2, 4]
        with Ledger.open(path, design) as ledger:
            assert verify(path).tip == audit.tip  # beside a writer, too
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
    def test_changed_missing_moved_and_cut_off_rows_are_found(self, kept, statement, message):
        path, design = kept
        edit(path, statement)
        if "FROM commits" in statement and design.guarantee.accounting == "individual":
            message = "accounts do not add up"  # which is looked at first
        refused(path, design, message)

    @pytest.mark.parametrize(
        "statement", ["UPDATE accounts SET spent = spent - 1 WHERE sensor = 7", "DELETE FROM accounts WHERE sensor = 0"]
    )
    def test_an_account_that_was_lowered_or_removed_is_found(self, place, statement):
        design = make_terms("individual")
        with place.create(design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1)])
        edit(place.path, statement)
        refused(place.path, design, "the accounts do not (add up to|hold) what was debited")

    def test_a_chain_made_anew_is_found_by_the_head(self, kept):
        """Whoever rewrites every hash cannot come to the tip that the head file holds."""
        path, design = kept
        head = head_of(path).read_bytes()
        path.unlink(), head_of(path).unlink()
        with Ledger.create(path, design, STREAMS) as ledger:
            ledger_id = ledger.terms.ledger_id
        head_of(path).write_bytes(head)
        refused(path, design, "the head file of another ledger")
        assert ledger_id not in head.decode()


class TestRows:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE releases SET fusion_weight = 0",
            "DELETE FROM releases",
            "DELETE FROM commits",
            "UPDATE terms SET content = ''",
            "INSERT INTO releases SELECT stream, 3, release, fusion_weight, cost, budget_left, hash, 9 FROM releases",
            "DELETE FROM accounts",
            "UPDATE accounts SET spent = spent - 1",
        ],
    )
    def test_the_tables_take_no_change(self, place, statement):
        with place.create(make_terms("individual"), STREAMS) as ledger:
            ledger.commit([entry(ledger, 4)])
        with contextlib.closing(apsw.Connection(str(place.path))) as connection:
            with pytest.raises(apsw.ConstraintError):
                connection.execute(statement)
        assert verify(place.path).num_commits == 1

    def test_accounts_fit_63_bits_at_the_largest_budget_there_is(self, place):
        design = make_terms("individual", budget=2.0**21)
        with place.create(design, STREAMS) as ledger:
            assert 2 * ledger.terms.mechanism.budget < 2**63
            for step in (1, 2):
                ledger.commit([entry(ledger, step, stream, weight=700.0) for stream in STREAMS])
            assert set(ledger.accounts("north").accounts().values()) == {4 * (700 * 2**20) ** 2}
        Ledger.open(place.path, design).close()

    def test_a_step_of_a_real_design(self, place):
        design = make_design("individual")
        step = ExactStep(design, num_rows=3)
        with Ledger.create(place.path, design) as ledger:
            carry = step.init(ledger.accounts("main"))
            carry, charged = step.contribute(carry, [5, 6, -1], np.full((3, 2), 0.5))
            [row] = ledger.commit([Entry("main", 1, charged, [5, 6, -1])])
            assert np.isfinite(step.estimate(carry, row.to_release())[1].mean).all()
            assert sum(ledger.accounts("main").accounts().values()) == charged.debits.sum() > 0
        page = (Path(__file__).parents[2] / "docs/ledger.md").read_text()
        given = {"design": design, "ids": [5, 6, -1], "measurements": np.full((3, 2), 0.5)}
        with contextlib.chdir(place.path.parent):
            exec(page.split("```py\n")[1].split("```")[0], given)  # what the documentation shows
        assert [row.step for row in public_rows(place.path.with_name("road.db"))] == [1]
        with pytest.raises(ValueError, match="must have a guarantee"):
            Ledger.create(place.path.with_name("other.db"), make_design(features="unbounded"))


def test_opened_by_its_place_and_created_only_if_told(place):
    design = make_terms("individual")
    with pytest.raises(LedgerRefused, match="ledger.db is missing; .* `dpfuse ledger create`, `dpfuse serve --new`"):
        open_ledger(place.path, design)
    assert not place.path.exists()
    with create_ledger(place.path, design) as ledger:
        ledger.refresh([7])
        [row] = ledger.commit([entry(ledger, 1, "main")])
    with pytest.raises(LedgerRefused, match="is there already; open it"):
        create_ledger(place.path, design)
    with open_ledger(str(place.path), design, ["main"]) as ledger:
        assert list(ledger.rows("main")) == [row]
    with pytest.raises(LedgerRefused, match="has the streams main, and one writer"):
        open_ledger(place.path, design, STREAMS)
    open_ledger(place.path, design).close()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**61)), max_size=6, unique_by=lambda pair: pair[0]))
)
def test_debits_of_several_streams_add_up(streams):
    """Against the plain sum of Python integers, in the order of the ids, in which accounts are locked.

    What no account has room for stays at 2^62.
    """
    entries, expected = [Entry("nobody", 1, SimpleNamespace(debits=np.array([0])), [-1])], {}
    for number, paid in enumerate(streams):
        ids, costs = np.array(paid, np.int64).reshape(-1, 2).T
        entries.append(Entry(str(number), 1, SimpleNamespace(debits=costs), ids))
        for sensor, cost in paid:
            expected[sensor] = expected.get(sensor, 0) + cost
    found = sum_debits(entries)
    assert found.sensors.tolist() == sorted(sensor for sensor, cost in expected.items() if cost)
    assert found.costs.tolist() == [min(expected[sensor], 2**62) for sensor in found.sensors.tolist()]
    assert found.total == sum(found.costs.tolist())


class TestDebitsApart:
    """Debits stand beside their release first, and are added to the accounts later, all together."""

    @pytest.fixture
    def stopped(self, place):
        """A ledger whose writer was gone before anything was added to the accounts, and what was spent."""
        design = make_terms("individual")
        ledger = place.create(design, STREAMS)
        for step in (1, 2, 3):
            ledger.commit([entry(ledger, step, stream, 0.01 * step) for stream in STREAMS])
        expected = spent(ledger)
        ledger._close_files()  # as a process that dies does
        return place.path, design, expected

    def num_rows(self, path, *tables):
        connection = apsw.Connection(str(path))
        return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]

    def test_what_a_dead_writer_left_counts(self, stopped):
        path, design, expected = stopped
        assert self.num_rows(path, "accounts", "debits") == [0, 3]
        assert verify(path).num_commits == 3
        for is_full_check in (False, True):
            with Ledger.open(path, design, is_full_check=is_full_check) as ledger:
                assert spent(ledger) == expected and len(expected) == 3
                assert self.num_rows(path, "accounts", "debits") == [3, 0]

    def test_they_are_added_up_now_and_then_and_at_the_end(self, stopped, monkeypatch):
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
    def test_many_sensors_that_come_and_go(self, place, monkeypatch, is_full_check):
        """Against a plain dictionary, with a writer that is gone, tidies up or closes in between."""
        monkeypatch.setattr(writer, "_PENDING_COMMITS", 2)
        rng, design, expected = np.random.default_rng(0), make_terms("individual"), {}
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

    def test_what_is_apart_counts_towards_the_budget(self, place):
        """Two steps, each charged to accounts of its own, of which either would fit and not both."""
        with place.create(make_terms("individual"), STREAMS) as ledger:
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
    def test_one_that_was_changed_or_removed_is_found(self, stopped, statement):
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
    def test_accounts_that_are_not_each_of_one_sensor_are_refused(self, stopped, statement):
        path, design, _ = stopped
        Ledger.open(path, design).close()
        edit(path, statement)
        for is_full_check in (True, False):
            with pytest.raises(LedgerRefused, match="accounts do not hold what was debited"):
                Ledger.open(path, design, is_full_check=is_full_check)

    def test_nothing_is_added_up_beside_another_writer(self, stopped):
        """Who got around the lock: what it debited stays, and this one stops."""
        path, design, _ = stopped
        ledger = Ledger.open(path, design)
        ledger.commit([entry(ledger, 4)])
        edit(path, "INSERT INTO commits SELECT number + 1, tip, debited FROM commits WHERE number = 4")
        edit(path, "INSERT INTO debits SELECT commit_number + 1, sensors, costs FROM debits")
        with pytest.raises(LedgerRefused, match="was written to by another program"):
            ledger._num_pending = 99
            ledger.checkpoint()
        assert self.num_rows(path, "debits") == [2]


class TestFilesThatAreNotAsTheyWere:
    def test_missing(self, kept):
        path, design = kept
        head = head_of(path).read_bytes()
        head_of(path).unlink()
        refused(path, design, r"ledger.db.head is missing, so nothing shows that its ledger was not rolled back")
        head_of(path).write_bytes(head)
        path.rename(path.with_name("moved"))
        refused(path, design, "is missing and its head file is there: what was spent is not known")
        with pytest.raises(LedgerRefused, match="or its head file is there already"):
            Ledger.create(path, design)
        head_of(path).unlink()
        refused(path, design, "is missing; a new ledger never replaces one that may be lost")

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_rolled_back(self, kept, is_full_check):
        path, design = kept
        old = path.read_bytes()
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
        path.write_bytes(old)
        with pytest.raises(LedgerRefused, match="the commit 4 that its head file names: it was rolled back"):
            Ledger.open(path, design, is_full_check=is_full_check)
        refused(path, design, "rolled back")

    def test_without_its_log(self, kept):
        """A copy of the database alone, taken while its writer was at work, lacks what is in the log."""
        path, design = kept
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
            copy = path.with_name("copy.db")
            shutil.copy2(path, copy), shutil.copy2(head_of(path), head_of(copy))
        refused(copy, design, "rolled back, cut short or replaced")

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_ahead_of_its_head_after_a_crash_in_between(self, kept, is_full_check):
        path, design = kept
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

    @pytest.mark.parametrize("size", [0, 50, 4096, -4096])
    def test_truncated(self, kept, size):
        path, design = kept
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)
        refused(path, design, "cut short|damaged|cannot be read")

    def test_torn(self, kept):
        """Any page overwritten with noise; what is in no page that is used may be whatever it is."""
        path, design = kept
        content, rng = path.read_bytes(), np.random.default_rng(0)
        tip = verify(path).tip
        for start in range(0, len(content), 4096):
            path.write_bytes(content[:start] + rng.bytes(4096) + content[start + 4096 :])
            with pytest.raises(LedgerRefused, match="damaged|not a dpfuse ledger|put the right"):
                Ledger.open(path, design)
        path.write_bytes(content)
        assert verify(path).tip == tip

    @pytest.mark.parametrize("line", [b"", b"dpfuse-ledger-head-1", b"\xff" * 157])
    def test_a_damaged_head(self, kept, line):
        path, design = kept
        head_of(path).write_bytes(line)
        refused(path, design, "ledger.db.head is damaged")

    def test_of_a_older_version(self, kept):
        path, design = kept
        edit(path, "PRAGMA user_version = 2")
        refused(path, design, "has ledger version 2, this dpfuse reads 3; use the dpfuse that wrote it")

    def test_something_else(self, kept):
        path, design = kept
        path.write_text("not a database " * 500)
        refused(path, design, "is not a database")

    def test_readable_by_others(self, kept):
        path, design = kept
        modes = [stat.S_IMODE(file.stat().st_mode) for file in (path, head_of(path))]
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
            modes += [stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("ledger.db-*")]
        assert modes == [0o600] * 4
        path.chmod(0o640)
        refused(path, design, "others may read it; chmod 600 it")


class TestWriters:
    def test_a_second_one_is_refused_until_the_first_is_gone(self, kept):
        path, design = kept
        with Ledger.open(path, design), pytest.raises(LedgerRefused, match="ledger.db has a writer already"):
            Ledger.open(path, design)
        Ledger.open(path, design).close()

    def test_by_another_name_too(self, kept):
        path, design = kept
        link = path.with_name("link.db")
        link.symlink_to(path)
        with Ledger.open(path, design), pytest.raises(LedgerRefused, match="has a writer already"):
            Ledger.open(link, design)

    def test_a_program_that_holds_the_database_stops_the_ledger(self, kept, monkeypatch):
        path, design = kept
        monkeypatch.setattr("dpfuse.ledger.store._WAIT_MS", 10)
        with Ledger.open(path, design) as ledger, contextlib.closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerRefused, match="is locked by another program; stop that program"):
                ledger.commit([entry(ledger, 5)])
            with pytest.raises(LedgerRefused, match="is closed; open it again"):
                ledger.commit([])

    def test_a_row_that_somebody_else_wrote_stops_the_ledger(self, kept):
        path, design = kept
        with Ledger.open(path, design) as ledger:
            with contextlib.closing(apsw.Connection(str(path))) as other:
                other.execute("INSERT INTO commits VALUES (4, zeroblob(32), '0')")
            with pytest.raises(LedgerRefused, match="was written to by another program"):
                ledger.commit([entry(ledger, 5)])

    def test_a_forked_child_is_refused(self, kept, monkeypatch):
        path, design = kept
        with Ledger.open(path, design) as ledger:
            monkeypatch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(LedgerRefused, match="was opened by another process"):
                ledger.commit([])
            monkeypatch.undo()
            ledger.commit([entry(ledger, 5)])


def fill(ledger, first_step=1):
    """Commit until the ledger refuses: the rows that came back, and the refusal."""
    rows = []
    with pytest.raises(LedgerRefused) as caught:
        for step in itertools.count(first_step):
            rows += ledger.commit([entry(ledger, step, ids=np.arange(step * 40, step * 40 + 40))])
    return rows, str(caught.value)


class TestDisks:
    def test_full(self, tmp_path):
        """On a disk of 300 KB; what came back is there when there is room again, and nothing else."""
        with mounted(tmp_path, "size=300k"):
            design, path = make_terms("individual"), tmp_path / "ledger.db"
            (padding := tmp_path / "padding").write_bytes(bytes(65536))
            with Ledger.create(path, design, STREAMS) as ledger:
                rows, refusal = fill(ledger)
            assert rows and "the disk is full; make room" in refusal
            padding.unlink()
            with Ledger.open(path, design) as ledger:
                assert list(ledger.rows("north")) == rows
                assert len(ledger.commit([entry(ledger, 1000)])) == 1

    def test_a_limit_on_the_size_of_files(self, place):
        """The same without a mount: writes past the limit fail, as those to a full or broken disk do."""
        design = make_terms("individual")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        with place.create(design, STREAMS) as ledger:
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limits[1]))
            try:
                rows, refusal = fill(ledger)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert rows and "cannot grow: the disk is full; make room" in refusal
        with place.open(design) as ledger:
            assert list(ledger.rows("north")) == rows

    def test_a_full_disk_leaves_no_half_made_ledger(self, tmp_path):
        with mounted(tmp_path, "size=16k"):
            with pytest.raises(LedgerRefused, match="the disk is full|check the disk"):
                Ledger.create(tmp_path / "ledger.db", make_terms())
            assert list(tmp_path.iterdir()) == []

    def test_read_only(self, tmp_path):
        with mounted(tmp_path, "size=1m"):
            design, path = make_terms(), tmp_path / "ledger.db"
            with Ledger.create(path, design, STREAMS) as ledger:
                ledger.commit([entry(ledger, 1)])
            subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
            with pytest.raises(LedgerRefused, match="may not be written to; make file and folder writable"):
                Ledger.open(path, design)

    def test_a_commit_that_fails_unclearly_is_read_back(self, kept, monkeypatch):
        """The transaction is durable, and then the head cannot be written: the row is found, and not drawn again."""
        path, design = kept
        with Ledger.open(path, design) as ledger:
            monkeypatch.setattr(ledger._head, "write", lambda *_: (_ for _ in ()).throw(OSError(5, "gone")))
            with pytest.raises(LedgerRefused, match="open the ledger again: it reads back what is there"):
                ledger.commit([entry(ledger, 5, weight=0.001)])
        with Ledger.open(path, design) as ledger:
            [stored] = ledger.rows("north", 5)
            assert ledger.commit([entry(ledger, 5)]) == [stored]


def test_the_check_of_what_was_published_can_fail(kept, tmp_path):
    path, design = kept
    published = tmp_path / "published"
    lines = [f"{row.stream} {row.step} {row.release.hex()} {row.hash.hex()}" for row in public_rows(path)]
    published.write_text("\n".join(lines))
    check_published(path, published)
    for wrong, message in [
        ([*lines, lines[-1].replace(" 4 ", " 5 ")], "not in the ledger"),
        ([lines[0].replace("north 1 ", "north 1 0"), *lines], "released twice"),
        (lines[4:], "were never told"),
    ]:
        published.write_text("\n".join(wrong))
        with pytest.raises(AssertionError, match=message):
            check_published(path, published)


def test_kills_lose_no_release_and_no_debit(tmp_path):
    last_step, _ = run_kills(tmp_path / "ledger.db", tmp_path / "published", num_kills=6, longest_s=0.3, seed=0)
    assert last_step >= 3


@pytest.mark.slow
def test_three_hundred_kills(tmp_path):
    last_step, share = run_kills(tmp_path / "ledger.db", tmp_path / "published", num_kills=300, longest_s=0.2, seed=1)
    assert last_step > 300 and share > 0.5


def test_no_error_shows_anything_private(place):
    """Ids and costs that would be recognised anywhere, in every error that a step can meet."""
    ids = np.array([CANARY, 7])
    ledger = place.create(make_terms("individual"), STREAMS)
    charged = charge(ledger, weight=0.09, ids=ids)
    cost = charged.debits.tolist()[0]
    ledger.commit([Entry("north", 1, charged, ids)])
    mechanism, errors = ledger.terms.mechanism, []

    def fails(entry):
        with pytest.raises((LedgerRefused, ValueError)) as caught:
            ledger.commit([entry])
        errors.extend([str(caught.value), repr(entry), "".join(traceback.format_exception(caught.value))])

    def other_accounts():
        return mechanism.charge(mechanism.open_accounts(), 0.09, ids, np.full((2, 2), 0.06))

    fails(Entry("north", 2, other_accounts(), ids[:1]))
    fails(Entry("north", 2, other_accounts(), -ids))
    fails(Entry("north", 2, other_accounts(), ids))
    errors += [repr(ledger), repr(charged)]
    shown = CliRunner().invoke(cli.app, ["ledger", "show", str(place.path)]).output
    rows = CliRunner().invoke(cli.app, ["ledger", "show", str(place.path), "--rows"]).output
    place.open(make_terms("individual")).close()
    edit(place.path, f"UPDATE accounts SET spent = 1 WHERE sensor = {CANARY}")
    with pytest.raises(LedgerRefused) as caught:
        verify(place.path)
    text = "\n".join([*errors, shown, rows, str(caught.value)])
    assert str(CANARY) not in text and str(cost) not in text and "other accounts" in text
    assert str(CANARY) in repr(ids)  # the search would find it


def test_a_missing_extra_names_the_line_that_installs_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(MissingExtra, match=r"a ledger needs apsw: pip install 'dpfuse\[live\]'"):
        place.create(make_terms(), STREAMS)
    assert list(place.path.parent.iterdir()) == []


class TestCommands:
    def invoke(self, *arguments):
        return CliRunner().invoke(cli.app, ["ledger", *map(str, arguments)], env={"COLUMNS": "100"})

    def test_verify(self, kept):
        path, _ = kept
        result = self.invoke("verify", path)
        assert result.exit_code == 0 and "is in order: 6 rows in 3 commits" in result.output
        answer = json.loads(self.invoke("verify", path, "--json").output)
        assert (answer["rows"], answer["commits"], answer["tip"]) == (6, 3, verify(path).tip.hex())

    def test_a_ledger_that_is_not_in_order_is_exit_1(self, kept, monkeypatch, capsys):
        path, _ = kept
        edit(path, "UPDATE releases SET fusion_weight = 0")
        monkeypatch.setattr(sys, "argv", ["dpfuse", "ledger", "verify", str(path)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 1 and "was changed" in capsys.readouterr().err

    def test_show(self, kept):
        path, design = kept
        is_total = design.guarantee.accounting == "total"
        answer = json.loads(self.invoke("show", path, "--json").output)
        assert answer["file"] == str(path)
        assert answer["design"] == design.fingerprint and answer["guarantee"] == design.guarantee.to_dict()
        for story in answer["streams"].values():
            assert (story["releases"], story["last_step"]) == (3, 4)
            assert ("budget_left" in story) == is_total
            if is_total:
                assert story["spent"] == pytest.approx(3e-6, rel=1e-2)
                assert story["spent"] + story["budget_left"] == pytest.approx(0.01)
        text = self.invoke("show", path).output
        assert ("pays for each of them" in text) == is_total and ("is private" in text) != is_total

    def test_public_rows(self, kept):
        path, _ = kept
        lines = self.invoke("show", path, "--rows", "--stream", "south", "--start", 2).output.splitlines()
        assert [json.loads(line) for line in lines] == [row.to_dict() for row in public_rows(path, "south", 2)]
        with pytest.raises(ValueError, match="stream must be one of north, south, got 'west'"):
            list(public_rows(path, "west"))
