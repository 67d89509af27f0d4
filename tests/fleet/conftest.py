"""A PostgreSQL server with banks, for fleets."""

from __future__ import annotations

import itertools

import pytest

from dpfuse.ledger.bank.bank import Bank
from support.designs import make_design
from support.postgres_server import Server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def bank_server():
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def bank(bank_server):
    where = bank_server.url(f"fleet{next(_numbers)}")
    guarantee = make_design("individual", budget=0.2).guarantee
    with Bank.create(where, guarantee, epoch_s=1.0, patience=4, capacity=50) as bank:
        bank.where = where
        yield bank
