"""The ledger in PostgreSQL: the contract, several centres, kills, and everything that can be wrong with a server."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dpfuse.runtime.ledger.postgres import PostgresLedger
from ledger_contract import LedgerContract
from postgres_server import Server


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    server.remove()


class Place:
    """Where one ledger is: a schema of the server, and a head file."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.head = url, folder / "ledger.head"

    def create(self, design, streams):
        return PostgresLedger.create(self.url, design, streams, head=self.head)

    def open(self, design, streams=None, **options):
        return PostgresLedger.open(self.url, design, streams, head=self.head, **options)


@pytest.fixture(scope="session")
def make_place(server, tmp_path_factory):
    numbers = itertools.count()
    return lambda: Place(server.url(f"ledger_{next(numbers)}"), tmp_path_factory.mktemp("head"))


@pytest.fixture
def place(make_place):
    return make_place()


class TestPostgres(LedgerContract):
    pass
