"""Kill two centres that share all sensors and a bank, again and again, in rounds: `python -m benchmarks.bank_kills`.

A round makes a new bank and new sensors, and kills at random moments: a centre 10 times, and once each PostgreSQL, all
of them together, and a centre with its disk, which then begins anew. After each kill every release that was published
is compared with the ledgers. At the end of the round everything that was spent is computed from a record that the test
keeps, and compared with the budget and with the bank. Any difference ends the run with an error. The results are
written after each round. Needs PostgreSQL's programs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.timing import keep

ROUND = {"centre": 10, "postgres": 1, "everything": 1, "disk": 1}


def main() -> None:
    """Kill, check, and write results/bank_kills.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1, help="rounds at the same time")
    options = parser.parse_args()
    done: dict[int, dict[str, Any]] = {}
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        seeds = {pool.submit(run_round, seed): seed for seed in range(options.rounds)}
        for ended in as_completed(seeds):
            if ended.exception() is not None:
                print(f"round {seeds[ended]} failed; those in progress end first", file=sys.stderr, flush=True)
                pool.shutdown(wait=False, cancel_futures=True)
            done[seeds[ended]] = ended.result()
            print(f"round {seeds[ended]}: {ended.result()}", file=sys.stderr, flush=True)
            save(done, options.jobs)


def run_round(seed: int) -> dict[str, Any]:
    """One round with a server, a bank, centres and sensors of its own."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.live_centre import centre_environment

    os.environ.update(centre_environment())  # before JAX is imported
    from support.bank_kills import run_kills
    from support.postgres_server import Server

    server = Server()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return run_kills(Path(folder) / "centres", server, "kills", seed, **ROUND)
    finally:
        server.remove()


def save(done: dict[int, dict[str, Any]], jobs: int) -> None:
    """Write the results of the rounds that are done; a round with any difference has ended the run."""
    rounds = list(done.values())
    results = {
        "rounds": len(rounds),
        "kills": {name: number * len(rounds) for name, number in ROUND.items()},
        "accounts": sum(one["accounts"] for one in rounds),
        "accounts_above_budget": 0,
        "largest_share_spent": max(one["largest_share_spent"] for one in rounds),
        "releases_published": sum(one["releases_published"] for one in rounds),
        "steps_with_two_releases": 0,
        "loans_forfeited": sum(one["loans_forfeited"] for one in rounds),
        "loans_not_counted_once": 0,
    }
    command = f"python -m benchmarks.bank_kills --rounds {len(rounds)} --jobs {jobs}"
    keep("bank_kills", results, seeds=sorted(done), command=command, packages=("psycopg",))


if __name__ == "__main__":
    main()
