"""The hub: what it shows and when, from memory or ledger, and how subscribers wait."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.public import hub as hub_module
from dpfuse.public.hub import Hub
from dpfuse.public.rows import release_message
from support.rows import make_row


class FakeLedger:
    """Committed rows, published or not."""

    def __init__(self, last=0):
        self.rows = [make_row(step=step) for step in range(1, last + 1)]
        self.reads = 0

    def read(self, stream, start):
        self.reads += 1
        return iter([release_message(row) for row in self.rows if row.step >= start])

    def commit(self, step):
        self.rows.append(make_row(step=step))
        return SimpleNamespace(row=self.rows[-1], mean=(float(step),), std=(1.0,))


@pytest.fixture
def ledger():
    return FakeLedger(last=3)


@pytest.fixture
def hub(ledger):
    return Hub({"main": 3}, ledger.read)


@given(st.sets(st.integers(4, 60)), st.integers(0, 70), st.integers(0, 70))
def test_missing_steps_are_those_without_a_release_since_the_first_one_that_is_remembered(steps, start, end):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "num_in_memory", lambda num_streams: 20)
        hub, ledger = Hub({"main": 3}, iter), FakeLedger()
    for step in sorted(steps):
        hub.publish([ledger.commit(step)])
    first = sorted(steps)[-21] + 1 if len(steps) > 20 else 4
    assert hub.num_missing("main", start, end) == len(set(range(max(start, first), end)) - steps)


def test_rows_committed_before_the_start_are_shown_at_once(hub):
    assert [message.step for message in hub.messages("main")] == [1, 2, 3]
    assert hub.last_step("main") == 3 and hub.recent("main") == []


def test_a_committed_row_is_not_shown_before_it_is_published(hub, ledger):
    waiting = ledger.commit(4)
    assert [message.step for message in hub.messages("main")] == [1, 2, 3]
    assert hub.messages("main", 4) == [] and hub.last_step("main") == 3
    hub.publish([waiting])
    assert [message.step for message in hub.messages("main")] == [1, 2, 3, 4]
    assert hub.messages("main", 4) == [release_message(waiting.row)] and hub.recent("main") == [waiting]


@given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 80), st.integers(1, 9))
def test_pages_from_memory_or_ledger_are_the_published_rows(gaps, start, limit):
    """Steps may be skipped. Memory holds 16 rows here, so that long runs are read from both."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_module, "_MAX_KEPT", 16)
        ledger = FakeLedger(last=3)
        hub = Hub({"main": 3}, ledger.read)
        for step in itertools.accumulate(gaps, initial=3):
            if step > 3:
                hub.publish([ledger.commit(step)])
        expected = [release_message(row) for row in ledger.rows if row.step >= start]
        assert hub.messages("main", start, limit) == expected[:limit]
        if hub.recent("main"):
            ledger.reads = 0
            assert hub.messages("main", hub.recent("main")[0].row.step)
            assert ledger.reads == 0


def test_the_number_of_releases_in_memory_depends_on_the_number_of_streams_alone():
    ledger = FakeLedger()
    for num_streams, kept in [(1, 4096), (64, 1024), (10_000, 16)]:
        hub = Hub({"main": 0} | {f"s{number}": 0 for number in range(1, num_streams)}, ledger.read)
        for step in range(1, kept + 10):
            hub.publish([SimpleNamespace(row=make_row(step=step), mean=(), std=())])
        assert len(hub.recent("main")) == kept


def test_a_waiting_thread_wakes_up_when_something_is_published(hub, ledger):
    number = hub.number
    threading.Timer(0.05, lambda: hub.publish([ledger.commit(4)])).start()
    start = time.monotonic()
    hub.wait(number, 120)
    assert time.monotonic() - start < 60 and hub.last_step("main") == 4
    hub.wait(number, 120)  # it was published already
    hub.wait(hub.number, 0.01)  # nothing comes


def test_waiting_event_loops_wake_up_and_block_nobody(hub, ledger):
    async def follow():
        number = hub.number
        threading.Timer(0.05, lambda: hub.publish([ledger.commit(4)])).start()
        start = time.monotonic()
        await asyncio.gather(*(hub.wait_async(number, 120) for _ in range(100)))
        await hub.wait_async(number, 120)
        assert time.monotonic() - start < 60
        await hub.wait_async(hub.number, 0.02)
        assert hub._waiting == {}

    asyncio.run(follow())
    assert hub.last_step("main") == 4
    hub.publish([ledger.commit(5)])  # the loop is closed


def test_closing_the_hub_wakes_all_who_wait(hub):
    number = hub.number
    threading.Timer(0.05, hub.close).start()
    start = time.monotonic()
    hub.wait(number, 120)
    assert hub.is_closed
    asyncio.run(hub.wait_async(hub.number, 120))
    assert time.monotonic() - start < 60
