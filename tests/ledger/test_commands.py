"""`dpfuse ledger verify` and `dpfuse ledger show`."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from dpfuse import cli
from dpfuse.ledger import public_rows, verify
from support.ledger_files import edit


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["ledger", *map(str, arguments)], env={"COLUMNS": "100"})


def test_verify_prints_rows_commits_and_tip(closed_ledger):
    path, _ = closed_ledger
    result = invoke("verify", path)
    assert result.exit_code == 0 and "is in order: 6 rows in 3 commits" in result.output
    answer = json.loads(invoke("verify", path, "--json").output)
    assert (answer["rows"], answer["commits"], answer["tip"]) == (6, 3, verify(path).tip.hex())


def test_verify_exits_with_1_for_a_ledger_that_was_changed(closed_ledger, monkeypatch, capsys):
    path, _ = closed_ledger
    edit(path, "UPDATE releases SET fusion_weight = 0")
    monkeypatch.setattr(sys, "argv", ["dpfuse", "ledger", "verify", str(path)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 3 and "was changed" in capsys.readouterr().err


def test_show_prints_guarantee_progress_and_spending(closed_ledger):
    path, design = closed_ledger
    is_total = design.guarantee.accounting == "total"
    answer = json.loads(invoke("show", path, "--json").output)
    assert answer["file"] == str(path)
    assert answer["design"] == design.fingerprint and answer["guarantee"] == design.guarantee.to_dict()
    for story in answer["streams"].values():
        assert (story["releases"], story["last_step"]) == (3, 4)
        assert ("budget_left" in story) == is_total
        if is_total:
            assert story["spent"] == pytest.approx(3e-6, rel=1e-2)
            assert story["spent"] + story["budget_left"] == pytest.approx(0.01)
    text = invoke("show", path).output
    assert ("pays for each of them" in text) == is_total and ("are private" in text) != is_total


def test_show_names_streams_that_are_retired(closed_ledger):
    path, _ = closed_ledger
    assert invoke("upgrade", path, "--retire-stream", "south").exit_code == 0
    streams = json.loads(invoke("show", path, "--json").output)["streams"]
    assert {name: one["is_retired"] for name, one in streams.items()} == {"north": False, "south": True}
    assert "south (retired)" in invoke("show", path).output and "north (retired)" not in invoke("show", path).output


def test_show_rows_prints_the_public_rows(closed_ledger):
    path, _ = closed_ledger
    lines = invoke("show", path, "--rows", "--stream", "south", "--start", 2).output.splitlines()
    assert [json.loads(line) for line in lines] == [row.to_dict() for row in public_rows(path, "south", 2)]
    with pytest.raises(ValueError, match="stream must be one of north, south, got 'west'"):
        list(public_rows(path, "west"))


def test_a_restore_without_the_signing_key_says_what_to_put_back(closed_ledger, tmp_path):
    path, _ = closed_ledger
    assert invoke("backup", path, tmp_path / "copy").exit_code == 0
    (tmp_path / "rows.jsonl").touch()
    result = invoke("restore", tmp_path / "copy", tmp_path / "new.db", "--witness", tmp_path / "rows.jsonl")
    assert result.exit_code == 2 and "new.db.signing-keyback" in "".join(result.output.replace("│", "").split())
