"""Rows that are packed into segments are read, checked, backed up and signed like all others."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfuse import Ledger
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import LedgerCheck, backup, public_rows, restore, segments, stored_rows, upgrade, verify
from dpfuse.ledger.reader import check_tip
from dpfuse.ledger.segments import pack, unpack
from dpfuse.public.rows import Row
from dpfuse.public.signatures import Signer, make_key
from support.ledger_contract import STREAMS, Known, entry, make_ledger_design
from support.ledger_files import edit, refused

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Of four steps."""
    monkeypatch.setattr(segments, "_ROWS", 1)
    monkeypatch.setattr(segments, "_FEWEST_STEPS", 4)


def commit(ledger, step, streams=STREAMS):
    rows = ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in streams])
    ledger.checkpoint()
    return rows


def num_stored(path):
    """Rows in the table, and segments."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        return connection.execute("SELECT (SELECT count(*) FROM releases), (SELECT count(*) FROM segments)").fetchone()


def num_seals(ledger):
    return len(ledger._connection.execute("SELECT 1 FROM seals").fetchall())


@pytest.fixture(scope="module", params=["total", "individual"])
def made(request, make_place):
    """The path, the design and the rows of a ledger of 20 steps, of which 16 are packed; it is signed, and closed."""
    place, design = make_place(), make_ledger_design(request.param)
    make_key(place.path.with_suffix(".key"))
    with pytest.MonkeyPatch.context() as patch, place.create(design, STREAMS) as ledger:
        patch.setattr(segments, "_ROWS", 1)
        patch.setattr(segments, "_FEWEST_STEPS", 4)
        ledger.sign_with(Signer(place.path.with_suffix(".key"), ledger.terms.ledger_id, ledger.terms.fingerprint))
        ledger.pack_rows_after(2)
        rows = [row for step in range(1, 21) if step != 7 for row in commit(ledger, step)]
    assert num_stored(place.path) == (8, 4)
    return place.path, design, rows


@pytest.fixture
def packed(made, tmp_path):
    """A copy of it."""
    path, design, rows = made
    for file in path.parent.iterdir():
        shutil.copy2(file, tmp_path)
    return tmp_path / path.name, design, rows


@settings(max_examples=20)
@given(data=st.data(), is_total=st.booleans(), num_public=st.sampled_from([0, 12]), dimension=st.integers(1, 3))
def test_every_row_comes_out_as_it_was_packed(data, is_total, num_public, dimension):
    rows, last = [], {}
    for step in sorted(data.draw(st.sets(st.integers(1, 2**63 - 1), min_size=1, max_size=5))):
        for stream in data.draw(st.sets(st.sampled_from(["a", "b", "ü"]), min_size=1)):
            release = np.array(data.draw(st.lists(INT64, min_size=dimension, max_size=dimension)), "<i8").tobytes()
            weight, *amounts = data.draw(st.tuples(*[st.integers(0, 2**61)] * 3))
            made = data.draw(st.sampled_from(["", "0" * 16])), data.draw(st.sampled_from([None, 0, 20000]))
            inputs = data.draw(st.binary(min_size=num_public, max_size=num_public)) if num_public else None
            # A restore from a backup may begin the hashes of a stream anew.
            previous = last.get(stream, b"") if data.draw(st.booleans()) else b"anew"
            amounts = amounts if is_total else (None, None)
            row = Row.after(previous, stream, step, release, weight, *amounts, *made, inputs)
            last[stream] = row.hash
            rows.append((data.draw(st.integers(1, 2**62)), row))
    rows.sort(key=lambda one: (one[1].step, one[1].stream))
    content = pack(rows)
    assert unpack(content) == rows
    assert unpack(content, "b") == [one for one in rows if one[1].stream == "b"]


@pytest.mark.parametrize("is_total", [True, False])
def test_a_packed_row_of_four_coordinates_takes_less_than_forty_bytes(is_total):
    rng, last, rows = np.random.default_rng(0), {}, []
    for step in range(1, 5):
        for stream in (f"s{number:04}" for number in range(200)):
            release = (rng.normal(0, 2**20, 4) + rng.normal(0, 2**21, 4)).astype("<i8").tobytes()
            weight, before = int(rng.integers(20_000, 90_000)), last.get(stream)
            left = 2**58 if before is None else before.budget_left
            amounts = (2 * weight**2, left - 2 * weight**2) if is_total else (None, None)
            previous = rng.bytes(32) if before is None else before.hash
            last[stream] = Row.after(previous, stream, step, release, weight, *amounts, "0123456789abcdef")
            rows.append((step, last[stream]))
    assert len(pack(rows)) < 40 * len(rows)


def test_packed_rows_are_read_like_all_others(packed):
    path, design, rows = packed
    assert list(public_rows(path)) == rows
    for stream in STREAMS:
        assert list(public_rows(path, stream, 6)) == [row for row in rows if row.stream == stream and row.step >= 6]
    for is_full in (True, False):
        with Ledger.open(path, design, is_full_check=is_full) as ledger:
            assert list(ledger.rows_by_step(3)) == [row for row in rows if row.step >= 3]
            assert ledger.commit([entry(ledger, 2)]) == [row for row in rows if (row.step, row.stream) == (2, "north")]
            with pytest.raises(LedgerRefused, match="step 7 of stream 'north' was skipped"):
                ledger.commit([entry(ledger, 7)])


def test_the_tip_of_a_ledger_is_the_same_whether_or_not_rows_are_packed(make_place, monkeypatch):
    tips, places = [], [make_place() for _ in range(2)]
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    for kept, place in zip((1, 50), places, strict=True):
        with place.create(make_ledger_design(), STREAMS) as ledger:
            ledger.pack_rows_after(kept)
            for step in range(1, 7):
                ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS], Known(4))
                ledger.checkpoint()
        tips.append(verify(place.path).tip)
    assert [num_stored(place.path) for place in places] == [(4, 1), (12, 0)]
    assert tips[0] == tips[1]
    for place in places:
        check_tip(place.path, tips[0])


def test_backup_restore_upgrade_and_signatures_know_packed_rows(packed, tmp_path):
    path, design, rows = packed
    assert verify(path).signed.num_unsigned == 0
    backup(path, tmp_path / "copy")
    found, _ = restore(tmp_path / "copy", tmp_path / "restored.db", last_step=30)
    assert list(public_rows(tmp_path / "restored.db")) == rows and found.num_commits == verify(path).num_commits + 1
    upgrade(path, retire=["south"])
    with Ledger.open(path, design) as ledger:
        ledger.sign_with(Signer(path.with_suffix(".key"), ledger.terms.ledger_id, ledger.terms.fingerprint))
        ledger.pack_rows_after(1)
        for step in range(21, 27):
            commit(ledger, step, ["north"])
    with Ledger.open(path, design) as ledger:  # the last row of the retired stream is packed, and signed again
        ledger.sign_with(Signer(path.with_suffix(".key"), ledger.terms.ledger_id, ledger.terms.fingerprint))
    assert num_stored(path) == (2, 6) and verify(path).signed.num_unsigned == 0


def test_the_last_row_of_a_retired_stream_is_signed_although_a_restore_moved_the_stream_on(place, tmp_path):
    """Its last step is in the segment of its last row, which ends later."""
    make_key(tmp_path / "key")
    design, restored = make_ledger_design("individual"), tmp_path / "restored.db"

    def go_on(ledger, steps, streams):
        ledger.sign_with(Signer(tmp_path / "key", ledger.terms.ledger_id, ledger.terms.fingerprint))
        ledger.pack_rows_after(1)
        for step in steps:
            commit(ledger, step, streams)

    with place.create(design, STREAMS) as ledger:
        go_on(ledger, range(1, 11), STREAMS)
    backup(place.path, tmp_path / "copy")
    restore(tmp_path / "copy", restored, last_step=11)
    upgrade(restored, retire=["south"])
    for steps in (range(12, 20), range(20, 21)):  # the second time the row is packed
        with Ledger.open(restored, design) as ledger:
            go_on(ledger, steps, ["north"])
    with contextlib.closing(apsw.Connection(str(restored))) as connection:
        assert dict(connection.execute("SELECT stream, step FROM signatures")) == {"south": 10, "north": 20}


def test_rows_that_are_packed_meanwhile_are_read_and_verified_once(packed, monkeypatch):
    path, design, rows = packed
    tip, follow = verify(path).tip, LedgerCheck.follow
    with Ledger.open(path, design) as ledger:
        ledger.pack_rows_after(1)

        def slow(*values):
            follow(*values)
            if ledger.newest_step < 26:
                commit(ledger, ledger.newest_step + 1)

        monkeypatch.setattr(LedgerCheck, "follow", slow)
        assert verify(path).tip == tip and num_stored(path) == (4, 6)
        monkeypatch.undo()
        monkeypatch.setattr(segments, "_ROWS", 1)
        monkeypatch.setattr(segments, "_FEWEST_STEPS", 1)
        monkeypatch.setattr(stored_rows, "_BY_STEP", stored_rows._BY_STEP.replace("1000", "1"))
        reading = public_rows(path, start=20)
        read = [next(reading) for _ in range(11)]  # up to the first row of step 25, which is not packed
        commit(ledger, 27)
        assert num_stored(path) == (4, 7)
        read += reading
    assert [(row.step, row.stream) for row in read] == [(step, name) for step in range(20, 27) for name in STREAMS]


def test_a_step_that_comes_after_its_rows_were_packed_is_refused(place):
    with place.create(make_ledger_design("individual"), STREAMS) as ledger:
        ledger.pack_rows_after(1)
        for step in range(1, 7):
            commit(ledger, step, ["north"])
        with pytest.raises(LedgerRefused, match="step 4 of stream 'south' comes too late: .* up to step 4 are packed"):
            ledger.commit([entry(ledger, 4, "south")])
        commit(ledger, 5, ["south"])
    assert [row.step for row in public_rows(place.path, "south")] == [5]


def test_rows_of_streams_that_do_not_step_together_stay_as_they_are(place):
    with place.create(make_ledger_design("individual"), STREAMS) as ledger:
        for stream in STREAMS:
            for step in range(1, 7):
                commit(ledger, step, [stream])
        ledger.pack_rows_after(1)
        for step in (7, 8, 9):
            commit(ledger, step)
        assert num_seals(ledger) == 2  # it does not try again before there are rows for another segment
    assert num_stored(place.path) == (18, 0)
    verify(place.path)


def test_a_gap_between_steps_makes_few_seals(place):
    with place.create(make_ledger_design("individual"), STREAMS) as ledger:
        ledger.pack_rows_after(8)
        for step in (*range(1, 12), *range(1000, 1009)):
            commit(ledger, step)
        before = num_seals(ledger)
        for step in range(1009, 1025):
            commit(ledger, step)
        assert num_seals(ledger) <= before + 5
    assert num_stored(place.path)[1] > 4


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE segments SET content = (SELECT content FROM segments WHERE last_step = 8) WHERE last_step = 4",
        "UPDATE segments SET last_commit = 5 WHERE last_step = 4",
        "DELETE FROM segments WHERE last_step = 4",
        "DELETE FROM segments WHERE last_step = 16",
        "INSERT INTO segments SELECT last_step + 1, last_commit + 1, content, digest FROM segments LIMIT 1 OFFSET 3",
    ],
)
def test_a_segment_that_was_changed_removed_or_added_is_refused(packed, statement):
    path, design, _ = packed
    edit(path, statement)
    refused(path, design, "packed rows were changed|accounts do not add up|belongs to no commit")


def test_a_row_beside_the_segment_that_covers_it_is_refused(packed):
    path, design, _ = packed
    columns = "stream, 3, release, fusion_weight, cost, budget_left, design, period, inputs, hash, 3"
    edit(path, f"INSERT INTO releases SELECT {columns} FROM releases LIMIT 1")
    refused(path, design, "a row belongs to no commit")


def test_a_row_beside_the_packed_row_of_its_commit_is_refused(packed):
    path, design, _ = packed
    columns = "stream, 30, release, fusion_weight, cost, budget_left, design, period, inputs, hash, 3"
    edit(path, f"INSERT INTO releases SELECT {columns} FROM releases LIMIT 1")
    refused(path, design, "a row of commit 3 was added")


MOMENTS = ["SELECT commit_number", "INSERT INTO segments", "DELETE FROM releases", "INSERT INTO seals", "COMMIT"]


@pytest.mark.parametrize("statement", MOMENTS)
def test_an_error_at_any_moment_leaves_the_rows(packed, statement):
    path, design, rows = packed
    with Ledger.open(path, design) as ledger:
        ledger.pack_rows_after(1)
        rows = rows + ledger.commit([entry(ledger, 21, stream, weight=0.001) for stream in STREAMS])
        ledger._connection.exec_trace = lambda _, text, values: not text.startswith(statement)
        with pytest.raises(LedgerRefused, match="open the ledger again"):
            ledger.checkpoint()
    assert num_stored(path) == (10, 4)
    verify(path)
    assert list(public_rows(path)) == rows


@pytest.mark.slow
@pytest.mark.parametrize("statement", [*MOMENTS, "AFTER"])
def test_a_kill_at_any_moment_leaves_either_the_rows_or_their_segment(packed, statement):
    path, design, rows = packed
    kill = f"""
import os, signal
from dpfuse.ledger import Ledger, segments
from support.ledger_contract import STREAMS, entry, make_ledger_design
segments._ROWS, segments._FEWEST_STEPS = 1, 4
ledger = Ledger.open({str(path)!r}, make_ledger_design({design.guarantee.accounting!r}))
ledger.pack_rows_after(1)
ledger.commit([entry(ledger, 21, stream, weight=0.001) for stream in STREAMS])
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
ledger._connection.exec_trace = lambda _, text, values: kill() if text.startswith({statement!r}) else True
ledger.checkpoint()
kill()
"""
    folders = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    code = subprocess.run([sys.executable, "-c", kill], env=os.environ | {"PYTHONPATH": folders}).returncode
    assert code == -signal.SIGKILL
    assert num_stored(path) == ((2, 5) if statement == "AFTER" else (10, 4))
    with Ledger.open(path, design) as ledger:
        assert list(ledger.rows_by_step())[:-2] == rows and ledger.newest_step == 21
    verify(path)
