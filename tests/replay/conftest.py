"""A clock that the test moves, and listening servers that use it."""

from __future__ import annotations

import pytest

from dpfuse.replay import player as player_module
from support.replay import Clock, Listener


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(player_module, "time", clock := Clock())
    return clock


@pytest.fixture
def listen(clock):
    opened = []

    def start(*arguments, **options):
        opened.append(centre := Listener(*arguments, **{"time": clock} | options))
        return centre

    yield start
    for centre in opened:
        centre.close()
