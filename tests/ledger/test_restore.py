"""Backup and restore: what may have been spent since the backup counts as spent, and no step is released twice."""

from __future__ import annotations

import json
import shutil
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dpfuse import Ledger, cli
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import Restored, backup, public_rows, restore, upgrade, verify
from dpfuse.ledger.head import head_path
from support.ledger_contract import entry, make_ledger_design
from support.ledger_files import edit
from support.restores import Site


@pytest.fixture(params=["total", "individual"])
def site(request, tmp_path):
    return Site(tmp_path, make_ledger_design(request.param))


@pytest.fixture
def individual(tmp_path):
    return Site(tmp_path, make_ledger_design("individual"))


def left(site, sensor):
    with site.open() as ledger:
        return int(ledger.accounts("north").left([sensor])[0])


class TestBackup:
    def test_a_backup_is_private_whole_and_one_file(self, site):
        site.step()
        site.back_up()
        [copy] = site.backups
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        assert [path.name for path in site.folder.glob("backup*")] == ["backup-0"]
        with pytest.raises(LedgerRefused, match="is there already; choose another name"):
            backup(site.path, copy)
        with pytest.raises(LedgerRefused, match="backup-0.head is missing"):
            Ledger.open(copy, site.design)

    def test_a_backup_while_the_ledger_is_written_to_is_consistent(self, individual):
        with individual.open() as ledger:
            done, found = threading.Event(), []

            def back_up():
                for number in range(5):
                    found.append(backup(individual.path, individual.folder / f"copy-{number}"))
                done.set()

            thread = threading.Thread(target=back_up)
            thread.start()
            step = 0
            while not done.is_set() or step < 5:
                step += 1
                ledger.commit([entry(ledger, step, weight=1e-5, ids=np.arange(step % 50))])
                if step % 20 == 0:
                    ledger.checkpoint()
            thread.join()
        numbers = [one.num_commits for one in found]
        assert len(numbers) == 5 and numbers == sorted(numbers) and numbers[-1] <= step

    def test_a_ledger_that_was_rolled_back_is_not_backed_up(self, site):
        site.step()
        shutil.copy(site.path, site.folder / "old")
        site.step()
        shutil.copy(site.folder / "old", site.path)
        with pytest.raises(LedgerRefused, match="it was rolled back, cut short or replaced"):
            site.back_up()
        assert not (site.folder / "backup-0").exists() and not list(site.folder.glob("*.part*"))


class TestWitnessed:
    def test_the_ledger_goes_on_after_the_last_step_of_the_witness(self, site):
        site.step()
        site.back_up()
        for _ in range(3):
            site.step()
        tips = verify(site.path).tip, list(public_rows(site.path))
        site.lose()
        site.restore()
        with pytest.raises(LedgerRefused, match="is there"):
            site.restore()
        assert list(public_rows(site.path)) == tips[1]
        site.step()
        site.check()
        found = verify(site.path)
        assert found.num_commits == 6 and found.streams["north"].last_step == 5
        Ledger.open(site.path, site.design, is_full_check=False).close()

    def test_every_id_known_or_new_is_charged_what_the_rows_can_have_cost(self, individual):
        individual.step(0.01, ids=(7,))
        individual.back_up()
        paid = individual.paid[7]
        for _ in range(3):
            individual.step(0.02, ids=(8,))
        individual.lose()
        charge = individual.restore().charge
        weight = next(public_rows(individual.path, "north", 2)).fusion_weight
        assert charge == 2 * 3 * weight**2 and individual.paid[8] <= charge
        assert left(individual, 7) == individual.budget - paid - charge
        assert left(individual, 8) == left(individual, 99) == individual.budget - charge
        individual.back_up()
        individual.step(0.01, ids=(8, 99))
        individual.lose()
        again = individual.restore().charge  # a second loss adds to the first
        assert left(individual, 12345) == individual.budget - charge - again

    def test_a_total_account_is_what_its_rows_say(self, tmp_path):
        site = Site(tmp_path, make_ledger_design("total"))
        site.back_up()
        for _ in range(2):
            site.step(0.03)
        site.lose()
        assert site.restore().charge == 0
        with site.open() as ledger:
            assert ledger.accounts("north").spent == site.paid["north"] > 0

    def test_tips_that_were_kept_elsewhere_stay_valid(self, individual):
        individual.back_up()
        individual.step()
        before = verify(individual.path).tip
        individual.lose()
        individual.restore()
        with individual.open() as ledger:
            assert (before,) in ledger._connection.execute("SELECT tip FROM commits").fetchall()

    def test_a_committed_row_that_nobody_has_is_drawn_anew_and_published_once(self, individual):
        individual.back_up()
        individual.step()
        individual.step(is_published=False)
        individual.lose()
        individual.restore()
        individual.step()
        individual.check()

    def test_pages_of_releases_are_a_witness_too(self, individual):
        individual.back_up()
        individual.step()
        lines = [json.loads(line) for line in individual.rows_file.read_text().splitlines()]
        individual.rows_file.write_text(json.dumps({"releases": lines}) + "\n" + json.dumps(lines[0]) + "\n")
        individual.lose()
        individual.restore()
        assert len(list(public_rows(individual.path))) == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda rows: rows[:2] + rows[4:], "was changed, or one before it is missing"),
            (lambda rows: [*rows, rows[-1] | {"signature": "0" * 128}], "is not signed by the centre's key"),
            (lambda rows: [*rows, rows[-1] | {"fusion_weight": 1}], "is not signed by the centre's key"),
            (lambda rows: [*rows, {k: v for k, v in rows[-1].items() if k != "signature"}], "is not signed"),
            (lambda rows: [rows[0] | {"hash": "0" * 64}, *rows], "is not the ledger's: another backup?"),
            (lambda rows: [*rows, rows[-1] | {"design": "b" * 16}], "only after the backup; .* without a witness"),
            (lambda rows: [*rows, rows[-1] | {"stream": "west"}], "only after the backup"),
            (lambda rows: [*rows, rows[-1] | {"release": [1]}], "release must be 2 whole numbers"),
            (lambda rows: [*rows, [1]], "this is not a release message"),
            (lambda rows: [*rows, {"step": "x"}], "this is not a release message"),
        ],
    )
    def test_a_witness_with_wrong_or_missing_rows_is_refused_and_leaves_nothing(self, individual, change, message):
        individual.step()
        individual.back_up()
        for _ in range(3):
            individual.step()
        rows = [json.loads(line) for line in individual.rows_file.read_text().splitlines()]
        individual.rows_file.write_text("".join(json.dumps(row) + "\n" for row in change(rows)))
        individual.lose()
        with pytest.raises(LedgerRefused, match=message):
            individual.restore()
        assert not list(individual.folder.glob("road.db*"))

    def test_rows_of_a_design_from_after_the_backup_are_refused(self, individual):
        individual.back_up()
        individual.design = make_ledger_design("individual", fingerprint="b" * 64)
        upgrade(individual.path, individual.design)
        individual.signer = type(individual.signer)(individual.key, individual.ledger_id, "b" * 64)
        individual.step()
        individual.lose()
        with pytest.raises(LedgerRefused, match="only after the backup"):
            individual.restore()


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET content = replace(content, '\"charge\":', '\"charge\":0') WHERE kind = 'restore'",
        "UPDATE events SET content = '{}' WHERE kind = 'restore'",
        "UPDATE events SET kind = 'other' WHERE kind = 'restore'",
        "DELETE FROM events WHERE kind = 'restore'",
    ],
)
def test_a_charge_that_was_changed_by_hand_is_refused(individual, statement, is_full):
    individual.back_up()
    individual.step()
    individual.lose()
    individual.restore()
    edit(individual.path, statement)
    with pytest.raises(LedgerRefused):
        Ledger.open(individual.path, individual.design, is_full_check=is_full)


class TestWithoutWitness:
    def test_nobody_has_anything_left_for_ever(self, site):
        site.step()
        site.back_up()
        site.step(is_witnessed=False)
        site.lose()
        assert site.restore(with_witness=False).charge == site.budget
        before = dict(site.paid)
        for _ in range(2):
            site.step(0.05, ids=(7, 99))
        assert {name: paid for name, paid in site.paid.items() if paid} == before
        assert min(step for _, step in site.published if step > 2) == 3
        upgrade(site.path, add=["west"])
        with site.open() as ledger:
            accounts = ledger.accounts("west")
            assert (accounts.left if ledger.terms.is_total else int(accounts.left([5])[0])) == 0
        verify(site.path)

    def test_rows_from_after_it_are_no_witness_for_the_old_backup(self, individual):
        """Else the second restore would charge for those rows alone, and refund what the first one took."""
        individual.back_up()
        individual.step(is_witnessed=False)
        individual.lose()
        individual.restore(with_witness=False)
        individual.step()
        individual.lose()
        with pytest.raises(LedgerRefused, match="was changed, or one before it is missing"):
            individual.restore()

    def test_a_witness_or_a_last_step_is_needed(self, individual):
        individual.back_up()
        individual.lose()
        with pytest.raises(ValueError, match="give a witness or, if there is none, the last step"):
            restore(individual.backups[0], individual.path)


def test_without_a_witness_at_least_one_step_after_the_backup_is_left_out(site):
    """The hashes begin anew there: without a gap readers would take the next row for another past of the stream."""
    for _ in range(3):
        site.step()
    site.back_up()
    for last_step in (1, 3, 4):
        site.lose()
        found, restored = restore(site.backups[0], site.path, last_step=last_step)
        assert restored.last_step == 4 and {one.last_step for one in found.streams.values()} == {4}


def test_a_place_where_a_centre_still_runs_is_refused(individual):
    individual.back_up()
    with individual.open():
        individual.path.rename(individual.folder / "elsewhere")
        with pytest.raises(LedgerRefused, match="has a writer already"):
            individual.restore()


def test_a_crash_between_head_file_and_ledger_is_repaired_by_another_restore(individual, monkeypatch):
    individual.back_up()
    individual.step()
    individual.lose()
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError(5, "in a test")))
    with pytest.raises(LedgerRefused):
        individual.restore()
    monkeypatch.undo()
    assert head_path(individual.path).exists() and not individual.path.exists()
    with pytest.raises(LedgerRefused, match="is missing and its head file is there"):
        individual.open()
    individual.restore()
    individual.step()


steps = st.tuples(st.just("step"), st.sampled_from([0.01, 0.04, 0.07, 0.1]), st.sampled_from([(7,), (7, 8), (8, 9)]))
schedules = st.lists(
    st.one_of(
        steps,
        steps,
        st.tuples(st.just("back_up")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("restore"), st.integers(0, 3), st.sampled_from([True, True, False])),
    ),
    max_size=14,
)


def run(site, schedule):
    """Run a schedule of steps, backups and losses, and check the test's own record."""
    site.back_up()
    for kind, *arguments in schedule:
        if kind == "step":
            site.step(*arguments)
        elif kind == "back_up":
            site.back_up()
        else:
            if kind == "crash":  # a committed row that nobody has is lost with the ledger
                site.step(0.07, is_published=False)
            number, with_witness = arguments or (0, True)
            site.lose()
            restore_by_the_rule(site, number % len(site.backups), with_witness)
    site.check()
    verify(site.path)


@contextmanager
def in_memory():
    """A folder in memory, where there is such a file system: these tests are not about the disk, and sync often."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def restore_by_the_rule(site, number, with_witness):
    try:
        site.restore(number, with_witness=with_witness)
    except LedgerRefused:  # the witness's rows were made after a restore without it
        site.restore(number, with_witness=False)


@pytest.mark.parametrize("accounting", ["total", "individual"])
@given(schedule=schedules)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_no_sensor_spends_more_than_its_budget_over_any_losses_and_restores(accounting, schedule):
    """By the test's own record of what was published: some of the ledgers are gone."""
    with in_memory() as folder:
        run(Site(folder, make_ledger_design(accounting)), schedule)


@pytest.mark.slow
@pytest.mark.parametrize("accounting", ["total", "individual"])
@given(schedule=schedules)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_sensor_spends_more_than_its_budget_over_many_losses(accounting, schedule):
    with in_memory() as folder:
        run(Site(folder, make_ledger_design(accounting)), schedule)


def test_the_record_notices_a_restore_that_charges_nothing(individual, monkeypatch):
    """The negative control of the two tests above."""
    schedule = [("step", 0.07, (7,)), ("restore", 0, True)] * 3
    monkeypatch.setattr("dpfuse.ledger.backups.Restored", lambda **fields: Restored(**fields | {"charge": 0}))
    with pytest.raises(AssertionError):
        run(individual, schedule)


def test_commands_back_up_and_restore(individual, monkeypatch):
    monkeypatch.chdir(individual.folder)
    shutil.copy(individual.key, "road.db.signing-key")

    def invoke(*words):
        return CliRunner().invoke(cli.app, ["ledger", *words], env={"COLUMNS": "200"})

    individual.step(0.001)
    assert "backup holds 1 commits of road.db" in invoke("backup", "road.db", "backup").output
    individual.step(0.001)
    individual.lose()
    assert "give --witness or, if there is none, --last-step" in invoke("restore", "backup", "road.db").output
    result = invoke("restore", "backup", "road.db", "--witness", "rows.jsonl")
    assert "road.db is restored up to step 2" in result.output
    assert "each sensor, known or new, was charged 2.002e-06 of its budget of 0.01" in result.output
    individual.lose()
    result = invoke("restore", "backup", "road.db", "--last-step", "9")
    assert "up to step 9" in result.output and "was charged 0.01 of its budget of 0.01" in result.output
