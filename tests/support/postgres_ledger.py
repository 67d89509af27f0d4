"""Ledgers in PostgreSQL for tests: where they are, changes by hand, and the check that one is refused."""

from __future__ import annotations

import pytest

from dpfuse.errors import LedgerRefused
from dpfuse.ledger import PostgresLedger, verify
from dpfuse.ledger.postgres_store import Address

# A test runs with a closed ledger in total and in individual accounting.
either = pytest.mark.parametrize("closed_ledger", ["total", "individual"], indirect=True)


class Place:
    """The address of one ledger: a schema of the server."""

    def __init__(self, url: str) -> None:
        self.url, self.schema = url, Address.parse(url).schema

    def create(self, design, streams):
        return PostgresLedger.create(self.url, design, streams)

    def open(self, design, streams=None, **options):
        return PostgresLedger.open(self.url, design, streams, **options)


def refused(place, design, message):
    """Neither `open` nor `verify` takes the ledger."""
    for attempt in (lambda: place.open(design), lambda: verify(place.url)):
        with pytest.raises(LedgerRefused, match=message):
            attempt()


def by_hand(server, place, *statements):
    """Run statements as the server's owner, without triggers."""
    return server.run(f"SET search_path = {place.schema}", *statements)
