"""The writer of a ledger: commits, one writer at a time, full and broken disks."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import apsw
import numpy as np
import pytest
from typer.testing import CliRunner

from dpfuse import Entry, Ledger, cli
from dpfuse.errors import LedgerRefused, MissingExtra
from dpfuse.ledger import public_rows, verify, writer
from dpfuse.policy import ExactStep
from support.designs import make_design
from support.ledger_contract import STREAMS, LedgerContract, charge, entry, make_ledger_design
from support.ledger_files import edit
from support.parts import mounted

CANARY = 4242424242424242


class TestCommits(LedgerContract):
    pass


def test_a_step_of_a_real_design_is_debited_and_estimated_from(place):
    design = make_design("individual")
    step = ExactStep(design, num_rows=3)
    with Ledger.create(place.path, design) as ledger:
        carry = step.init(ledger.accounts("main"))
        carry, charged = step.contribute(carry, [5, 6, -1], np.full((3, 2), 0.5))
        [row] = ledger.commit([Entry("main", 1, charged, [5, 6, -1])])
        assert np.isfinite(step.estimate(carry, row.to_release())[1].mean).all()
        assert sum(ledger.accounts("main").accounts().values()) == charged.debits.sum() > 0


def test_the_documented_example_commits_a_row(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/ledger.md").read_text()
    given = {"design": make_design("individual"), "ids": [5, 6, -1], "measurements": np.full((3, 2), 0.5)}
    monkeypatch.chdir(tmp_path)
    exec(page.split("```py\n")[1].split("```")[0], given)
    assert [row.step for row in public_rows("road.db")] == [1]


def test_a_design_without_a_guarantee_is_refused(place):
    with pytest.raises(ValueError, match="must have a guarantee"):
        Ledger.create(place.path, make_design(features="unbounded"))


def test_open_never_creates_a_ledger(place):
    design = make_ledger_design("individual")
    with pytest.raises(LedgerRefused, match="ledger.db is missing; .* `dpfuse ledger create`, `dpfuse serve --new`"):
        Ledger.open(place.path, design)
    assert not place.path.exists()
    with Ledger.create(place.path, design) as ledger:
        [row] = ledger.commit([entry(ledger, 1, "main")])
    with pytest.raises(LedgerRefused, match="is there already; open it"):
        Ledger.create(place.path, design)
    with Ledger.open(str(place.path), design) as ledger:
        assert list(ledger.rows("main")) == [row]


class TestWriters:
    def test_a_second_writer_is_refused_until_the_first_has_closed(self, closed_ledger):
        path, design = closed_ledger
        with Ledger.open(path, design), pytest.raises(LedgerRefused, match="ledger.db has a writer already"):
            Ledger.open(path, design)
        Ledger.open(path, design).close()

    def test_a_second_writer_is_refused_through_a_symbolic_link(self, closed_ledger):
        path, design = closed_ledger
        link = path.with_name("link.db")
        link.symlink_to(path)
        with Ledger.open(path, design), pytest.raises(LedgerRefused, match="has a writer already"):
            Ledger.open(link, design)

    def test_a_program_that_holds_the_database_stops_the_ledger(self, closed_ledger, monkeypatch):
        path, design = closed_ledger
        monkeypatch.setattr("dpfuse.ledger.store._WAIT_MS", 10)
        with Ledger.open(path, design) as ledger, contextlib.closing(apsw.Connection(str(path))) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerRefused, match="is locked by another program; stop that program"):
                ledger.commit([entry(ledger, 5)])
            with pytest.raises(LedgerRefused, match="is closed; open it again"):
                ledger.commit([])

    def test_a_row_of_another_program_stops_the_ledger(self, closed_ledger):
        path, design = closed_ledger
        with Ledger.open(path, design) as ledger:
            with contextlib.closing(apsw.Connection(str(path))) as other:
                other.execute("INSERT INTO commits VALUES (4, zeroblob(32), zeroblob(32))")
            with pytest.raises(LedgerRefused, match="was written to by another program"):
                ledger.commit([entry(ledger, 5)])

    @pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.db.head"])
    @pytest.mark.parametrize("is_replaced", [False, True])
    def test_a_file_that_is_removed_or_replaced_stops_the_ledger(self, closed_ledger, name, is_replaced):
        path, design = closed_ledger
        file = path.with_name(name)
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5)])
            copy = file.read_bytes()
            file.unlink()
            if is_replaced:
                path.with_name("copy").write_bytes(copy)
                path.with_name("copy").rename(file)
            with pytest.raises(LedgerRefused, match="was removed or replaced while it was open"):
                ledger.commit([entry(ledger, 6)])
            with pytest.raises(LedgerRefused, match="is closed; open it again"):
                ledger.commit([])

    @pytest.mark.parametrize("moment", ["check", "bring_up_to_date"])
    def test_a_folder_that_is_replaced_while_the_ledger_is_opened_is_refused(self, closed_ledger, monkeypatch, moment):
        path, design = closed_ledger
        original = getattr(writer, moment)

        def replace_folder(*arguments, **options):
            moved = path.parent.rename(path.parent.with_name(f"{path.parent.name}-moved-{moment}"))
            shutil.copytree(moved, path.parent)
            return original(*arguments, **options)

        monkeypatch.setattr(writer, moment, replace_folder)
        with pytest.raises(LedgerRefused, match="was removed or replaced while it was open"):
            Ledger.open(path, design)
        monkeypatch.undo()
        with Ledger.open(path, design) as ledger:
            ledger.commit([entry(ledger, 5)])

    def test_a_forked_child_is_refused(self, closed_ledger, monkeypatch):
        path, design = closed_ledger
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
    def test_a_full_disk_loses_no_committed_row(self, tmp_path):
        """On a disk of 300 KB; what came back is there when there is room again, and nothing else."""
        with mounted(tmp_path, "size=300k"):
            design, path = make_ledger_design("individual"), tmp_path / "ledger.db"
            (padding := tmp_path / "padding").write_bytes(bytes(65536))
            with Ledger.create(path, design, STREAMS) as ledger:
                rows, refusal = fill(ledger)
            assert rows and "the disk is full; make room" in refusal
            padding.unlink()
            with Ledger.open(path, design) as ledger:
                assert list(ledger.rows("north")) == rows
                assert len(ledger.commit([entry(ledger, 1000)])) == 1

    def test_a_file_that_may_not_grow_loses_no_committed_row(self, place):
        """The same without a mount: writes past the limit fail, as those to a full or broken disk do."""
        design = make_ledger_design("individual")
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

    def test_a_full_disk_leaves_no_incomplete_ledger(self, tmp_path):
        with mounted(tmp_path, "size=16k"):
            with pytest.raises(LedgerRefused, match="the disk is full|check the disk"):
                Ledger.create(tmp_path / "ledger.db", make_ledger_design())
            assert list(tmp_path.iterdir()) == []

    def test_a_read_only_disk_is_refused(self, tmp_path):
        with mounted(tmp_path, "size=1m"):
            design, path = make_ledger_design(), tmp_path / "ledger.db"
            with Ledger.create(path, design, STREAMS) as ledger:
                ledger.commit([entry(ledger, 1)])
            subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
            with pytest.raises(LedgerRefused, match="may not be written to; make file and folder writable"):
                Ledger.open(path, design)

    def test_a_commit_whose_head_cannot_be_written_is_read_back(self, closed_ledger, monkeypatch):
        """The transaction is durable, and then the head cannot be written: the row is found, and not drawn again."""
        path, design = closed_ledger
        with Ledger.open(path, design) as ledger:
            monkeypatch.setattr(ledger._head, "write", lambda *_, **options: (_ for _ in ()).throw(OSError(5, "gone")))
            with pytest.raises(LedgerRefused, match="open the ledger again: it reads back what is there"):
                ledger.commit([entry(ledger, 5, weight=0.001)])
        with Ledger.open(path, design) as ledger:
            [stored] = ledger.rows("north", 5)
            assert ledger.commit([entry(ledger, 5)]) == [stored]


def test_no_error_shows_anything_private(place):
    """Ids and costs that would be recognised anywhere, in every error that a step can meet."""
    ids = np.array([CANARY, 7])
    ledger = place.create(make_ledger_design("individual"), STREAMS)
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
    place.open(make_ledger_design("individual")).close()
    edit(place.path, f"UPDATE accounts SET spent = 1 WHERE sensor = {CANARY}")
    with pytest.raises(LedgerRefused) as caught:
        verify(place.path)
    text = "\n".join([*errors, shown, rows, str(caught.value)])
    assert str(CANARY) not in text and str(cost) not in text and "other accounts" in text
    assert str(CANARY) in repr(ids)  # the search would find it


def test_a_missing_extra_names_the_line_that_installs_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(MissingExtra, match=r"a ledger needs apsw: pip install 'dpfuse\[live\]'"):
        place.create(make_ledger_design(), STREAMS)
    assert list(place.path.parent.iterdir()) == []
