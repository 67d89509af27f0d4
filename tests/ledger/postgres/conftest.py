"""One PostgreSQL server for all tests of this folder, and ledgers in it."""

from __future__ import annotations

import itertools

import pytest

from support.ledger_contract import STREAMS, entry, make_ledger_design
from support.postgres_ledger import Place
from support.postgres_server import Server


@pytest.fixture(scope="session")
def server():
    server = Server()
    yield server
    server.remove()


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory):
    """The folder of the head files, for this process and its children."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFUSE_STATE", str(folder))
        yield folder


@pytest.fixture(scope="session")
def make_place(server):
    numbers = itertools.count()
    return lambda: Place(server.url(f"ledger_{next(numbers)}"))


@pytest.fixture
def closed_ledger(request, place):
    """A closed ledger with six rows, and its design; in individual accounting unless a test is marked `either`."""
    design = make_ledger_design(getattr(request, "param", "individual"))
    with place.create(design, STREAMS) as ledger:
        for step in (1, 2, 4):
            ledger.commit([entry(ledger, step, stream, weight=0.001) for stream in STREAMS])
    return place, design


@pytest.fixture
def shared(place):
    """One ledger in individual accounting, opened by a centre for each of its two streams."""
    design = make_ledger_design("individual")
    place.create(design, STREAMS).close()
    with place.open(design, ["north"]) as north, place.open(design, ["south"]) as south:
        yield north, south
