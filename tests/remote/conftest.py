"""Two designs with their releases, compiled once, and a centre with the faults of a network."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dpfuse.remote import follower as follower_module
from support.designs import make_design
from support.flaky_centre import flaky_centre
from support.remote import Run


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return Run(make_design(spread=0.5), tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """A design without an end; three steps are skipped."""
    design = make_design("individual", horizon=None, spread=0.5)
    return Run(design, tmp_path_factory.mktemp("gappy"), skipped=(1, 3, 4))


@pytest.fixture
def flaky(monkeypatch):
    monkeypatch.setattr(follower_module, "_FIRST_PAUSE_S", 0.01)
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(flaky_centre(*arguments, **options))
