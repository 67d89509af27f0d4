"""A ledger in PostgreSQL keeps the contract of all ledgers, opens by its address, and shows nothing private."""

from __future__ import annotations

import json
import sys
import traceback

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from dpfuse import Entry, Ledger, cli
from dpfuse.errors import LedgerRefused, MissingExtra
from dpfuse.ledger import create_ledger, name_of, open_ledger, public_rows, verify
from dpfuse.ledger.postgres_store import Address
from support.designs import make_design
from support.ledger_contract import (
    STREAMS,
    LedgerContract,
    charge,
    entry,
    make_ledger_design,
    operations,
    run_against_a_model,
)
from support.postgres_ledger import by_hand, either

CANARY = 4242424242424242


class TestPostgres(LedgerContract):
    @settings(max_examples=8)  # a new ledger takes ten times as long as in SQLite
    @given(operations=operations)
    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_the_budget_holds_and_rows_stay_for_any_sequence_of_calls(self, make_place, accounting, operations):
        run_against_a_model(make_place(), accounting, operations)


def test_open_ledger_never_creates_a_ledger(place):
    design = make_ledger_design("individual")
    with pytest.raises(
        LedgerRefused, match="holds no ledger in schema .* `dpfuse ledger create`, `dpfuse serve --new`"
    ):
        open_ledger(place.url, design)
    with create_ledger(place.url, design, STREAMS) as ledger:
        assert isinstance(ledger, Ledger)
        [row] = ledger.commit([entry(ledger, 1)])
    with pytest.raises(LedgerRefused, match="holds a ledger already; open it"):
        create_ledger(place.url, design, STREAMS)
    with open_ledger(place.url, design, ["north"]) as ledger:
        assert ledger.streams == ("north",) and list(ledger.rows("north")) == [row]


def test_a_schema_may_be_named_like_a_keyword(server):
    with create_ledger(server.url("order"), make_ledger_design()) as ledger:
        ledger.commit([entry(ledger, 1, "main")])
    assert verify(server.url("order")).num_commits == 1


def test_an_address_is_shown_without_user_and_password():
    where = "postgresql://me:secret@db.example:5433/road?password=other&sslmode=verify-full&schema=north"
    address = Address.parse(where)
    assert name_of(where) == str(address) == "postgresql://db.example:5433/road?schema=north"
    assert "secret" not in repr(address) and "secret" in address.url and "schema" not in address.url
    assert Address.parse("postgres:///road?host=/run/x").url == "postgresql:///road?host=%2Frun%2Fx"
    with pytest.raises(ValueError, match="schema must be lower-case letters, digits and _"):
        Address.parse("postgresql:///road?schema=a;b")


def test_a_missing_extra_names_the_line_that_installs_it(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"needs psycopg: pip install 'dpfuse\[postgres\]'"):
        place.create(make_ledger_design(), STREAMS)


def test_no_error_shows_anything_private(place, server):
    """Ids and costs that would be recognised anywhere, in errors, commands and the server's log."""
    ids = np.array([CANARY, 7])
    design = make_ledger_design("individual")
    ledger = place.create(design, STREAMS)
    mechanism = ledger.terms.mechanism
    charged = charge(ledger, weight=0.09, ids=ids)
    cost = int(charged.debits[0])
    ledger.commit([Entry("north", 1, charged, ids)])
    other = mechanism.charge(mechanism.open_accounts(), 0.09, ids, np.full((2, 2), 0.06))
    with pytest.raises(LedgerRefused, match="other accounts") as caught:
        ledger.commit([Entry("north", 2, other, ids)])
    texts = [
        "".join(traceback.format_exception(caught.value)),
        repr(ledger),
        repr(caught.value),
        server.log.read_text(),
    ]
    texts += [
        CliRunner().invoke(cli.app, ["ledger", *words, place.url]).output for words in (["show"], ["show", "--rows"])
    ]
    text = "\n".join(texts)
    assert "Guarantee: (" in text and str(CANARY) not in text and str(cost) not in text
    by_hand(server, place, f"UPDATE accounts SET spent = spent WHERE sensor = {CANARY}", "SELECT 1")


def test_no_other_role_may_read_anything(server, closed_ledger):
    """Not even rows, which are in the ledger before they are published."""
    place, _ = closed_ledger
    server.run("DROP ROLE IF EXISTS stranger", "CREATE ROLE stranger LOGIN")
    theirs = place.url.replace("postgres@", "stranger@")
    for read in (lambda: list(public_rows(theirs)), lambda: verify(theirs)):
        with pytest.raises(LedgerRefused, match="does not let this role do that; use the role that created the ledger"):
            read()
    query = """SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = %s AND (
        has_schema_privilege('stranger', schemaname, 'USAGE')
        OR has_table_privilege('stranger', format('%%I.%%I', schemaname, tablename), 'SELECT'))"""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        assert connection.execute(query, (place.schema,)).fetchall() == [(0,)]
    assert CliRunner().invoke(cli.app, ["ledger", "grant", place.url, "stranger"]).exit_code == 2
    server.run("DROP ROLE stranger")


class TestCommands:
    def invoke(self, *arguments):
        return CliRunner().invoke(cli.app, ["ledger", *map(str, arguments)], env={"COLUMNS": "100"})

    @either
    def test_verify_and_show_take_an_address_and_hide_the_password(self, closed_ledger):
        place, design = closed_ledger
        where = place.url.replace("postgres@", "postgres:secret@")
        printed = self.invoke("verify", where).output
        assert "is in order: 6 rows in 3 commits" in printed and "secret" not in printed
        answer = json.loads(self.invoke("show", where, "--json").output)
        assert answer["design"] == design.fingerprint and "secret" not in answer["file"]
        lines = self.invoke("show", where, "--rows", "--stream", "south", "--start", 2).output.splitlines()
        assert [json.loads(line) for line in lines] == [row.to_dict() for row in public_rows(where, "south", 2)]

    def test_create_and_join_prepare_a_ledger_and_a_host(self, place, tmp_path, monkeypatch):
        make_design("individual").save(tmp_path / "a.dpfuse")
        made = self.invoke("create", place.url, "--design", tmp_path / "a.dpfuse", "--stream", "a", "--stream", "b")
        assert "is ready for 2 streams" in made.output, made
        tip = json.loads(self.invoke("verify", place.url, "--json").output)["tip"]
        monkeypatch.setenv("DPFUSE_STATE", str(tmp_path / "other"))
        assert "this host may write to" in self.invoke("join", place.url, "--tip", tip).output
        path = tmp_path / "a.db"
        assert "ready for 1 streams" in self.invoke("create", path, "--design", tmp_path / "a.dpfuse").output
        assert Ledger.open(path, make_design("individual")).close() is None
