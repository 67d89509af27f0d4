"""The ledger in PostgreSQL: the contract, several centres, kills, and everything that can be wrong with a server."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from dpfuse import Entry, FusionCentre, Ledger, cli
from dpfuse.errors import LedgerRefused, MissingExtra
from dpfuse.ledger import (
    PostgresLedger,
    create_ledger,
    join,
    name_of,
    open_ledger,
    postgres,
    postgres_audit,
    public_rows,
    verify,
)
from dpfuse.ledger.postgres_store import Address, Session
from dpfuse.privacy import gdp_epsilon
from dpfuse.public.hub import Hub
from dpfuse.wire.http import make_app
from dpfuse.wire.intake import Intake
from dpfuse.wire.tokens import Tokens
from support.designs import make_design
from support.ledger_contract import (
    IDS,
    STREAMS,
    LedgerContract,
    charge,
    entry,
    make_terms,
    operations,
    run_against_a_model,
    spent,
)
from support.ledger_kills import DESIGN, check_published, how_far, nursery, run_kills
from support.parts import mounted
from support.postgres_server import Server
from support.wire import SECRET, Watch, call, wait_for

CANARY = 4242424242424242


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    server.remove()


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory):
    """Where head files are, for this process and its children."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFUSE_STATE", str(folder))
        yield folder


class Place:
    """Where one ledger is: a schema of the server."""

    def __init__(self, url: str) -> None:
        self.url, self.schema = url, Address.parse(url).schema

    def create(self, design, streams):
        return PostgresLedger.create(self.url, design, streams)

    def open(self, design, streams=None, **options):
        return PostgresLedger.open(self.url, design, streams, **options)


@pytest.fixture(scope="session")
def make_place(server):
    numbers = itertools.count()
    return lambda: Place(server.url(f"ledger_{next(numbers)}"))


@pytest.fixture
def place(make_place):
    return make_place()


class TestPostgres(LedgerContract):
    @settings(max_examples=8)  # a new ledger takes ten times as long as in SQLite
    @given(operations=operations)
    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_whatever_is_asked_the_budget_holds_and_rows_stay(self, make_place, accounting, operations):
        run_against_a_model(make_place(), accounting, operations)


@pytest.fixture
def kept(request, place):
    """A ledger of six rows that nobody has open, and its design; individual accounting unless `either` is asked for."""
    design = make_terms(getattr(request, "param", "individual"))
    with place.create(design, STREAMS) as ledger:
        for step in (1, 2, 4):
            ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS])
    return place, design


either = pytest.mark.parametrize("kept", ["total", "individual"], indirect=True)


@pytest.fixture
def shared(place):
    """A ledger with a centre for each stream, both open, and their one set of individual accounts."""
    design = make_terms("individual")
    place.create(design, STREAMS).close()
    with place.open(design, ["north"]) as north, place.open(design, ["south"]) as south:
        yield north, south


def refused(place, design, message):
    """Neither opened nor verified."""
    for attempt in (lambda: place.open(design), lambda: verify(place.url)):
        with pytest.raises(LedgerRefused, match=message):
            attempt()


class TestCentres:
    @either
    def test_each_stream_has_one_writer(self, kept, monkeypatch):
        place, design = kept
        monkeypatch.setattr(postgres, "_WRITER_WAIT_S", 0.05)
        with place.open(design, ["north"]) as north, place.open(design, ["south"]) as south:
            for taken in (["north"], ["south"], STREAMS):
                with pytest.raises(LedgerRefused, match=f"stream '{taken[0]}' has a writer already"):
                    place.open(design, taken)
            [first], [second] = (each.commit([entry(each, 5, each.streams[0], 0.001)]) for each in (north, south))
            assert (north.streams, south.streams) == (("north",), ("south",))
            with pytest.raises(ValueError, match="stream must be one of north, got 'south'"):
                north.rows("south").__next__()
            with pytest.raises(ValueError, match="stream must be one of north"):
                north.commit([Entry("south", 6, charge(north), IDS)])
        with place.open(design) as both:
            assert [*both.rows("north", 5), *both.rows("south", 5)] == [first, second]
        with pytest.raises(ValueError, match="streams must be one of north, south, got 'west'"):
            place.open(design, ["west"])

    def test_their_commits_are_one_chain(self, shared, place):
        for step in (1, 2, 3):
            for ledger in shared:
                ledger.commit([entry(ledger, step, ledger.streams[0], 0.001)])
        audit = verify(place.url)
        assert audit.num_commits == 6 and {story.num_rows for story in audit.streams.values()} == {3}

    def test_refresh_sees_what_the_other_one_debited(self, shared):
        north, south = shared
        north.refresh(IDS)
        north.commit([entry(north, 1, weight=0.0)])
        south.refresh(IDS)
        south.commit([entry(south, 1, "south", 0.09)])
        assert spent(north) == {}
        north.refresh(IDS)
        after = spent(north)
        assert after == dict.fromkeys([0, 7, 2**63 - 1], 94371**2)
        assert len(north.commit([entry(north, 2, weight=0.09)])) == 1  # which does not fit any more: noise alone
        assert spent(north) == after

    def test_without_refresh_a_debit_that_does_not_fit_is_refused(self, shared):
        """What `refresh` is for: the accounts in memory are behind."""
        north, south = shared
        spent(north)
        south.commit([entry(south, 1, "south", 0.09)])
        with pytest.raises(LedgerRefused, match="charged to other accounts than the ledger's"):
            north.commit([entry(north, 1, weight=0.09)])

    @pytest.mark.parametrize("end", ["commit", "refuse", "refresh", "close"])
    def test_accounts_are_held_from_refresh_to_commit(self, shared, end):
        north, south = shared
        north.refresh([7, 0, 7, -1])
        waiting = threading.Thread(target=south.refresh, args=([99, 7],))
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()  # for account 7
        if end == "commit":
            north.commit([entry(north, 1, ids=np.array([0, 7]))])
        elif end == "refuse":
            with pytest.raises(ValueError, match="step must be at least 1"):
                north.commit([entry(north, 0)])
        elif end == "refresh":
            north.refresh([5])
        else:
            north.close()
        waiting.join(120)
        assert not waiting.is_alive()
        assert south.accounts("south").accounts().get(7, 0) == (10485**2 if end == "commit" else 0)

    def test_a_step_that_was_not_committed_is_not_charged(self, shared):
        north, _ = shared
        north.refresh(IDS)
        charge(north)
        assert spent(north)
        north.refresh(IDS)
        assert spent(north) == {}

    def test_totals_need_no_refresh(self, place):
        with place.create(make_terms("total"), STREAMS) as ledger:
            ledger.refresh(IDS)
            assert not ledger._session.in_transaction

    def test_a_centre_that_hangs_is_cut_off(self, shared):
        north, south = shared
        north.refresh([7])
        north._session.execute("SET idle_in_transaction_session_timeout = 100")  # from here on it hangs
        south.refresh([7])  # waits for as long
        south.commit([entry(south, 1, "south", ids=np.array([7]))])
        with pytest.raises(LedgerRefused, match="open the ledger again: it reads back what is there"):
            north.commit([entry(north, 1, ids=np.array([7]))])

    def test_rows_in_another_thread_are_committed_ones(self, shared, monkeypatch):
        """Beside a commit that has inserted its row and not ended."""
        north, _ = shared
        seen, commit_with = [], Session.commit_with

        def slow(session, *statements):
            for statement in statements:
                session.execute(*statement)
            seen.append(session.execute("SELECT count(*) FROM releases").fetchall())
            seen.append(list(north.rows("north")))
            commit_with(session)

        monkeypatch.setattr(Session, "commit_with", slow)
        [row] = north.commit([entry(north, 1)])
        assert seen == [[(1,)], []] and list(north.rows("north")) == [row]


@contextmanager
def writing(where, published, *streams):
    """Writers at work, each in its own process; they must still be when this ends, and are then killed."""
    published.touch()
    with nursery(where, published, *streams) as writers:
        process = writers.start()
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert writers.end() == -signal.SIGKILL  # no deadlock, and nothing refused


def hammer(place, folder, num_rows):
    """Both write that many rows at least, each at its own pace."""
    place.create(DESIGN, STREAMS).close()
    deadline = time.monotonic() + 600
    with writing(place.url, folder / "north", "north"), writing(place.url, folder / "south", "south"):
        while any(len((folder / stream).read_bytes().splitlines()) < num_rows for stream in STREAMS):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for stream in STREAMS:
        check_told(folder / stream, public_rows(place.url, stream))
    return how_far(place.url)


def check_told(published, rows):
    lines = [f"{row.stream} {row.step} {row.release.hex()} {row.hash.hex()}" for row in rows]
    told = published.read_text().splitlines()
    assert told == lines[: len(told)] and len(lines) <= len(told) + 1
    assert [int(line.split()[1]) for line in lines] == [*range(1, len(lines) + 1)]  # no step was left out


def test_two_centres_at_the_same_sensors(place, tmp_path):
    """Each asks for the accounts in an order of its own."""
    hammer(place, tmp_path, 50)


@pytest.mark.parametrize("is_in_order", [True, False])
def test_nobody_waits_in_a_circle(shared, is_in_order):
    """Negative control: one centre that takes the accounts in another order."""
    ids, refusals = np.arange(300), []
    north, south = shared
    if not is_in_order:
        backwards = postgres._LOCK.replace("ORDER BY sensor", "ORDER BY sensor DESC")

        def lock_backwards(sensors):
            south._session.execute("BEGIN")
            return dict(south._session.execute(backwards, (sensors,)).fetchall())

        south._lock_those_there = lock_backwards

    def work(ledger):
        rng = np.random.default_rng()
        try:
            for step in range(1, 25 if is_in_order else 2000):
                ledger.refresh(rng.permutation(ids))
                ledger.commit([entry(ledger, step, ledger.streams[0], 1e-4, ids)])
                if refusals:
                    return
        except LedgerRefused as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=work, args=(ledger,)) for ledger in shared]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refusals) == (not is_in_order) and all("is locked by another" in refusal for refusal in refusals)


def by_hand(server, place, *statements):
    return server.run(f"SET search_path = {place.schema}", *statements)


class TestVerify:
    @either
    def test_a_ledger_in_order(self, kept):
        place, design = kept
        audit, rows = verify(place.url), list(public_rows(place.url))
        assert audit.num_commits == 3 and [(row.step, row.stream) for row in rows] == [
            (step, name) for step in (1, 2, 4) for name in STREAMS
        ]
        assert [row.step for row in public_rows(place.url, "south", 2)] == [2, 4]
        with place.open(design, is_full_check=False) as ledger:
            assert verify(place.url).tip == audit.tip  # beside a writer, too
            assert list(ledger.rows("south")) == [row for row in rows if row.stream == "south"]
        with pytest.raises(ValueError, match="stream must be one of north, south, got 'west'"):
            list(public_rows(place.url, "west"))

    @pytest.mark.parametrize(
        ("statement", "message"),
        [
            (
                "UPDATE releases SET fusion_weight = fusion_weight + 1 WHERE step = 2",
                "step 2 of stream 'north' was changed",
            ),
            ("DELETE FROM releases WHERE step = 1 AND stream = 'south'", "a row of commit 1 is missing"),
            ("UPDATE releases SET step = 3 WHERE step = 4", "step 3 of stream 'north' was changed"),
            ("UPDATE releases SET stream = 'west' WHERE stream = 'south'", "stream 'west', which is not in the ledger"),
            ("INSERT INTO commits VALUES (4, '', '0')", "a row of commit 4 is missing"),
            ("UPDATE version SET number = 1", "has ledger version 1, this dpfuse reads 2; use the dpfuse that wrote"),
            ("UPDATE terms SET content = '{}'", "has terms that cannot be read; it was changed by hand"),
            ("DROP TABLE commits", "lacks a table of the ledger; it was changed by hand"),
            ("DROP TABLE version", "holds no ledger in schema ledger_[0-9]+; a new ledger never replaces"),
        ],
    )
    def test_what_was_changed_by_hand_is_found(self, server, kept, statement, message):
        place, design = kept
        by_hand(server, place, statement)
        refused(place, design, message)

    @pytest.mark.parametrize(
        "statement", ["UPDATE accounts SET spent = spent - 1 WHERE sensor = 7", "DELETE FROM accounts WHERE sensor = 0"]
    )
    def test_an_account_that_was_lowered_or_removed_is_found(self, server, place, statement):
        design = make_terms("individual")
        with place.create(design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1)])
        by_hand(server, place, statement)
        refused(place, design, "accounts do not add up to what was debited")

    @pytest.mark.parametrize("is_full_check", [True, False])
    def test_rolled_back(self, server, place, is_full_check):
        design = make_terms("total")
        with place.create(design, STREAMS) as ledger:
            for step in (1, 2, 3):
                ledger.commit([entry(ledger, step)])
        by_hand(server, place, "DELETE FROM commits WHERE number = 3", "DELETE FROM releases WHERE step = 3")
        with pytest.raises(LedgerRefused, match="not hold the commit 3 that its head file names: it was rolled back"):
            place.open(design, is_full_check=is_full_check)
        refused(place, design, "rolled back, cut short or replaced")

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE releases SET fusion_weight = 0",
            "DELETE FROM releases",
            "TRUNCATE releases",
            "DELETE FROM commits",
            "UPDATE terms SET content = ''",
            "UPDATE version SET number = 2",
            "INSERT INTO releases SELECT stream, 3, release, fusion_weight, cost, budget_left, hash, 9 FROM releases",
            "DELETE FROM accounts",
            "TRUNCATE accounts",
            "UPDATE accounts SET spent = spent - 1",
            "UPDATE accounts SET spent = spent + 9223372036854775807 / 2",
        ],
    )
    def test_the_tables_take_no_change(self, server, kept, statement):
        place, _ = kept
        with psycopg.connect(server.url()) as connection:
            connection.execute(f"SET search_path = {place.schema}")
            with pytest.raises((psycopg.errors.IntegrityError, psycopg.errors.NumericValueOutOfRange)):
                connection.execute(statement)
        assert verify(place.url).num_commits == 3


class TestHeads:
    def test_without_one_a_host_is_refused_until_it_joins(self, kept, monkeypatch, tmp_path):
        place, design = kept
        tip = verify(place.url).tip
        monkeypatch.setenv("DPFUSE_STATE", str(tmp_path / "other host"))
        refused(place, design, r"\.head is missing, so nothing shows .* was not rolled back; .*`dpfuse ledger join`")
        with pytest.raises(LedgerRefused, match="does not hold that tip"):
            join(place.url, tip=bytes(32))
        head = join(place.url, tip=tip)
        assert head.parent == tmp_path / "other host"
        with pytest.raises(LedgerRefused, match="is there already"):
            join(place.url)
        with place.open(design) as ledger:
            ledger.commit([entry(ledger, 5, weight=0.001)])
        monkeypatch.undo()
        assert verify(place.url).num_commits == 4  # ahead of the first host's head

    def test_a_damaged_one_and_one_of_another_ledger(self, kept, make_place, state):
        place, design = kept
        with place.open(design) as ledger:
            head = state / f"{ledger.terms.ledger_id}.head"
        good = head.read_bytes()
        head.write_bytes(good[:-10])
        refused(place, design, "is damaged; put the right one back")
        with make_place().create(design, STREAMS) as other:
            head.write_bytes((state / f"{other.terms.ledger_id}.head").read_bytes())
        refused(place, design, "has the head file of another ledger")

    def test_centres_of_one_host_share_it_and_it_never_goes_back(self, shared, state):
        north, south = shared
        head = state / f"{north.terms.ledger_id}.head"
        north.commit([entry(north, 1)])
        old = north._progress.num_commits, north._progress.tip
        south.commit([entry(south, 1, "south")])
        after = head.read_bytes()
        north._advance(*old, [])  # as if it had been slow to write
        assert head.read_bytes() == after and south._progress.num_commits == 2

    def test_where_it_is(self, monkeypatch, tmp_path):
        monkeypatch.setenv("DPFUSE_STATE", str(tmp_path))
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        paths = [postgres_audit.head_path("ab"), postgres_audit.head_path("ab", "named")]
        monkeypatch.delenv("DPFUSE_STATE")
        paths.append(postgres_audit.head_path("ab"))
        monkeypatch.delenv("XDG_STATE_HOME")
        paths.append(postgres_audit.head_path("ab"))
        told = [os.path.relpath(path, tmp_path) for path in paths[:1] + paths[2:]]
        assert told == ["ab.head", "xdg/dpfuse/ab.head", "home/.local/state/dpfuse/ab.head"]
        assert paths[1] == paths[1].cwd() / "named"

    def test_a_named_one(self, place, tmp_path):
        design, head = make_terms(), tmp_path / "named.head"
        PostgresLedger.create(place.url, design, head=head).close()
        place_too = PostgresLedger.open(place.url, design, head=head)
        place_too.close()
        assert postgres_audit.verify(place.url, head).num_commits == 0
        refused(place, design, "is missing")


class TestServers:
    def test_that_are_not_there(self, server, tmp_path):
        for url in (
            f"postgresql://me:secret@/x?host={tmp_path}",
            server.url(database="nothing"),
            "postgresql://?bad=1",
        ):
            with pytest.raises(LedgerRefused, match="cannot be reached, or does not let this user in") as caught:
                create_ledger(url, make_terms())
            assert "secret" not in "".join(traceback.format_exception(caught.value))

    def test_that_are_too_old(self, place, monkeypatch):
        monkeypatch.setattr("dpfuse.ledger.postgres_store._OLDEST_SERVER", 10**6)
        with pytest.raises(LedgerRefused, match="is a PostgreSQL [0-9]+; a ledger needs 14 or later"):
            place.create(make_terms(), STREAMS)

    def test_that_do_not_sync(self, server, kept):
        place, design = kept
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

    def test_in_another_encoding(self, server):
        server.run("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0")
        with pytest.raises(LedgerRefused, match="is a database in SQL_ASCII; create one in UTF8"):
            create_ledger(server.url(database="ascii"), make_terms())

    def test_that_are_read_only_or_let_a_role_do_nothing(self, server, kept):
        place, design = kept
        server.run("DROP ROLE IF EXISTS reader, stiff", "CREATE ROLE reader LOGIN", "CREATE ROLE stiff LOGIN SUPERUSER")
        server.run("ALTER ROLE stiff SET default_transaction_read_only = on")
        with pytest.raises(LedgerRefused, match="takes no writes: a standby, or read-only"):
            PostgresLedger.open(place.url.replace("postgres@", "stiff@"), design)
        with pytest.raises(LedgerRefused, match="does not let this role do that"):
            PostgresLedger.open(place.url.replace("postgres@", "reader@"), design)

    def test_that_show_accounts_to_everybody(self, server, kept):
        place, design = kept
        for grant in ("accounts", "commits", "releases"):
            by_hand(server, place, f"GRANT SELECT ON {grant} TO PUBLIC")
            with pytest.raises(LedgerRefused, match=f"REVOKE ALL ON ALL TABLES IN SCHEMA {place.schema} FROM PUBLIC"):
                place.open(design)
            by_hand(server, place, f"REVOKE ALL ON ALL TABLES IN SCHEMA {place.schema} FROM PUBLIC")
        place.open(design).close()

    def test_that_move_sessions(self, kept):
        place, design = kept
        with place.open(design) as ledger:
            ledger._backend += 1
            with pytest.raises(LedgerRefused, match="behind a pool that moves sessions"):
                ledger.commit([entry(ledger, 5, weight=0.001)])

    def test_where_somebody_else_writes(self, server, kept):
        place, design = kept
        with place.open(design) as ledger:
            columns = "stream, 5, release, fusion_weight, cost, budget_left, hash, 3"
            by_hand(server, place, f"INSERT INTO releases SELECT {columns} FROM releases WHERE step = 4")
            with pytest.raises(LedgerRefused, match="was written to by another program"):
                ledger.commit([entry(ledger, 6, weight=0.001)])

    def test_a_ledger_is_made_once_and_whole(self, server, kept, state):
        place, design = kept
        with pytest.raises(LedgerRefused, match="holds a ledger already; open it, or choose another schema"):
            place.create(design, STREAMS)
        server.run("DROP SCHEMA IF EXISTS half CASCADE", "CREATE SCHEMA half", "CREATE TABLE half.accounts (a int)")
        heads = set(state.iterdir())
        with pytest.raises(LedgerRefused, match="has tables of these names already"):
            PostgresLedger.create(server.url("half"), design)
        assert set(state.iterdir()) == heads
        assert server.run("SELECT tablename FROM pg_tables WHERE schemaname = 'half'") == [("accounts",)]

    def test_a_forked_child_is_refused(self, kept, monkeypatch):
        place, design = kept
        with place.open(design) as ledger:
            monkeypatch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(LedgerRefused, match="was opened by another process"):
                ledger.commit([])
            monkeypatch.undo()
            ledger.commit([entry(ledger, 5, weight=0.001)])


class TestLostConnections:
    """In the middle of a commit: what is there is read back before anything is drawn."""

    @either
    @pytest.mark.parametrize("is_durable", [True, False])
    def test_around_the_commit(self, server, kept, monkeypatch, is_durable):
        place, design = kept
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

    def test_a_commit_that_says_that_it_was_rolled_back(self, kept, monkeypatch):
        place, design = kept
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


def test_a_full_disk(server):
    """A database on a disk of 20 MB; what came back is there when there is room again, and nothing else."""
    with small_disk(server, 20) as disk:
        server.run(f"CREATE TABLESPACE small LOCATION '{disk}'", "CREATE DATABASE small TABLESPACE small")
        url, design, rows = server.url(database="small"), make_terms("individual"), []
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


def test_no_error_shows_anything_private(place, server):
    """Ids and costs that would be recognised anywhere, in errors, commands and the server's log."""
    ids = np.array([CANARY, 7])
    design = make_terms("individual")
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


def test_no_other_role_sees_anything(server, kept):
    """Nobody is granted anything, not even rows: they are there before they are published."""
    place, _ = kept
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


def test_opened_by_its_address_and_created_only_if_told(place):
    design = make_terms("individual")
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


@pytest.mark.parametrize("accounting", ["individual", "total"])
def test_the_promise_of_one_centre_is_about_all_streams_of_the_ledger(place, accounting):
    """A sensor pays for what others release about it, and whoever reads all of it reads their noise too."""
    design = make_design(accounting)
    create_ledger(place.url, design, STREAMS).close()
    with open_ledger(place.url, design, ["north"]) as ledger:
        centre = FusionCentre(design, ledger)
        hub = Hub({"north": 0}, lambda stream, start: iter(()))
        app = make_app(centre, Watch(centre, hub), hub, Intake(centre, Tokens(SECRET)))
        promise = call(app, "GET", "/v1/guarantee").json()
    assert (promise["streams"], promise["streams_in_ledger"]) == (["north"], 2)
    if accounting == "individual":
        assert promise["epsilon"]["gdp"] == gdp_epsilon(2.0, 1.5, 1e-5, 6 * 2 * 2)
    else:
        assert any("a sensor in all 2 streams has 2 budgets" in sentence for sentence in promise["in_words"])
        assert "everything that one stream ever publishes" in promise["in_words"][0]


def test_a_schema_may_have_the_name_of_a_keyword(server):
    with create_ledger(server.url("order"), make_terms()) as ledger:
        ledger.commit([entry(ledger, 1, "main")])
    assert verify(server.url("order")).num_commits == 1


def test_an_address_is_shown_without_who_and_how():
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
        place.create(make_terms(), STREAMS)


class TestCommands:
    def invoke(self, *arguments):
        return CliRunner().invoke(cli.app, ["ledger", *map(str, arguments)], env={"COLUMNS": "100"})

    @either
    def test_verify_and_show(self, kept):
        place, design = kept
        where = place.url.replace("postgres@", "postgres:secret@")
        told = self.invoke("verify", where).output
        assert "is in order: 6 rows in 3 commits" in told and "secret" not in told
        answer = json.loads(self.invoke("show", where, "--json").output)
        assert answer["design"] == design.fingerprint and "secret" not in answer["file"]
        lines = self.invoke("show", where, "--rows", "--stream", "south", "--start", 2).output.splitlines()
        assert [json.loads(line) for line in lines] == [row.to_dict() for row in public_rows(where, "south", 2)]

    def test_create_and_join(self, place, tmp_path, monkeypatch):
        make_design("individual").save(tmp_path / "a.dpfuse")
        made = self.invoke("create", place.url, "--design", tmp_path / "a.dpfuse", "--stream", "a", "--stream", "b")
        assert "is ready for 2 streams" in made.output, made
        tip = json.loads(self.invoke("verify", place.url, "--json").output)["tip"]
        monkeypatch.setenv("DPFUSE_STATE", str(tmp_path / "other"))
        assert "this host may write to" in self.invoke("join", place.url, "--tip", tip).output
        path = tmp_path / "a.db"
        assert "ready for 1 streams" in self.invoke("create", path, "--design", tmp_path / "a.dpfuse").output
        assert Ledger.open(path, make_design("individual")).close() is None


def test_kills_lose_no_release_and_no_debit(place, tmp_path):
    last_step, _ = run_kills(place.url, tmp_path / "published", num_kills=4, longest_s=0.3, seed=0)
    assert last_step >= 2


@pytest.mark.slow
def test_three_hundred_kills(place, tmp_path):
    last_step, share = run_kills(place.url, tmp_path / "published", num_kills=300, longest_s=0.25, seed=1)
    assert last_step > 300 and share > 0.5


@pytest.mark.slow
def test_two_centres_to_the_end_of_the_budget_and_past_it(place, tmp_path):
    _, share = hammer(place, tmp_path, 1000)
    assert share > 0.95


@pytest.mark.slow
def test_kills_of_the_whole_server(tmp_path):
    """Writer and server are both gone in a moment; the writer says so, and the next one goes on."""
    server = Server()
    try:
        where, published, rng = server.url(), tmp_path / "published", np.random.default_rng(2)
        create_ledger(where, DESIGN, STREAMS).close()
        published.touch()
        with nursery(where, published) as writers:
            for kill in range(20):
                before = published.stat().st_size
                writers.start()
                if kill % 2:  # of the others some are killed while they start
                    wait_for(lambda before=before: published.stat().st_size > before)
                time.sleep(rng.uniform(0, 0.6))
                server.kill()
                assert writers.end() == 1  # stopped by itself, as the ledger was lost
                server.start()
                check_published(where, published)
        assert how_far(where)[0] > 5
    finally:
        server.remove()


@pytest.mark.slow
def test_a_server_restored_from_a_backup(tmp_path):
    """Files of the server as they were: what was committed since is gone, and that is noticed."""
    server = Server()
    try:
        design, where = make_terms("individual"), server.url()
        with PostgresLedger.create(where, design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1)])
        server.stop()
        shutil.copytree(server.data, tmp_path / "backup", symlinks=True)
        server.start()
        with PostgresLedger.open(where, design) as ledger:
            ledger.commit([entry(ledger, 2)])
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "backup", server.data, symlinks=True)
        if server.user:
            subprocess.run(["chown", "-R", server.user, server.data], check=True)
        server.data.chmod(0o700)
        server.start()
        with pytest.raises(LedgerRefused, match="not hold the commit 2 that its head file names: it was rolled back"):
            PostgresLedger.open(where, design)
    finally:
        server.remove()
