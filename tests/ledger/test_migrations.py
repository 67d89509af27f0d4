"""A ledger of version 7 or 8 becomes one of version 9: all that it holds stays, and a kill leaves one or the other."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dpfuse.errors import LedgerMismatch, LedgerRefused
from dpfuse.ledger import Ledger, public_rows, restore, verify
from dpfuse.ledger.bank import HeldSlice
from dpfuse.ledger.bank.rules import LastAnswer
from dpfuse.ledger.head import head_path, read_head
from dpfuse.ledger.reader import check_tip
from dpfuse.ledger.store import APPEND_ONLY
from support.ledger_contract import entry, make_ledger_design, spent

STORED = Path(__file__).parent
DESIGN = make_ledger_design("individual")


def put_stored(version, path):
    """The stored ledger of that version, as a kill left it."""
    path.touch(0o600)
    edit(path, (STORED / f"version{version}" / "individual.sql").read_text())
    shutil.copy(STORED / f"version{version}" / "individual.head", head_path(path))
    return path


@pytest.fixture(params=[7, 8])
def version(request):
    return request.param


@pytest.fixture
def path(version, tmp_path):
    return put_stored(version, tmp_path / "ledger.db")


@pytest.fixture
def path_of_7(tmp_path):
    return put_stored(7, tmp_path / "ledger.db")


def edit(path, statements):
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(statements)


def rows_of(path, table="releases", columns="*"):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2").fetchall()


def version_of(path):
    return rows_of(path, "pragma_user_version", "user_version, 0")[0][0]


def test_rows_debits_accounts_and_both_chains_of_an_earlier_ledger_stay(path):
    columns = "step, stream, release, fusion_weight, cost, budget_left, design, period, hash, commit_number"
    tables = "commits", "events", "streams", "signatures", "seals"
    before, others = rows_of(path, columns=columns), {table: rows_of(path, table) for table in tables}
    sensor, paid = 7, sum(cost for _, cost in _paid(path, 7))
    with Ledger.open(path, DESIGN) as ledger:
        assert ledger.num_commits == len(others["commits"]) and ledger.streams == ("east", "north")
        assert spent(ledger)[sensor] == paid > 0
        assert ledger.last_step("north") == 8
        [row] = ledger.commit([entry(ledger, 9)])  # it goes on
        assert row.inputs is None
    assert version_of(path) == 9
    assert rows_of(path, columns=columns)[: len(before)] == before
    assert all(set(others[table]) <= set(rows_of(path, table)) for table in ("commits", "events", "seals"))
    found = verify(path)
    assert found.num_commits == len(others["commits"]) + 1
    check_tip(path, others["commits"][3][1])
    with Ledger.open(path, DESIGN) as again:  # nothing more to do
        assert again.last_step("north") == 9


def _paid(path, sensor):
    """Numbers of accounts and what they have paid, from the tables: accounts, and debits that are not added yet."""
    with closing(sqlite3.connect(path)) as connection:
        yield from connection.execute("SELECT number, spent FROM accounts WHERE sensor = ?", (sensor,))
        for number, sensors, costs in connection.execute("SELECT commit_number, sensors, costs FROM debits"):
            ids, amounts = (memoryview(part).cast("q") for part in (sensors, costs))
            yield from ((number, cost) for own, cost in zip(ids, amounts, strict=True) if own == sensor)


@pytest.mark.parametrize("read", [verify, lambda path: list(public_rows(path))])
def test_those_who_only_read_an_earlier_ledger_are_told_what_to_do(path, version, read):
    told = f"has ledger version {version}, this dpfuse reads 9; start its centre once with"
    with pytest.raises(LedgerMismatch, match=told):
        read(path)
    assert version_of(path) == version


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER releases_DELETE",
        "DROP TRIGGER accounts_only_grow; UPDATE accounts SET spent = 0",
        "DROP TRIGGER releases_UPDATE; UPDATE releases SET fusion_weight = 1 WHERE step = 1;"
        "CREATE TRIGGER releases_UPDATE BEFORE UPDATE ON releases"
        " BEGIN SELECT RAISE(ABORT, 'releases are append-only'); END",
        "UPDATE streams SET last_step = 9",
        "DELETE FROM debits",
    ],
)
def test_an_earlier_ledger_that_was_changed_is_refused_and_stays_as_it_is(path, version, change):
    edit(path, change)
    before = path.read_bytes()
    with pytest.raises(LedgerRefused):
        Ledger.open(path, DESIGN)
    assert version_of(path) == version and path.read_bytes()[100:] == before[100:]


def test_an_earlier_ledger_behind_its_head_file_is_refused(path, version):
    head = read_head(head_path(path))
    head_path(path).write_bytes(head._replace(number=head.number + 1).to_line())
    with pytest.raises(LedgerRefused, match="head file"):
        Ledger.open(path, DESIGN)
    assert version_of(path) == version


def test_a_ledger_of_version_7_with_a_bank_is_refused_with_the_reason(path_of_7):
    edit(
        path_of_7,
        """DROP TRIGGER events_UPDATE;
        UPDATE events SET content = json_set(content, '$.bank_id', 'b') WHERE commit_number = 0""",
    )
    with pytest.raises(
        LedgerMismatch, match="and a bank, whose slices that version does not seal; go on with the dpfuse"
    ):
        Ledger.open(path_of_7, DESIGN)
    assert version_of(path_of_7) == 7


# Each is a moment of the transaction, by the statement that comes next.
@pytest.mark.parametrize(
    "statement", ["DROP TRIGGER", "INSERT INTO releases", "DROP TABLE", "CREATE INDEX", "COMMIT", "AFTER"]
)
def test_a_kill_in_the_middle_leaves_a_ledger_that_the_next_writer_opens(path_of_7, statement):
    path = path_of_7
    kill = f"""
import os, signal
from pathlib import Path
from dpfuse.ledger import migrations
from dpfuse.ledger.bank import HeldSlice
from dpfuse.ledger.bank.rules import LastAnswer
from dpfuse.ledger.head import head_path, read_head
own = migrations.connect
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
def connect(*values, **options):
    connection = own(*values, **options)
    connection.exec_trace = lambda _, text, values: kill() if text.startswith({statement!r}) else True
    return connection
migrations.connect = connect
path = Path({str(path)!r})
migrations.bring_up_to_date(path, read_head(head_path(path)))
kill()
"""
    before = rows_of(path, columns="step, stream, hash")
    assert subprocess.run([sys.executable, "-c", kill]).returncode == -signal.SIGKILL
    assert version_of(path) == (9 if statement == "AFTER" else 7)
    with Ledger.open(path, DESIGN) as ledger:
        assert ledger.last_step("north") == 8
    assert version_of(path) == 9 and rows_of(path, columns="step, stream, hash") == before
    verify(path)


def test_a_backup_of_an_earlier_version_is_restored_as_one_of_this_version(path, version, tmp_path):
    Ledger.open(path, DESIGN).close()
    # A backup is a ledger without a head file.
    copy = put_stored(version, tmp_path / "old.backup")
    head_path(copy).unlink()
    found, _ = restore(copy, tmp_path / "restored.db", last_step=8)
    assert version_of(tmp_path / "restored.db") == 9 and found.num_commits == verify(path).num_commits + 1


def test_a_ledger_of_version_8_with_a_bank_keeps_its_slices(tmp_path):
    path, slices = tmp_path / "ledger.db", [HeldSlice(5, np.array([7]), np.array([100]))]
    with Ledger.create(path, DESIGN, ["main"], "b" * 32) as ledger:
        ledger.keep_slices(1, slices, LastAnswer(5, "mark"))
    later = "segments_UPDATE segments_DELETE releases_follow_segments segments_only_follow releases_DELETE".split()
    edit(path, ";".join(f"DROP TRIGGER {name}" for name in later))
    edit(path, "DROP INDEX releases_by_commit; DROP TABLE segments; PRAGMA user_version = 8")
    edit(path, APPEND_ONLY.format(table="releases", action="DELETE").strip())
    with Ledger.open(path, DESIGN) as ledger:
        [held] = ledger.slices(1)
        assert (held.epoch, list(held.sensors)) == (5, [7]) and ledger.last_answer() == (1, LastAnswer(5, "mark"))
    assert version_of(path) == 9 and verify(path).num_commits == 1
