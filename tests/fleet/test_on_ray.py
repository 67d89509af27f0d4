"""Shards as Ray actors: a node that is killed takes its shards with it, and they come back from their ledgers."""

from __future__ import annotations

import os
import signal
from urllib.parse import urlsplit

import httpx
import pytest

from dpfuse.fleet.map import FleetMap
from support.fleets import MapSensors, RealFleet, Watcher, check_fleet
from support.parts import needs_package
from support.ray_cluster import own_workers, ray_cluster
from support.wire import wait_for

# Ray forks its own processes from this one, in which JAX runs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")]


def test_shards_of_a_killed_node_come_back_on_the_other_one(tmp_path, bank):
    needs_package("ray")
    with ray_cluster(0) as (cluster, _):
        nodes = [cluster.add_node(num_cpus=2, node_ip_address=f"127.0.0.{place}") for place in (2, 3)]
        with RealFleet(tmp_path, bank.where, "--ray", f"--address={cluster.address}", north="a", south="b") as fleet:
            up = fleet.wait_until_up("a", "b")
            # Shards spread over the nodes, and each is where its node is: sensors can go there.
            assert {urlsplit(up["streams"][one]["sensors"]).hostname for one in "ab"} == {"127.0.0.2", "127.0.0.3"}
            assert os.getpriority(os.PRIO_PROCESS, fleet.pid_of("north")) == os.getpriority(os.PRIO_PROCESS, 0)
            # Ray starts an actor again on any node, and its shard goes back to its ledger.
            before = [fleet.pid_of(shard) for shard in ("north", "south")]
            for pid in own_workers("ShardHolder"):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not {fleet.pid_of(shard) for shard in ("north", "south")} & {None, *before})
            assert fleet.wait_until_up("a", "b") == up
            assert httpx.get(up["streams"]["a"]["sensors"] + "/v1/clock", trust_env=False).status_code == 200
            with MapSensors(fleet), Watcher(fleet) as watcher:
                wait_for(lambda: len(watcher.arrived) == 2 and len(watcher.received) > 20)
                cluster.remove_node(nodes[0], allow_graceful=False)
                seen = len(watcher.received)
                wait_for(lambda: len(watcher.received) > seen + 20)
                wait_for(
                    lambda: all(
                        (one or {}).get("readers") for one in (fleet.map() or {"streams": {}})["streams"].values()
                    )
                )
                began = dict(watcher.arrived)
                wait_for(lambda: all(watcher.arrived[one] > began[one] for one in "ab"))
                assert {urlsplit(fleet.map()["streams"][one]["readers"]).hostname for one in "ab"} == {"127.0.0.3"}
            assert {entry.node for entry in FleetMap.load(tmp_path / "fleet/map.json").shards.values()} == {"127.0.0.3"}
            assert fleet.stop() == 0, fleet.log()
            check_fleet(fleet, watcher, bank)
