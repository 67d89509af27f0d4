"""A real fleet with a real bank: kills, a lost ledger, moves and drains keep every budget and release no step twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time

import pytest

from dpfuse.ledger import public_rows
from support.fleets import MapSensors, RealFleet, Watcher, check_fleet
from support.wire import command, wait_for

pytestmark = pytest.mark.slow
# How long it takes on an idle machine is measured by benchmarks/fleet_kills.py.
BACK_WITHIN_S = 60.0


def back_after_kill(fleet, watcher, shard, streams):
    """Kill a shard; the seconds until all its streams have new releases."""
    os.kill(fleet.pid_of(shard), signal.SIGKILL)
    began = time.monotonic()
    wait_for(lambda: all(watcher.arrived.get(stream, 0) > began + 0.5 for stream in streams))
    return time.monotonic() - began


def test_shards_come_back_move_and_are_replaced_and_every_budget_is_kept(tmp_path, bank):
    with RealFleet(tmp_path, bank.where, north="a b", south="c") as fleet:
        fleet.wait_until_up("a", "b", "c")
        with MapSensors(fleet), Watcher(fleet) as watcher:
            wait_for(lambda: len(watcher.received) > 40)
            took = [back_after_kill(fleet, watcher, "north", "ab") for _ in range(2)]
            # A stream moves, and a shard is added.
            fleet.write(north="a", south="c b", west="d")
            fleet.reload()
            moved = wait_for(lambda: (found := fleet.map()) and found["streams"]["b"]["stream"] == "b.2" and found)
            assert moved["version"] == 2 and moved["streams"]["b"]["shard"] == "south" and "d" in moved["streams"]
            fleet.wait_until_up("a", "b", "c", "d")
            wait_for(lambda: watcher.count("b.2") and watcher.count("d"))
            with command("fleet", "status", str(tmp_path / "fleet.toml"), folder=tmp_path) as shown:
                assert shown.process.wait(60) in (0, 1) and "west" in shown.stdout(), shown.stderr()
            # A disk is lost: a new generation, once the bank's patience is over.
            lost = fleet.pid_of("west")
            shutil.move(tmp_path / "fleet/west", tmp_path / "lost-west")
            os.kill(lost, signal.SIGKILL)
            wait_for(lambda: watcher.count("d.2"))
        assert fleet.stop() == 0, fleet.log()
        assert fleet.pid_of("north") is None
        shutil.copytree(tmp_path / "lost-west", tmp_path / "fleet/west-1")  # what it spent counts, too
        check_fleet(fleet, watcher, bank)
        assert max(took) < BACK_WITHIN_S, took


def wait_for_stop(fleet, shard):
    """Wait until the map announces the stop of a shard, and check that it runs until then."""
    stops_at = wait_for(lambda: (fleet.map() or {"shards": {shard: {}}})["shards"][shard].get("stops_at"))
    pid = fleet.pid_of(shard)
    assert pid is not None and time.time() < stops_at
    while True:
        found = fleet.pid_of(shard)
        if time.time() >= stops_at:
            break
        assert found == pid
        time.sleep(0.1)
    wait_for(lambda: fleet.pid_of(shard) != pid)


def skipped_steps(log, shard):
    """The steps that a shard has announced as skipped."""
    log = "\n".join(line for line in log.splitlines() if f" shard={shard} " in line)
    found = {int(step) for step in re.findall(r"a step was skipped .*?step=(\d+)", log)}
    for line in re.findall(r"releases go on .*", log):
        step, number = (int(re.search(rf"{name}=(\d+)", line)[1]) for name in ("step", "skipped"))
        found |= set(range(step - number, step))
    return found


def test_a_move_and_a_drain_skip_no_step_beyond_those_announced(tmp_path, bank):
    with RealFleet(tmp_path, bank.where, north="a b", south="c") as fleet:
        fleet.wait_until_up("a", "b", "c")
        with MapSensors(fleet), Watcher(fleet) as watcher:
            wait_for(lambda: len(watcher.received) > 30)
            fleet.write(north="a", south="c b")  # a stream moves
            fleet.reload()
            wait_for_stop(fleet, "north")
            wait_for_stop(fleet, "south")
            fleet.wait_until_up("a", "b", "c")
            wait_for(lambda: watcher.count("b.2"))
            fleet.write(south="c b a")  # a shard is drained
            fleet.reload()
            wait_for_stop(fleet, "north")
            wait_for(lambda: watcher.count("a.2") > 5)
        drained = fleet.map()["shards"]["north"]
        assert drained["state"] == "drained" and fleet.pid_of("north") is None
        assert fleet.stop() == 0, fleet.log()
        check_fleet(fleet, watcher, bank)
        for path, streams in zip(fleet.ledgers(), ("a b", "c b.2 a.2"), strict=True):
            steps, shard = {}, path.parent.name
            for row in public_rows(path):
                steps.setdefault(row.stream, []).append(row.step)
            assert set(steps) == set(streams.split())
            missing = {n for own in steps.values() for n in set(range(own[0], own[-1])) - set(own)}
            assert missing <= skipped_steps(fleet.log(), shard)
            assert sum(map(len, steps.values())) > 3 * len(missing), shard


def test_shards_end_when_their_supervisor_is_killed_and_a_new_one_goes_on(tmp_path):
    with RealFleet(tmp_path, None, north="a") as fleet:
        fleet.wait_until_up("a")
        fleet.process.kill()
        fleet.process.wait()
        wait_for(lambda: fleet.pid_of("north") is None)
        first = {path: path.stat().st_ino for path in fleet.ledgers()}
        with Watcher(fleet.start()) as watcher:
            fleet.wait_until_up("a")
            wait_for(lambda: len(watcher.received) > 5)
        assert fleet.stop() == 0
        assert {path: path.stat().st_ino for path in fleet.ledgers()} == first
