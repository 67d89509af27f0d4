"""Everything that can be wrong with a PostgreSQL server: it is refused, and no committed row is lost."""

from __future__ import annotations

import itertools
import os
import shutil
import traceback
from contextlib import contextmanager, suppress

import numpy as np
import psycopg
import pytest

from dpfuse.errors import LedgerRefused
from dpfuse.ledger import PostgresLedger, create_ledger, verify
from dpfuse.ledger.postgres_store import Session
from support.ledger_contract import STREAMS, entry, make_ledger_design
from support.parts import mounted
from support.postgres_ledger import by_hand, either
from support.wire import wait_for


class TestServers:
    def test_a_server_that_cannot_be_reached_is_refused(self, server, tmp_path):
        for url in (
            f"postgresql://me:secret@/x?host={tmp_path}",
            server.url(database="nothing"),
            "postgresql://?bad=1",
        ):
            with pytest.raises(LedgerRefused, match="cannot be reached, or does not let this user in") as caught:
                create_ledger(url, make_ledger_design())
            assert "secret" not in "".join(traceback.format_exception(caught.value))

    def test_a_server_that_is_too_old_is_refused(self, place, monkeypatch):
        monkeypatch.setattr("dpfuse.ledger.postgres_store._OLDEST_SERVER", 10**6)
        with pytest.raises(LedgerRefused, match="is a PostgreSQL [0-9]+; a ledger needs 14 or later"):
            place.create(make_ledger_design(), STREAMS)

    def test_a_server_that_does_not_sync_is_refused(self, server, closed_ledger):
        place, design = closed_ledger
        with place.open(design) as ledger:
            server.run("ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
            try:
                wait_for(lambda: ledger._session.execute("SHOW fsync").fetchall() == [("off",)])
                with pytest.raises(LedgerRefused, match="may forget what it has committed"):
                    ledger.commit([entry(ledger, 5, weight=0.001)])
                with pytest.raises(LedgerRefused, match="may forget what it has committed; set fsync, full_page_wr"):
                    place.open(design)
            finally:
                server.run("ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()")
                wait_for(lambda: server.run("SHOW fsync") == [("on",)])
        place.open(design).close()

    def test_a_database_in_another_encoding_is_refused(self, server):
        server.run("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
        with pytest.raises(LedgerRefused, match="is a database in SQL_ASCII; create one in UTF8"):
            create_ledger(server.url(database="ascii"), make_ledger_design())

    def test_a_read_only_server_and_a_role_without_rights_are_refused(self, server, closed_ledger):
        place, design = closed_ledger
        server.run("DROP ROLE IF EXISTS reader, stiff", "CREATE ROLE reader LOGIN", "CREATE ROLE stiff LOGIN SUPERUSER")
        server.run("ALTER ROLE stiff SET default_transaction_read_only = on")
        with pytest.raises(LedgerRefused, match="takes no writes: a standby, or read-only"):
            PostgresLedger.open(place.url.replace("postgres@", "stiff@"), design)
        with pytest.raises(LedgerRefused, match="does not let this role do that"):
            PostgresLedger.open(place.url.replace("postgres@", "reader@"), design)

    def test_a_ledger_that_every_role_may_read_is_refused(self, server, closed_ledger):
        place, design = closed_ledger
        for grant in ("accounts", "commits", "releases"):
            by_hand(server, place, f"GRANT SELECT ON {grant} TO PUBLIC")
            with pytest.raises(LedgerRefused, match=f"REVOKE ALL ON ALL TABLES IN SCHEMA {place.schema} FROM PUBLIC"):
                place.open(design)
            by_hand(server, place, f"REVOKE ALL ON ALL TABLES IN SCHEMA {place.schema} FROM PUBLIC")
        place.open(design).close()

    def test_a_pool_that_moves_sessions_is_refused(self, closed_ledger):
        place, design = closed_ledger
        with place.open(design) as ledger:
            ledger._backend += 1
            with pytest.raises(LedgerRefused, match="behind a pool that moves sessions"):
                ledger.commit([entry(ledger, 5, weight=0.001)])

    def test_a_row_of_another_program_stops_the_ledger(self, server, closed_ledger):
        place, design = closed_ledger
        with place.open(design) as ledger:
            columns = "stream, 5, release, fusion_weight, cost, budget_left, hash, 3"
            by_hand(server, place, f"INSERT INTO releases SELECT {columns} FROM releases WHERE step = 4")
            with pytest.raises(LedgerRefused, match="was written to by another program"):
                ledger.commit([entry(ledger, 6, weight=0.001)])

    def test_a_ledger_is_created_once_and_completely(self, server, closed_ledger, state):
        place, design = closed_ledger
        with pytest.raises(LedgerRefused, match="holds a ledger already; open it, or choose another schema"):
            place.create(design, STREAMS)
        server.run("DROP SCHEMA IF EXISTS half CASCADE", "CREATE SCHEMA half", "CREATE TABLE half.accounts (a int)")
        heads = set(state.iterdir())
        with pytest.raises(LedgerRefused, match="has tables of these names already"):
            PostgresLedger.create(server.url("half"), design)
        assert set(state.iterdir()) == heads
        assert server.run("SELECT tablename FROM pg_tables WHERE schemaname = 'half'") == [("accounts",)]

    def test_a_forked_child_is_refused(self, closed_ledger, monkeypatch):
        place, design = closed_ledger
        with place.open(design) as ledger:
            monkeypatch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(LedgerRefused, match="was opened by another process"):
                ledger.commit([])
            monkeypatch.undo()
            ledger.commit([entry(ledger, 5, weight=0.001)])


class TestLostConnections:
    """The connection is lost during a commit."""

    @either
    @pytest.mark.parametrize("is_durable", [True, False])
    def test_a_committed_row_is_read_back_and_one_that_was_not_is_drawn_anew(
        self, server, closed_ledger, monkeypatch, is_durable
    ):
        place, design = closed_ledger
        commit_with = Session.commit_with

        def lose(session, *statements):
            if is_durable:
                commit_with(session, *statements)
            server.run(f"SELECT pg_terminate_backend({session.connection.info.backend_pid})")
            commit_with(session, *statements)

        with place.open(design) as ledger:
            monkeypatch.setattr(Session, "commit_with", lose)
            with pytest.raises(LedgerRefused, match="failed .*open the ledger again: it reads back what is there"):
                ledger.commit([entry(ledger, 5, weight=0.001)])
            monkeypatch.undo()
            with pytest.raises(LedgerRefused, match="is closed; open it again"):
                ledger.commit([entry(ledger, 5, weight=0.001)])
        with place.open(design) as ledger:
            stored = list(ledger.rows("north", 5))
            assert len(stored) == is_durable
            [row] = ledger.commit([entry(ledger, 5, weight=0.001)])
            assert stored in ([row], [])

    def test_a_commit_that_the_server_rolled_back_is_refused(self, closed_ledger, monkeypatch):
        place, design = closed_ledger
        commit_with = Session.commit_with

        def fail(session, *statements):
            with suppress(psycopg.Error):
                session.execute("SELECT 1 / 0")
            commit_with(session)

        with place.open(design) as ledger:
            monkeypatch.setattr(Session, "commit_with", fail)
            with pytest.raises(LedgerRefused, match="reads back what is there"):
                ledger.commit([entry(ledger, 5, weight=0.001)])
        monkeypatch.undo()
        assert verify(place.url).num_commits == 3


@pytest.mark.slow
def test_a_full_disk_of_the_server_loses_no_committed_row(server):
    """A database on a disk of 20 MB; what came back is there when there is room again, and nothing else."""
    with small_disk(server, 20) as disk:
        server.run(f"CREATE TABLESPACE small LOCATION '{disk}'", "CREATE DATABASE small TABLESPACE small")
        url, design, rows = server.url(database="small"), make_ledger_design("individual"), []
        try:
            with PostgresLedger.create(url, design, STREAMS) as ledger:
                padding = disk / "padding"
                with pytest.raises(LedgerRefused, match="the server's disk is full; make room") as caught:
                    for step in itertools.count(1):
                        rows += ledger.commit([entry(ledger, step, ids=np.arange(step * 200, step * 200 + 200))])
                        if step == 1:
                            fill(padding, but=200_000)
            assert rows and "full" in str(caught.value)
            padding.unlink()
            with PostgresLedger.open(url, design) as ledger:
                assert list(ledger.rows("north")) == rows
                assert len(ledger.commit([entry(ledger, 1000)])) == 1
        finally:
            server.run("DROP DATABASE small WITH (FORCE)", "DROP TABLESPACE small")


def fill(file, but):
    """Make the file as large as its disk lets it be, less some bytes."""
    with open(file, "wb", buffering=0) as padding, suppress(OSError):
        while padding.write(bytes(16384)):
            pass
    os.truncate(file, max(file.stat().st_size - but, 0))


@contextmanager
def small_disk(server, megabytes):
    with mounted(server.folder / "small", f"size={megabytes}m") as folder:
        inside = folder / "space"
        inside.mkdir()
        shutil.chown(inside, server.user)
        yield inside
    folder.rmdir()
