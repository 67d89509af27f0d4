"""Designs and centres that the tests of this folder share."""

from __future__ import annotations

import pytest

import dpfuse
from dpfuse.centre import centre as centre_module
from support.designs import make_design


@pytest.fixture(scope="session", params=["total", "individual"])
def design(request):
    return make_design(request.param, spread=0.5, horizon=40, expected_stay=20.0)


@pytest.fixture(scope="session")
def individual():
    return make_design("individual", spread=0.5, horizon=None, expected_stay=20.0)


@pytest.fixture(scope="session")
def compiled():
    """The steps that were compiled so far, by design and settings."""
    return {}


@pytest.fixture
def shared_steps(compiled, monkeypatch):
    """Centres of the same design and settings share one compiled step, which holds nothing of a run."""

    def make_step(design, *settings):
        key = design.fingerprint, *settings
        if key not in compiled:
            compiled[key] = dpfuse.ExactStep(design, *settings)
        return compiled[key]

    monkeypatch.setattr(centre_module, "ExactStep", make_step)


@pytest.fixture
def open_centre(tmp_path, shared_steps):
    """Opens centres, which are closed at the end. The same name is the same ledger."""
    opened = []

    def open_one(design, name="ledger.db", streams=("main",), **options):
        path = tmp_path / name
        ledger = dpfuse.Ledger.open(path, design) if path.exists() else dpfuse.Ledger.create(path, design, streams)
        opened.append(dpfuse.FusionCentre(design, ledger, **options))
        return opened[-1]

    yield open_one
    for centre in opened:
        centre.close()
