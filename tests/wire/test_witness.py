"""The witness's file: whole lines only, synced before readers have them, and complete after a crash."""

from __future__ import annotations

import json
import os
import resource
from contextlib import contextmanager

import pytest

import dpfuse
from dpfuse.cli import exit_code
from dpfuse.errors import FileRefused, LedgerRefused, LedgerUnavailable
from dpfuse.ledger import Ledger, verify
from dpfuse.ledger.reader import check_tip
from dpfuse.ledger.witness import compare_with_witness
from dpfuse.public.rows import Message
from dpfuse.public.signatures import Signer, make_key
from dpfuse.public.witness_file import WitnessFile
from dpfuse.wire.witness import witnessed
from support.designs import make_design
from support.ledger_contract import STREAMS, entry, make_ledger_design


def message(step):
    return Message(step, json.dumps({"step": step}).encode())


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_messages_are_appended_and_an_unfinished_line_is_removed(tmp_path):
    path = tmp_path / "rows.jsonl"
    witness = WitnessFile(path)
    assert witness.last_step == 0
    witness.append([message(1), message(2)])
    assert steps_in(path) == [1, 2]
    witness.close()
    with path.open("ab") as file:
        file.write(b'{"step": 3, "re')
    witness = WitnessFile(path)
    assert witness.last_step == 2
    witness.append([message(3)])
    witness.close()
    assert steps_in(path) == [1, 2, 3]


@pytest.mark.parametrize("content", [b"no line", b"a text\n", b"[1]\n", b'{"stream": "main"}\n'])
def test_another_file_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(FileRefused, match="is not a file of release messages"):
        WitnessFile(path)
    assert path.read_bytes() == content


def test_a_centre_that_starts_gives_the_witness_what_it_lacks(tmp_path):
    """A row that was committed just before a crash is published at the next start; the witness has it first."""
    design, path = make_design("individual", horizon=None), tmp_path / "rows.jsonl"
    make_key(tmp_path / "key")
    with dpfuse.FusionCentre(design, tmp_path / "road.db", create=True) as centre:
        for _ in range(3):
            centre.step({})
    with Ledger.open(tmp_path / "road.db", design) as ledger:
        signer = Signer(tmp_path / "key", ledger.terms.ledger_id, design.fingerprint)
        with witnessed(path, ledger, signer):
            assert steps_in(path) == [1, 2, 3]
        with witnessed(path, ledger, signer) as prepare:
            prepare([message(4)])
        assert steps_in(path) == [1, 2, 3, 3, 4]
        with pytest.raises(LedgerRefused, match="is behind its witness .* has step 4: it was rolled back"):
            witnessed(path, ledger, signer).__enter__()
    with witnessed(None, ledger, signer) as prepare:
        prepare([message(5)])


@contextmanager
def files_of_at_most(size):
    """A disk that is full once a file has that size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_of_the_witness_asks_to_try_again_and_the_next_start_gives_it_what_it_lacks(tmp_path):
    design, path = make_design("individual", horizon=None), tmp_path / "rows.jsonl"
    rows = rows_of(tmp_path / "road.db", design, 3)
    with Ledger.open(tmp_path / "road.db", design) as ledger:
        signer = Signer(tmp_path / "road.key", ledger.terms.ledger_id, design.fingerprint)
        with pytest.raises(LedgerUnavailable, match=r"rows\.jsonl must hold every release .* make room") as caught:
            with files_of_at_most(len(rows[0].content) + 20), witnessed(path, ledger, signer):
                pass
        assert exit_code(caught.value) == 75
        assert path.stat().st_size == len(rows[0].content) + 20  # the second message is cut short
        with witnessed(path, ledger, signer):
            assert steps_in(path)[-2:] == [2, 3]


@pytest.mark.parametrize("change", ["moved", "replaced", "cut"])
def test_a_witness_that_is_moved_replaced_or_cut_gets_no_release_and_nobody_else_does(tmp_path, change):
    """A new file in its place could not show that the ledger is behind it, so nothing starts again by itself."""
    design, path = make_design("individual", horizon=None), tmp_path / "rows.jsonl"
    rows = rows_of(tmp_path / "road.db", design, 3)
    witness = WitnessFile(path)
    witness.append(rows[:1])
    kept = tmp_path / "rows.jsonl.1"
    if change == "cut":  # both are done by programs that rotate logs
        kept.write_bytes(path.read_bytes())
        os.truncate(path, 0)
    else:
        path.rename(kept)
    if change == "replaced":
        path.touch()
    with pytest.raises(LedgerRefused, match="moved, replaced or cut while it was open; put it back, or") as caught:
        witness.append(rows[1:2])
    assert exit_code(caught.value) == 3
    witness.close()
    assert steps_in(kept) == [1] and (not path.exists() or not path.read_bytes())
    kept.replace(path)
    witness = WitnessFile(path)
    witness.append(rows[1:2])
    witness.append(rows[2:])
    witness.close()
    assert steps_in(path) == [1, 2, 3]


def test_a_ledger_behind_the_tip_is_refused(tmp_path):
    design = make_ledger_design()
    with Ledger.create(tmp_path / "road.db", design, STREAMS) as ledger:
        first = verify(ledger.path).tip
        ledger.commit([entry(ledger, 1)])
        tip = verify(ledger.path).tip
        ledger.commit([entry(ledger, 2)])
        check_tip(ledger.path, first)
        check_tip(ledger.path, tip)
        with pytest.raises(LedgerRefused, match="does not hold the tip 00.*: it was rolled back or replaced"):
            check_tip(ledger.path, bytes(32))


def rows_of(path, design, count):
    """The release messages of a new ledger after some steps."""
    make_key(key := path.with_suffix(".key"))
    with dpfuse.FusionCentre(design, path, create=True) as centre:
        for _ in range(count):
            centre.step({})
    with Ledger.open(path, design) as ledger:
        signer = Signer(key, ledger.terms.ledger_id, design.fingerprint)
        return [signer.to_message(row) for row in ledger.rows("main")]


def test_a_ledger_with_another_past_than_its_witness_is_refused(tmp_path):
    """The chain makes one row stand for all before it: the last one is enough, and the length is the same."""
    design = make_design("individual", horizon=None)
    rows = rows_of(tmp_path / "first.db", design, 3)
    rows_of(tmp_path / "second.db", design, 3)
    (tips := tmp_path / "tips.jsonl").write_bytes(rows[-1].content + b"\n")
    assert compare_with_witness(tmp_path / "first.db", tips) == 1
    with pytest.raises(LedgerRefused, match="another past than its witness: step 3 of stream 'main'"):
        compare_with_witness(tmp_path / "second.db", tips)
    with Ledger.open(tmp_path / "second.db", design) as ledger:
        signer = Signer(tmp_path / "second.key", ledger.terms.ledger_id, design.fingerprint)
        with pytest.raises(LedgerRefused, match="another past than its witness"):
            witnessed(tips, ledger, signer).__enter__()
    ahead = json.loads(rows[-1].content) | {"step": 9}
    tips.write_bytes(rows[0].content + b"\n" + json.dumps(ahead).encode() + b"\n")
    with pytest.raises(LedgerRefused, match="lacks step 9 of stream 'main'.*line 2"):
        compare_with_witness(tmp_path / "first.db", tips)
    tips.write_text("[3]\n")
    with pytest.raises(LedgerRefused, match="not a release message"):
        compare_with_witness(tmp_path / "first.db", tips)


def test_ledger_verify_compares_with_a_witness(tmp_path, monkeypatch, capsys):
    from dpfuse import cli

    design = make_design("individual", horizon=None)
    rows = rows_of(tmp_path / "road.db", design, 2)
    (tips := tmp_path / "tips.jsonl").write_bytes(b"".join(row.content + b"\n" for row in rows))
    for options, shown in (((), "it holds all 2 releases of"), (("--json",), '"witnessed": 2')):
        monkeypatch.setattr(
            "sys.argv", ["dpfuse", "ledger", "verify", str(tmp_path / "road.db"), "--witness", str(tips), *options]
        )
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0 and shown in capsys.readouterr().out
