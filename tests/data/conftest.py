"""Small traffic as rows and as a recording, and a folder and a cache for each test."""

from __future__ import annotations

import pytest

from dpfuse import data
from support.ngsim import make_traffic, write_parquet


@pytest.fixture(scope="session")
def traffic():
    return make_traffic()


@pytest.fixture(scope="session")
def recording(traffic, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traffic")
    write_parquet(folder / "period.parquet", traffic)
    return data.read(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder of compact copies, empty for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dpfuse"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"
