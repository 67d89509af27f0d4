"""Two designs with their releases, compiled once."""

from __future__ import annotations

import pytest

from support.designs import make_design
from support.remote import Run


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return Run(make_design(spread=0.5), tmp_path_factory.mktemp("usual"))


@pytest.fixture(scope="module")
def gappy(tmp_path_factory):
    """A design without an end; three steps are skipped."""
    design = make_design("individual", horizon=None, spread=0.5)
    return Run(design, tmp_path_factory.mktemp("gappy"), skipped=(1, 3, 4))
