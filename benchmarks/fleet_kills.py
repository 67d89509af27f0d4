"""A fleet of 4 shards on 2 Ray nodes with shared sensors and a bank: a node is killed ten times.

Measures the seconds from each kill until all streams release again, and checks at the end that no sensor is above its
budget over all ledgers and that no step was released twice. A node that is killed is replaced by a
new one. Needs PostgreSQL's programs and the extra `fleet`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import keep

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
# With Ray's defaults it takes 16 s until a dead node is noticed.
QUICK = {"RAY_health_check_period_ms": "500", "RAY_health_check_timeout_ms": "1000"}
QUICK |= {"RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_failure_threshold": "3"}


def main() -> None:
    """Measure and write results/fleet_kills.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    kills = parser.parse_args().kills
    keep("fleet_kills", measure(kills), command=f"python -m benchmarks.fleet_kills --kills {kills}", packages=["ray"])


def measure(num_kills: int) -> dict[str, Any]:
    """Run the fleet, kill nodes, check everything."""
    from dpfuse.ledger.bank.bank import Bank
    from support.designs import make_design
    from support.fleets import MapSensors, RealFleet, Watcher, check_fleet
    from support.postgres_server import Server
    from support.ray_cluster import ray_cluster
    from support.wire import wait_for

    guarantee = make_design("individual", budget=0.2).guarantee
    assert guarantee is not None
    os.environ.update(QUICK)
    rng, took = np.random.default_rng(0), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = Server()
        stack.callback(server.remove)
        where = server.url("kills")
        bank = stack.enter_context(Bank.create(where, guarantee, epoch_s=1.0, patience=30, capacity=50))
        cluster, _ = stack.enter_context(ray_cluster(0))
        nodes = [cluster.add_node(num_cpus=4) for _ in range(2)]
        shards = {"north": "a b", "south": "c d", "east": "e f", "west": "g h"}
        fleet = RealFleet(folder, where, "--ray", f"--address={cluster.address}", **shards)
        stack.enter_context(fleet)
        streams = "abcdefgh"
        fleet.wait_until_up(*streams)
        sensors, watcher = stack.enter_context(MapSensors(fleet)), stack.enter_context(Watcher(fleet))
        wait_for(lambda: all(watcher.arrived.get(one) for one in streams))
        for kill in range(num_kills):
            time.sleep(rng.uniform(1.0, 4.0))
            place = kill % 2
            began = time.monotonic()
            cluster.remove_node(nodes[place], allow_graceful=False)
            nodes[place] = cluster.add_node(num_cpus=4)
            try:
                wait_for(lambda began=began: all(watcher.arrived[one] > began + 1.0 for one in streams))
            except AssertionError:
                print(fleet.log()[-6000:], fleet.map(), file=sys.stderr)
                raise
            took.append(time.monotonic() - began)
            print(f"kill {kill + 1}: all streams back after {took[-1]:.1f} s", file=sys.stderr)
        sensors.__exit__()
        watcher.__exit__()
        assert fleet.stop() == 0, fleet.log()
        check_fleet(fleet, watcher, bank)
        return {
            "kills": num_kills,
            "shards": len(shards),
            "streams": len(streams),
            "seconds_until_back": {"median": round(float(np.median(took)), 1), "max": round(max(took), 1)},
            "accounts_above_budget": 0,
            "steps_released_twice": len(watcher.contradictions),
            "releases_read": len(watcher.received),
        }


if __name__ == "__main__":
    main()
