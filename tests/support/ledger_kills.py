"""Kill writers of a ledger at random moments, and check after each kill that no release or debit was lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from dpfuse.ledger import Ledger, public_rows
from support.ledger_contract import STREAMS, make_ledger_design

DESIGN = make_ledger_design("individual", budget=0.001)


class Nursery:
    """Starts writers, see `ledger_writer.py`."""

    def __init__(self, process) -> None:
        self._process = process

    def start(self) -> int:
        """Start a writer; returns its process id."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> int:
        """Wait for the writer; returns its exit code."""
        return int(self._process.stdout.readline())


@contextmanager
def nursery(where, published, *streams):
    command = [sys.executable, "-m", "support.ledger_writer", where, published, *(streams or STREAMS)]
    tests = Path(__file__).parents[1]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tests) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield Nursery(process)
            process.stdin.close()
        except BaseException:
            process.kill()
            raise


def run_kills(where, published, num_kills, longest_s, seed):
    """Kill writers at random moments, and compare what was published with the ledger after each kill.

    Every second writer is killed only after it has published a row.
    """
    Ledger.create(where, DESIGN, STREAMS).close()
    rng = np.random.default_rng(seed)
    published.touch()
    with nursery(where, published) as writers:
        for kill in range(num_kills):
            before = published.stat().st_size
            writer = writers.start()
            deadline = time.monotonic() + 120 * (kill % 2)
            while published.stat().st_size == before and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, longest_s))
            os.kill(writer, signal.SIGKILL)
            assert writers.end() == -signal.SIGKILL  # it did not end by an error of its own
            check_published(where, published)
    return how_far(where)


def how_far(where):
    """The last step, and the largest share of its budget that a sensor has spent, which is at most 1."""
    with Ledger.open(where, DESIGN) as ledger:
        budget, accounts = ledger.terms.mechanism.budget, ledger.accounts("north").accounts()
        assert accounts and max(accounts.values()) <= budget
        return ledger.last_step("north"), max(accounts.values()) / budget


def check_published(where, published):
    lines = published.read_text().splitlines()
    written = {}
    for line in lines:
        stream, step, *content = line.split()
        assert written.setdefault((stream, int(step)), content) == content, "a step was released twice, differently"
    stored = {(row.stream, row.step): [row.release.hex(), row.hash.hex()] for row in public_rows(where)}
    assert written.items() <= stored.items(), "a release is not in the ledger"
    # Only rows of the last commit may be unpublished: the next writer publishes them before it goes on.
    unpublished = {step for _, step in stored.keys() - written.keys()}
    assert unpublished <= {max(step for _, step in stored)} if stored else not unpublished, (
        f"{unpublished} were never published"
    )
