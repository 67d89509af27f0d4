"""Shards as Ray actors: a node that is killed takes its shards with it, and they come back from their ledgers."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest

from dpfuse.fleet import on_ray
from dpfuse.fleet.holder import ShardSpec, ShardStatus
from dpfuse.fleet.map import FleetMap
from support.fleets import BANK, MapSensors, RealFleet, Watcher, check_fleet
from support.parts import needs_package
from support.ray_cluster import own_workers, ray_cluster
from support.wire import wait_for

SPEC = ShardSpec(
    name="north",
    ledger=Path("ledger.db"),
    streams=("a",),
    is_made=True,
    design="d",
    keys=Path("k"),
    port=9000,
    bank=BANK,
    node="10.0.0.4",
)


class PretendedRay:
    """The part of Ray that a holder uses, with the nodes that the test gives; an actor whose node is away is silent."""

    class exceptions:  # noqa: N801
        RayActorError = RayTaskError = type("RayError", (Exception,), {})

    util = SimpleNamespace(get_node_ip_address=None)

    def __init__(self, *nodes):
        self.joined, self.tied_to = set(nodes), None

    def nodes(self):
        return [{"Alive": True, "NodeManagerAddress": node} for node in self.joined]

    def remote(self, _):
        return self

    def options(self, *, resources, **_):
        self.tied_to = next((name.removeprefix("node:") for name in resources), None)
        actor = SimpleNamespace(ensure=SimpleNamespace(remote=lambda spec: (self.tied_to, spec)))
        return SimpleNamespace(remote=lambda _: actor)

    def wait(self, asked, timeout):
        return [one for one in asked if self.get(one)], []

    def get(self, asked):
        tied_to, spec = asked
        node = tied_to or max(self.joined)
        if node not in self.joined:
            return None
        state = "elsewhere" if spec.node not in (None, node) else "up" if node == SPEC.node else "lost"
        return ShardStatus(state=state, addresses={}, node=node)

    def kill(self, _):
        pass


@pytest.fixture
def pretended(monkeypatch):
    """A holder in a cluster that has one other node than the shard's, its cluster, and the time in a list."""
    cluster, now = PretendedRay("10.0.0.5"), [1000.0]
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(on_ray, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return on_ray.RayHolder("north"), cluster, now


def states(holder, spec=SPEC):
    return [holder.ensure(spec).state for _ in range(3)]


def test_a_node_that_joins_late_is_waited_for_and_its_ledger_is_not_lost(pretended, caplog):
    holder, cluster, now = pretended
    assert states(holder) == ["down"] * 3
    now[0] += 59.0
    assert states(holder) == ["down"] * 3
    said = "a shard waits for node 10.0.0.4, which the cluster does not have (it has 10.0.0.5); start Ray there"
    assert caplog.text.count(said) == 1
    cluster.joined.add("10.0.0.4")
    assert states(holder) == ["up"] * 3
    cluster.joined.remove("10.0.0.4")  # it was seen: it has died
    assert "lost" in states(holder)


def test_a_node_that_does_not_join_for_a_minute_has_died_unless_there_is_no_bank(pretended):
    holder, _, now = pretended
    alone = replace(SPEC, bank=None)
    for spec, expected in ((alone, "down"), (SPEC, "lost")):
        states(holder, spec)
        now[0] += 61.0
        assert states(holder, spec)[-1] == expected


def test_a_shard_goes_back_to_a_node_that_has_joined_again(pretended):
    holder, cluster, now = pretended
    states(holder)
    now[0] += 61.0
    assert states(holder)[-1] == "lost"  # and the map could not be written
    cluster.joined.add("10.0.0.4")
    assert states(holder)[-1] == "up"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Ray forks from this process, in which JAX runs
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
