"""Where the ledgers of these tests are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfuse import Ledger
from support.ledger_contract import STREAMS, entry, make_ledger_design


class Place:
    """The path of one ledger."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger.db"

    def create(self, design, streams):
        return Ledger.create(self.path, design, streams)

    def open(self, design):
        return Ledger.open(self.path, design)


@pytest.fixture(scope="session")
def make_place(tmp_path_factory):
    return lambda: Place(tmp_path_factory.mktemp("ledger"))


@pytest.fixture
def place(make_place):
    return make_place()


@pytest.fixture(params=["total", "individual"])
def closed_ledger(request, place):
    """The path and the design of a ledger with six rows, which is closed."""
    design = make_ledger_design(request.param)
    with place.create(design, STREAMS) as ledger:
        for step in (1, 2, 4):
            ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS])
    return place.path, design
