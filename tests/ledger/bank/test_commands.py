"""`dpfuse bank init`, `show`, `verify`, `upgrade` and `restore`."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from dpfuse import cli
from dpfuse.ledger.bank import Submission
from dpfuse.ledger.bank.bank import Bank
from support.designs import make_design, make_guarantee


def invoke(*arguments):
    return CliRunner().invoke(cli.app, ["bank", *map(str, arguments)], env={"COLUMNS": "100"})


def test_init_makes_a_bank_for_the_guarantee_of_a_design(server, tmp_path):
    design, where = make_design("individual"), server.url("made_by_init")
    design.save(tmp_path / "road.dpfuse")
    made = invoke("init", where, "--design", tmp_path / "road.dpfuse", "--epoch", 1.5, "--capacity", 50)
    assert made.exit_code == 0 and "is ready" in made.output
    with Bank.open(where) as bank:
        assert bank.terms.guarantee == design.guarantee and (bank.terms.epoch_s, bank.terms.capacity) == (1.5, 50)
    again = invoke("init", where, "--design", tmp_path / "road.dpfuse")
    assert again.exit_code == 1 and "has tables of these names already" in str(again.exception)


def test_show_and_verify_show_centres_and_nothing_private(make_bank):
    bank = make_bank(capacity=4)
    bank.register("north", "ledger", "place", ["main"], 0)
    boundary = bank.terms.epoch_at(bank.now()) - 9
    bank.submit(Submission("north", 1, boundary, [7777]), 0)
    assert bank.close_boundary(boundary)
    texts = [invoke(name, bank.where, *more).output for name in ("show", "verify") for more in ((), ("--json",))]
    assert (
        "for one sensor at all centres of one bank (remove-one)." in texts[0]
        and "north" in texts[0]
        and "is in order" in texts[2]
    )
    answer = json.loads(texts[1])
    assert answer["boundary"] == boundary and [own["centre"] for own in answer["centres"]] == ["north"]
    assert not any("7777" in text or str(bank.terms.budget // 8) in text for text in texts)


def test_verify_exits_with_3_for_a_bank_that_was_changed(make_bank, server, monkeypatch, capsys):
    bank = make_bank()
    server.run(f"INSERT INTO {bank.address.schema}.accounts VALUES (1, 1, 0)")
    monkeypatch.setattr(sys, "argv", ["dpfuse", "bank", "verify", bank.where])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 3 and "do not add up" in capsys.readouterr().err


def test_restore_says_when_the_bank_lends_again_and_show_that_it_was_restored(make_bank):
    bank = make_bank(guarantee=make_guarantee("individual", period="day"), capacity=4)
    assert "lends again from the next calendar day (UTC) on" in invoke("restore", bank.where).output
    boundary = json.loads(invoke("show", bank.where, "--json").output)["restored_at"]
    assert 0 <= bank.terms.epoch_at(bank.now()) + 1 - boundary < 50
    assert f"Restored at boundary {boundary}: nothing is lent in the period" in invoke("show", bank.where).output
    assert "the bank had version 4 and has version 4" in invoke("upgrade", bank.where).output
