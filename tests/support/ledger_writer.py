"""Starts writers that are killed by tests: each line on stdin forks a child, which writes to the ledger until it ends.

A child publishes as a centre does: first the rows of the ledger that are not in the published file, then every row that
it commits. Arguments: the ledger, the file to publish to, with one line for each row, and the streams.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import numpy as np

from dpfuse import Entry
from dpfuse.ledger import Ledger, writer
from dpfuse.privacy import make_noise
from support.ledger_kills import DESIGN

IDS = np.arange(4)


def publish(file: int, row) -> None:
    os.write(file, f"{row.stream} {row.step} {row.release.hex()} {row.hash.hex()}\n".encode())


def write_until_killed(where: str, published: str, *streams: str) -> None:
    rng = np.random.default_rng()
    file = os.open(published, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    seen = {tuple(line.split()[:2]) for line in open(published)}
    with Ledger.open(where, DESIGN) as ledger:
        for row in (row for stream in streams for row in ledger.rows(stream)):
            if (row.stream, str(row.step)) not in seen:
                publish(file, row)
        mechanism = ledger.terms.mechanism
        while True:
            step = 1 + max(map(ledger.last_step, streams))
            entries = []
            for stream in streams:
                values = rng.uniform(0, 2e-3, (len(IDS), 2))
                entries.append(Entry(stream, step, mechanism.charge(ledger.accounts(stream), 1.0, IDS, values), IDS))
            for row in ledger.commit(entries):
                publish(file, row)
            ledger.checkpoint()


def main() -> None:
    writer._PENDING_COMMITS = 3  # so that many are killed while they add debits to the accounts
    for streams in (1, 2):
        make_noise(2 * streams)  # loads OpenDP once for all children
    import_module("apsw")
    print("ready", flush=True)
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            try:
                write_until_killed(*sys.argv[1:])
            finally:
                os._exit(1)
        print(child, flush=True)
        status = os.waitpid(child, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
