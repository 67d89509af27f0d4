"""A long ledger is checked in full while its centre runs; one that is not in order ends the centre."""

from __future__ import annotations

import threading

import pytest

from dpfuse import Ledger
from dpfuse.errors import LedgerRefused
from dpfuse.wire import background_check
from dpfuse.wire.background_check import BackgroundCheck, is_checked_at_start
from support.ledger_contract import entry, make_ledger_design
from support.ledger_files import edit


@pytest.fixture
def ledger(tmp_path):
    design = make_ledger_design("individual")
    with Ledger.create(tmp_path / "a.db", design) as ledger:
        for step in range(1, 40):
            ledger.commit([entry(ledger, step, "main", weight=0.001)])
            ledger.checkpoint()
    return ledger.path, design


def check(path):
    found, done = [], threading.Event()

    class Watched(BackgroundCheck):
        def _wait(self):
            super()._wait()
            done.set()

    Watched(path, found.append)
    assert done.wait(60)
    return found


def test_a_row_of_long_ago_that_was_changed_is_found_in_the_background(ledger):
    path, design = ledger
    assert check(path) == []
    edit(path, "UPDATE releases SET fusion_weight = 0 WHERE step = 3")
    Ledger.open(path, design, is_full_check=False).close()  # the rows since the last seal are in order
    [error] = check(path)
    assert isinstance(error, LedgerRefused) and "step 3 of stream 'main' was changed" in str(error)


def test_a_check_that_is_stopped_reports_nothing(ledger):
    found = []
    BackgroundCheck(ledger[0], found.append).stop()
    assert found == []


def test_a_short_ledger_is_checked_at_the_start(ledger, monkeypatch):
    assert is_checked_at_start(ledger[0])
    monkeypatch.setattr(background_check, "CHECKED_AT_START", 1000)
    assert not is_checked_at_start(ledger[0])
