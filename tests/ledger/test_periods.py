"""Periods in a ledger: accounts end with them, and restores charge the period in which they happen."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import apsw
import numpy as np
import pytest
from typer.testing import CliRunner

from dpfuse import Ledger, cli
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import public_rows, restore, upgrade, verify
from dpfuse.public.rows import read_row, release_message
from support.ledger_contract import STREAMS, entry, make_ledger_design, spent
from support.ledger_files import edit, refused
from support.restores import Site

DAY_S = 86_400


def make_periodic(accounting="individual", **options):
    design = make_ledger_design(accounting, **options)
    design.guarantee = replace(design.guarantee, period="day")
    return design


@pytest.fixture(params=["total", "individual"])
def design(request):
    return make_periodic(request.param)


def test_a_step_before_the_first_period_is_refused(place, design):
    with place.create(design, STREAMS) as ledger, pytest.raises(LedgerRefused, match="call `begin_period` before"):
        ledger.commit([entry(ledger, 1)])


def test_a_ledger_without_periods_has_none_to_begin(place):
    with place.create(make_ledger_design(), STREAMS) as ledger, pytest.raises(ValueError, match="has a period"):
        ledger.begin_period(3)


def test_accounts_of_past_periods_are_deleted_and_the_chain_goes_on(place, design):
    with place.create(design, STREAMS) as ledger:
        for day in (10, 11, 13):
            ledger.begin_period(day)
            ledger.begin_period(day)  # nothing happens
            for step in (1, 2):
                ledger.commit([entry(ledger, day * 10 + step, name, weight=0.05) for name in STREAMS])
        tip = ledger.found.tip
        accounts = {} if ledger.terms.is_total else spent(ledger)
    found = verify(place.path)
    assert (found.period, found.num_commits, found.tip) == (13, 9, tip)
    assert [row.period for row in public_rows(place.path, "north")] == [10, 10, 11, 11, 13, 13]
    with place.open(design) as ledger:
        assert ledger.period == 13
        if not ledger.terms.is_total:
            assert spent(ledger) == accounts
        ledger.begin_period(14)
        with contextlib.closing(apsw.Connection(str(place.path))) as connection:
            assert connection.execute("SELECT count(*) FROM accounts").fetchall() == [(0,)]
        assert ledger.spent_of(np.array([7])).tolist() == [0]


def test_a_crash_right_after_a_boundary_is_read_back(place, design):
    with place.create(design, STREAMS) as ledger:
        ledger.begin_period(3)
        ledger.commit([entry(ledger, 1, weight=0.05)])
        ledger.begin_period(4)
        ledger._close_files()  # no seal, as after a kill
    with place.open(design) as ledger:
        assert ledger.period == 4
        left = ledger.accounts("north").left if ledger.terms.is_total else ledger.accounts("north").left([7])[0]
        assert left == ledger.terms.mechanism.budget


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE releases SET period = 9 WHERE step = 2",
        "UPDATE events SET content = '9' WHERE kind = 'period'",
        "DELETE FROM events WHERE kind = 'period'",
    ],
)
def test_a_period_that_was_changed_by_hand_is_found(place, design, change):
    with place.create(design, STREAMS) as ledger:
        ledger.begin_period(3)
        for step in (1, 2):
            ledger.commit([entry(ledger, step, weight=0.01)])
    edit(place.path, change)
    refused(place.path, design, "was changed|is missing|size, cost or period|was added or moved")


def test_an_upgrade_cannot_change_the_period(place):
    place.create(make_periodic(), STREAMS).close()
    with pytest.raises(LedgerRefused, match="keeps accounts for period day, and the design has period None"):
        upgrade(place.path, make_ledger_design("individual", fingerprint="b" * 64))


def test_a_message_names_its_period_and_has_a_fixed_width(place):
    with place.create(make_periodic(), STREAMS) as ledger:
        messages = []
        for day in (3, 20_000):
            ledger.begin_period(day)
            [row] = ledger.commit([entry(ledger, day)])
            messages.append(release_message(row))
            assert read_row(row.to_dict(), 2, None) == row
    assert len({len(message.content) for message in messages}) == 1


class PeriodicSite(Site):
    """A site whose ledger has a budget for each day."""

    def open(self):
        ledger = Ledger.open(self.path, self.design)
        ledger.begin_period(self.day)
        return ledger

    def __init__(self, folder, design):
        self.day = 100
        super().__init__(folder, design)


@pytest.mark.parametrize("days_later", [0, 1])
def test_a_restore_without_a_witness_leaves_nothing_in_its_own_period_alone(tmp_path, design, days_later):
    site = PeriodicSite(tmp_path, design)
    site.step()
    site.back_up()
    site.step()
    site.lose()
    day = site.day + days_later
    found, restored = restore(site.backups[-1], site.path, last_step=2, now_s=(day + 0.5) * DAY_S)
    assert (found.period, restored.charge) == (day, site.budget)
    with Ledger.open(site.path, design) as ledger:
        for today, left in ((day, 0), (day + 1, site.budget)):
            ledger.begin_period(today)
            accounts = ledger.accounts("north")
            assert (accounts.left if ledger.terms.is_total else accounts.left([12345])[0]) == left


def test_a_witness_bounds_what_was_lost_in_the_period_of_the_restore(tmp_path):
    design = make_periodic("individual")
    site = PeriodicSite(tmp_path, design)
    site.step()
    site.back_up()
    site.step()
    site.day += 1
    site.step(weight=0.03)
    site.lose()
    how = {"witness": site.rows_file, "public_key": site.public_key}
    found, restored = restore(site.backups[-1], site.path, **how, now_s=(site.day + 0.5) * DAY_S)
    with Ledger.open(site.path, design) as ledger:
        of_step = ledger.terms.mechanism.largest_cost(max(row.fusion_weight for row in public_rows(site.path, start=3)))
    assert (found.period, restored.charge) == (site.day, len(STREAMS) * of_step)  # not the lost step of the day before


def test_the_command_line_shows_the_period_in_progress(place, design):
    with place.create(design, STREAMS) as ledger:
        ledger.begin_period(20_000)
    shown = CliRunner().invoke(cli.app, ["ledger", "show", str(place.path)])
    assert "Period in progress: number 20000" in shown.output and "renewed with every calendar day" in shown.output
    assert (
        json.loads(CliRunner().invoke(cli.app, ["ledger", "show", str(place.path), "--json"]).output)["period"]
        == 20_000
    )
