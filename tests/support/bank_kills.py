"""Centres that share sensors and a bank, killed at random moments in every way, and what must hold afterwards."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse.ledger.bank.bank import Bank
from support.bank_centres import EPOCH_S, BankSite, LoanKey, check_budgets, loans_at
from support.designs import make_design
from support.live_centre import Centre, Sensors, centre_environment
from support.postgres_server import Server
from support.preloaded import Preloaded
from support.wire import wait_for

_PATIENCE = 5
_BANK_LINES = "trying again", "answers again"


class ShortStay(BankSite):
    """Sensors that stay for a short time spend most of their budget soon; without readers a centre is up sooner."""

    expected_stay, has_relay = 8.0, False


class KilledFleet:
    """Two centres with the same sensors, all running; each `kill_...` kills something and starts it again."""

    def __init__(self, stack: ExitStack, folder: Path, server: Server, schema: str, seed: int) -> None:
        self.folder, self.server, self.where = folder, server, server.url(schema)
        self.rng, self.forfeited = np.random.default_rng(seed), dict[LoanKey, dict[int, int]]()
        self._stack = stack
        ShortStay.preloaded = preloaded = Preloaded(centre_environment())
        stack.callback(preloaded.close)
        guarantee = make_design("individual", budget=0.2).guarantee
        Bank.create(self.where, guarantee, epoch_s=EPOCH_S, patience=_PATIENCE, capacity=50).close()
        self.sites: dict[str, BankSite] = {}
        self.lost: list[BankSite] = []
        self.centres: dict[str, Centre] = {}
        self._sensors: dict[str, Sensors] = {}
        self._starting: set[str] = set()
        for name in ("a", "b"):
            self._begin(name, name)

    def bank(self) -> Bank:
        """A new connection: a killed server has ended the last one."""
        bank = Bank.open(self.where)
        bank.where = self.where
        return bank

    def kill_centre(self) -> None:
        name = self.rng.choice(sorted(self.centres))
        self._kill(name)
        self._start(name)
        if self.rng.uniform() < 0.8:  # else the next kill may come before it is up
            self._wait_until_up()

    def kill_postgres(self) -> None:
        self._wait_until_up()
        self.server.kill()
        time.sleep(self.rng.uniform(0, 2 * EPOCH_S))
        self.server.start()

    def kill_everything(self) -> None:
        self._wait_until_up()
        kills = [self.server.kill, *(lambda name=name: self._kill(name) for name in self.centres)]
        for number in self.rng.permutation(len(kills)):
            kills[number]()
        self.server.start()
        for name in self.centres:
            self._start(name)
        self._wait_until_up()

    def kill_disk(self) -> None:
        """A centre and its files are gone: it begins anew, and what was lent to it counts as spent."""
        self._wait_until_up()
        name = self.rng.choice(sorted(self.centres))
        self._kill(name)
        self._sensors.pop(name).__exit__()
        site = self.sites.pop(name)
        site.lose(self.folder / "lost")
        self.lost.append(site)
        with self.bank() as bank:
            wait_for(lambda: self._may_begin_anew(bank, name))
            self.forfeited |= loans_at(bank, name)
        self._begin(name, f"{name}{len(self.lost)}")
        self._wait_until_up()

    def check_releases(self) -> None:
        for site in self.all_sites():
            site.check_published()

    def end(self) -> dict[str, Any]:
        """Stop everything, and check what must hold; returns what was done."""
        self._wait_until_up()
        before = {name: site.last_step() for name, site in self.sites.items()}
        wait_for(lambda: all(site.last_step() > before[name] + 10 for name, site in self.sites.items()))
        with self.bank() as bank:
            wait_for(lambda: (bank._value("SELECT max(spent) FROM accounts") or 0) > 0)
        for centre in self.centres.values():
            assert centre.stop() == 0
            self._check_log(centre)
        for sensors in self._sensors.values():
            sensors.__exit__()
        published = [site.check_published() for site in self.all_sites()]
        with self.bank() as bank:
            spent = check_budgets(self.all_sites(), bank, self.forfeited)
            shares = np.array(list(spent.values())) / bank.terms.budget
        return {
            "accounts": len(shares),
            "releases_published": sum(published),
            "largest_share_spent": float(shares.max()),
            "loans_forfeited": len(self.forfeited),
        }

    def all_sites(self) -> list[BankSite]:
        return [*self.sites.values(), *self.lost]

    def _begin(self, name: str, stream: str) -> None:
        with self.bank() as bank:
            site = self.sites[name] = ShortStay(self.folder, name, bank, stream)
        self._start(name)
        self._sensors[name] = self._stack.enter_context(Sensors(site))

    def _start(self, name: str) -> None:
        self.centres[name] = self._stack.enter_context(self.sites[name].start())
        self._starting.add(name)

    def _kill(self, name: str) -> None:
        assert self.centres[name].kill() == -9, self.centres[name].errors  # it did not end by an error of its own
        self._check_log(self.centres[name])
        self._starting.discard(name)

    def _wait_until_up(self) -> None:
        for name in sorted(self._starting):
            self.centres[name].wait_until_up()
        self._starting.clear()

    def _may_begin_anew(self, bank: Bank, name: str) -> bool:
        [last] = [one.boundary for one in bank.verify().centres if one.centre == name]
        return bank.terms.may_begin_anew(bank.terms.epoch_at(bank.now()), last)

    @staticmethod
    def _check_log(centre: Centre) -> None:
        assert all(any(known in line for known in _BANK_LINES) for line in centre.errors.splitlines()), centre.errors


def run_kills(folder: Path, server: Server, schema: str, seed: int, **kills: int) -> dict[str, Any]:
    """Kill so many times each, in random order and at random moments, and check everything after that.

    Args:
        kills: the number for each of `centre`, `postgres`, `everything` and `disk`.
    """
    with ExitStack() as stack:
        fleet = KilledFleet(stack, folder, server, schema, seed)
        events = [name for name, number in kills.items() for _ in range(number)]
        for event in fleet.rng.permutation(events):
            time.sleep(fleet.rng.uniform(0, 2.5 * EPOCH_S))
            getattr(fleet, f"kill_{event}")()
            fleet.check_releases()
        return fleet.end()
