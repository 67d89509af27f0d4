"""Imports of optional packages: a missing one raises an error with the pip line."""

from __future__ import annotations

import sys

import pytest

from dpfuse import MissingExtra
from dpfuse._extras import requires_extra


def test_a_missing_package_raises_with_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(MissingExtra, match=r"^a ledger needs apsw: pip install 'dpfuse\[live\]'$"):
        with requires_extra("live", "a ledger"):
            import apsw  # noqa: F401


def test_an_installed_package_is_imported():
    with requires_extra("live", "a ledger"):
        import apsw
    assert apsw is sys.modules["apsw"]
