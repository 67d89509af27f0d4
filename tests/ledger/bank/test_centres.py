"""Real centres that share sensors and a real bank: stops, kills and outages delay nobody, and every budget is kept."""

from __future__ import annotations

import json
import signal
import time
from contextlib import ExitStack

import pytest

from support.bank_centres import EPOCH_S, INTERVAL_S, BankSite, TimedSubscriber, check_budgets
from support.bank_kills import KilledFleet, run_kills
from support.designs import make_design
from support.live_centre import SENSORS, Sensors
from support.wire import get, wait_for

pytestmark = pytest.mark.slow

# A release is late by less than this on a busy machine; a hung bank or centre would hold it up for seconds.
LATE_S = 1.0


@pytest.fixture
def bank(make_bank):
    guarantee = make_design("individual", budget=0.2).guarantee
    return make_bank(guarantee=guarantee, epoch_s=EPOCH_S, patience=20, capacity=50)


class Elsewhere(BankSite):
    """A centre that shares no sensor with the others."""

    sensors = range(100, 130)


class Fleet:
    """Centres with sensors and subscribers, all running."""

    def __init__(self, stack: ExitStack, *sites: BankSite) -> None:
        self.sites = sites
        self.centres = [stack.enter_context(site.start()) for site in self.sites]
        for centre in self.centres:
            centre.wait_until_up()
        for site in self.sites:
            stack.enter_context(Sensors(site))
        self.subscribers = [stack.enter_context(TimedSubscriber(site)) for site in self.sites]

    def last_steps(self):
        return [max(own.received, default=0) for own in self.subscribers]

    def wait_for_steps(self, num: int) -> None:
        before = self.last_steps()
        wait_for(lambda: all(now >= was + num for now, was in zip(self.last_steps(), before, strict=True)))


def test_a_centre_that_is_suspended_in_the_middle_of_a_boundary_delays_nobody(tmp_path, bank):
    shared = [BankSite(tmp_path, name, bank) for name in "ab"]
    with ExitStack() as stack:
        fleet = Fleet(stack, *shared, Elsewhere(tmp_path, "c", bank))
        fleet.wait_for_steps(20)
        assert "over all centres of one bank" in get(f"{fleet.sites[0].reading_url}/v1/guarantee").text
        # Once before the deadline of a boundary and once after it: one that shares all its sensors, and one that shares
        # none.
        for number, pause_s in ((0, 0.0), (0, 0.3), (2, 0.0), (2, 0.3)):
            stopped = fleet.centres[number].process
            now = time.time()
            time.sleep(EPOCH_S - now % EPOCH_S + 0.35 + pause_s)
            begin = time.monotonic()
            stopped.send_signal(signal.SIGSTOP)
            time.sleep(4 * EPOCH_S)
            stopped.send_signal(signal.SIGCONT)
            others = [own for place, own in enumerate(fleet.subscribers) if place != number]
            assert all(own.longest_gap(begin) < INTERVAL_S + LATE_S for own in others)
        # The test can see a gap.
        assert all(fleet.subscribers[number].longest_gap(0) > 3 * EPOCH_S for number in (0, 2))
        fleet.wait_for_steps(10)  # all go on, also those that were stopped
        for centre in fleet.centres:
            assert centre.stop() == 0 and centre.errors == ""
    spent = check_budgets(fleet.sites, bank)
    assert all(spent[sensor] > 0 for sensor in (*SENSORS, *Elsewhere.sensors))


def test_centres_go_on_releasing_while_the_bank_is_down_and_spend_again_afterwards(tmp_path, bank, server):
    with ExitStack() as stack:
        fleet = Fleet(stack, *(BankSite(tmp_path, name, bank) for name in "ab"))
        fleet.wait_for_steps(10)
        begin = time.monotonic()
        server.kill()
        time.sleep(4)
        spent = [sum(site.spent().values()) for site in fleet.sites]
        time.sleep(1)
        assert [sum(site.spent().values()) for site in fleet.sites] == spent  # nothing that was not lent
        server.start()
        fleet.wait_for_steps(30)
        assert all(own.longest_gap(begin) < INTERVAL_S + LATE_S for own in fleet.subscribers)
        # How soon depends on which boundaries a busy machine makes.
        wait_for(lambda: all(sum(site.spent().values()) > was for site, was in zip(fleet.sites, spent, strict=True)))
        for centre in fleet.centres:
            assert centre.stop() == 0
            assert centre.errors.count("trying again") == centre.errors.count("answers again") == 1
            assert centre.errors.count("\n") == 2
    bank.close()
    with type(bank).open(bank.where) as again:
        check_budgets(fleet.sites, again)


def test_every_budget_is_kept_through_kills_of_centres_of_the_bank_of_everything_and_lost_disks(tmp_path, server):
    done = run_kills(tmp_path, server, "kills", 7, centre=15, postgres=3, everything=2, disk=2)
    assert done["largest_share_spent"] > 0.3 and done["loans_forfeited"]  # what was killed was spending


def test_a_debit_that_is_doubled_or_a_statement_that_the_bank_drops_is_found(tmp_path, server):
    with ExitStack() as stack:
        fleet = KilledFleet(stack, tmp_path, server, "dropped", 3)
        fleet.end()
        sites = fleet.all_sites()
        with fleet.bank() as bank:
            record = sites[0].record
            kept = record.read_text()
            kinds, steps, loan, debits = next(
                found
                for line in reversed(kept.splitlines())
                if line and (found := json.loads(line))[0] == "steps" and any(found[-1].values())
            )
            doubled = {sensor: 2 * cost for sensor, cost in debits.items()}
            record.write_text(f"{kept}{json.dumps([kinds, steps, loan, doubled])}\n")
            with pytest.raises(AssertionError):
                check_budgets(sites, bank)
            record.write_text(kept)
            check_budgets(sites, bank)
            dropped = "UPDATE accounts SET spent = 0; UPDATE closings SET spent = 0"
            bank._connection.execute(dropped)
            bank.verify()  # the bank's own check cannot know it
            with pytest.raises(AssertionError, match="every loan once"):
                check_budgets(sites, bank)
