"""A PostgreSQL server for the tests of the bank, and banks in schemas of their own."""

from __future__ import annotations

import itertools

import pytest

from dpfuse import Guarantee
from dpfuse.ledger.bank.bank import Bank
from support.postgres_server import Server

GUARANTEE = Guarantee(order=2.0, budget=1.5, adjacency="remove-one", accounting="individual")


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    server.remove()


_numbers = itertools.count()


@pytest.fixture
def make_bank(server):
    """Makes a bank in a new schema; its address is `bank.where`."""
    opened = []

    def make(**settings):
        where = server.url(f"bank{next(_numbers)}")
        bank = Bank.create(where, settings.pop("guarantee", GUARANTEE), **settings)
        bank.where = where
        opened.append(bank)
        return bank

    yield make
    for bank in opened:
        bank.close()
