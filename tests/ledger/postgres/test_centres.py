"""Several centres write to one ledger in PostgreSQL and debit the same accounts."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from dpfuse import Entry, FusionCentre
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import create_ledger, open_ledger, postgres, public_rows, verify
from dpfuse.ledger.postgres_store import Session
from dpfuse.privacy import gdp_epsilon
from dpfuse.public.hub import Hub
from dpfuse.wire.http import make_app
from dpfuse.wire.intake import Intake
from dpfuse.wire.tokens import Tokens
from support.designs import make_design
from support.ledger_contract import IDS, STREAMS, charge, entry, make_ledger_design, spent
from support.ledger_kills import DESIGN, how_far, nursery
from support.postgres_ledger import either
from support.wire import SECRET, Watch, call


@either
def test_each_stream_has_one_writer(closed_ledger, monkeypatch):
    place, design = closed_ledger
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


def test_commits_of_all_centres_form_one_chain(shared, place):
    for step in (1, 2, 3):
        for ledger in shared:
            ledger.commit([entry(ledger, step, ledger.streams[0], 0.001)])
    found = verify(place.url)
    assert found.num_commits == 6 and {stream.num_rows for stream in found.streams.values()} == {3}


def test_refresh_reads_what_another_centre_debited(shared):
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


def test_without_refresh_a_debit_that_does_not_fit_is_refused(shared):
    """What `refresh` is for: the accounts in memory are behind."""
    north, south = shared
    spent(north)
    south.commit([entry(south, 1, "south", 0.09)])
    with pytest.raises(LedgerRefused, match="charged to other accounts than the ledger's"):
        north.commit([entry(north, 1, weight=0.09)])


@pytest.mark.parametrize("end", ["commit", "refuse", "refresh", "close"])
def test_accounts_are_locked_from_refresh_to_commit(shared, end):
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


def test_a_step_that_was_not_committed_is_not_charged(shared):
    north, _ = shared
    north.refresh(IDS)
    charge(north)
    assert spent(north)
    north.refresh(IDS)
    assert spent(north) == {}


def test_refresh_locks_nothing_in_total_accounting(place):
    with place.create(make_ledger_design("total"), STREAMS) as ledger:
        ledger.refresh(IDS)
        assert not ledger._session.in_transaction


def test_the_server_ends_the_session_of_a_centre_that_hangs(shared):
    north, south = shared
    north.refresh([7])
    north._session.execute("SET idle_in_transaction_session_timeout = 100")  # from here on it hangs
    south.refresh([7])  # waits for as long
    south.commit([entry(south, 1, "south", ids=np.array([7]))])
    with pytest.raises(LedgerRefused, match="open the ledger again: it reads back what is there"):
        north.commit([entry(north, 1, ids=np.array([7]))])


def test_another_thread_reads_committed_rows_only(shared, monkeypatch):
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


@pytest.mark.parametrize("is_in_order", [True, False])
def test_centres_wait_in_a_circle_only_if_one_locks_in_another_order(shared, is_in_order):
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


@pytest.mark.parametrize("accounting", ["individual", "total"])
def test_the_guarantee_of_one_centre_covers_all_streams_of_the_ledger(place, accounting):
    """A sensor pays for the releases of other centres, too, and a reader of all streams sees all their noise."""
    design = make_design(accounting)
    create_ledger(place.url, design, STREAMS).close()
    with open_ledger(place.url, design, ["north"]) as ledger:
        centre = FusionCentre(design, ledger)
        hub = Hub({"north": 0}, lambda stream, start: iter(()))
        app = make_app(centre, Watch(centre, hub), hub, Intake(centre, Tokens(SECRET)))
        guarantee = call(app, "GET", "/v1/guarantee").json()
    assert (guarantee["streams"], guarantee["streams_in_ledger"]) == (["north"], 2)
    if accounting == "individual":
        assert guarantee["epsilon"]["gdp"] == gdp_epsilon(2.0, 1.5, 1e-5, 6 * 2 * 2)
    else:
        assert any("a sensor in all 2 streams has 2 budgets" in sentence for sentence in guarantee["in_words"])
        assert "everything that one stream ever publishes" in guarantee["in_words"][0]


@pytest.mark.slow
def test_two_centres_spend_the_whole_budget_and_never_more(place, tmp_path):
    """In two processes, each of which locks the accounts of the same sensors in an order of its own."""
    place.create(DESIGN, STREAMS).close()
    deadline = time.monotonic() + 600
    with writing(place.url, tmp_path / "north", "north"), writing(place.url, tmp_path / "south", "south"):
        while any(len((tmp_path / stream).read_bytes().splitlines()) < 1000 for stream in STREAMS):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    for stream in STREAMS:
        rows = public_rows(place.url, stream)
        lines = [f"{row.stream} {row.step} {row.release.hex()} {row.hash.hex()}" for row in rows]
        published = (tmp_path / stream).read_text().splitlines()
        assert published == lines[: len(published)] and len(lines) <= len(published) + 1
        assert [int(line.split()[1]) for line in lines] == [*range(1, len(lines) + 1)]  # no step was left out
    _, share = how_far(place.url)
    assert share > 0.95
