"""A PostgreSQL server for the tests of the bank, and banks in schemas of their own."""

from __future__ import annotations

import itertools

import pytest

from dpfuse import Guarantee, Ledger
from dpfuse.ledger.bank.bank import Bank
from dpfuse.ledger.bank.client import BankClient
from support.designs import make_design
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


@pytest.fixture(scope="module")
def design():
    return make_design("individual", spread=0.5, horizon=None, expected_stay=4.0, budget=0.2)


@pytest.fixture
def join(tmp_path, design):
    """Joins a centre to a bank: a client and its ledger, closed at the end."""
    opened = []

    def make(bank, name="a", file=None, design=design):
        path = tmp_path / (file or f"{name}.db")
        created = not path.exists()
        ledger = Ledger.create(path, design, [name], bank.terms.bank_id) if created else Ledger.open(path, design)
        connection = Bank.open(bank.where)
        opened.extend((ledger, connection))
        client = BankClient(connection, bank.where, name, ledger)
        opened.append(client)
        return client, ledger

    yield make
    for own in reversed(opened):
        own.close()
