"""Writers of a ledger in PostgreSQL, and the server itself, are killed at random moments or restored."""

from __future__ import annotations

import shutil
import subprocess
import time

import numpy as np
import pytest

from dpfuse.errors import LedgerRefused
from dpfuse.ledger import PostgresLedger, create_ledger
from support.ledger_contract import STREAMS, entry, make_ledger_design
from support.ledger_kills import DESIGN, check_published, how_far, nursery, run_kills
from support.postgres_server import Server
from support.wire import wait_for


def test_kills_lose_no_release_and_no_debit(place, tmp_path):
    last_step, _ = run_kills(place.url, tmp_path / "published", num_kills=4, longest_s=0.3, seed=0)
    assert last_step >= 2


@pytest.mark.slow
def test_three_hundred_kills_lose_no_release_and_no_debit(place, tmp_path):
    last_step, share = run_kills(place.url, tmp_path / "published", num_kills=300, longest_s=0.25, seed=1)
    assert last_step > 300 and share > 0.5


@pytest.mark.slow
def test_kills_of_the_server_lose_no_release_and_no_debit(tmp_path):
    """Writer and server are both gone in a moment; the writer says so, and the next one goes on."""
    server = Server()
    try:
        where, published, rng = server.url(), tmp_path / "published", np.random.default_rng(2)
        create_ledger(where, DESIGN, STREAMS).close()
        published.touch()
        with nursery(where, published) as writers:
            for kill in range(20):
                before = published.stat().st_size
                writers.start()
                if kill % 2:  # of the others some are killed while they start
                    wait_for(lambda before=before: published.stat().st_size > before)
                time.sleep(rng.uniform(0, 0.6))
                server.kill()
                assert writers.end() == 1  # stopped by itself, as the ledger was lost
                server.start()
                check_published(where, published)
        assert how_far(where)[0] > 5
    finally:
        server.remove()


@pytest.mark.slow
def test_a_server_restored_from_a_backup_is_refused(tmp_path):
    """Files of the server as they were: what was committed since is gone, and that is noticed."""
    server = Server()
    try:
        design, where = make_ledger_design("individual"), server.url()
        with PostgresLedger.create(where, design, STREAMS) as ledger:
            ledger.commit([entry(ledger, 1)])
        server.stop()
        shutil.copytree(server.data, tmp_path / "backup", symlinks=True)
        server.start()
        with PostgresLedger.open(where, design) as ledger:
            ledger.commit([entry(ledger, 2)])
        server.stop()
        shutil.rmtree(server.data)
        shutil.copytree(tmp_path / "backup", server.data, symlinks=True)
        if server.user:
            subprocess.run(["chown", "-R", server.user, server.data], check=True)
        server.data.chmod(0o700)
        server.start()
        with pytest.raises(LedgerRefused, match="not hold the commit 2 that its head file names: it was rolled back"):
            PostgresLedger.open(where, design)
    finally:
        server.remove()
