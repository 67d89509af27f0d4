"""Forty small designs on this machine and on a Ray cluster of three nodes, at equal cores, with compilation counted.

Each run starts without compiled programs. The head of the cluster has no cores for tasks; the other two nodes have one
each, and the sweep without Ray has two processes with one core each. After those runs the cluster runs the sweep again
while a worker and then a node are killed. All results must be equal in every bit.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dpfuse
from dpfuse.sweeps import SweepResult
from dpfuse.systems import linear_gaussian
from tools.results import results_path, write_results

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.ray_cluster import own_workers, ray_cluster

BUDGETS = (0.15, 0.3, 0.5, 1.5)
SEEDS = range(10)
SETTINGS = {"classical": {"spending": "constant", "num_updates": 300, "num_starts": 1}}
ROUNDS = 2


def run(**place: Any) -> tuple[float, SweepResult]:
    """Seconds of a sweep that finds no compiled program, and its result."""
    data = linear_gaussian.simulate(linear_gaussian.LinearGaussian.random_walk(), num_runs=600, num_steps=50, seed=0)
    guarantees = [dpfuse.Guarantee(order=2.0, budget=budget, adjacency="remove-one") for budget in BUDGETS]
    began = time.perf_counter()
    result = dpfuse.sweep(
        {"walk": data.split(by="run")}, guarantees, seeds=SEEDS, settings=SETTINGS, group_size=5, progress=True, **place
    )
    seconds = time.perf_counter() - began
    assert not result.failures, result.failures
    return seconds, result


def content(result: SweepResult) -> list[bytes]:
    """The design files."""
    return [Path(row["design"]).read_bytes() for row in result.rows]


def on_cluster(*, kill: bool = False) -> tuple[float, SweepResult, dict[str, float]]:
    """A run on a cluster of three nodes, which starts before the clock does; with `kill` when each loss came."""
    killed: dict[str, float] = {}
    with ray_cluster(2) as (cluster, nodes):
        began = time.perf_counter()

        def lose() -> None:
            while not (found := own_workers("dpfuse sweep")):
                time.sleep(0.2)
            time.sleep(10)
            os.kill(found[0], signal.SIGKILL)
            killed["worker_s"] = round(time.perf_counter() - began, 1)
            time.sleep(10)
            killed["node_s"] = round(time.perf_counter() - began, 1)
            cluster.remove_node(nodes[0], allow_graceful=False)

        thread = threading.Thread(target=lose)
        if kill:
            thread.start()
        seconds, result = run(address=cluster.address)
        if kill:
            thread.join()
            assert killed["node_s"] < seconds, "the sweep was over too soon"
    return seconds, result, killed


def main() -> None:
    """Measure in turns, and write results/sweep.json."""
    seconds: dict[str, list[float]] = {"processes": [], "cluster": []}
    contents = []
    for _ in range(ROUNDS):
        for name in seconds:
            # The programs of a user are kept in this folder.
            with tempfile.TemporaryDirectory() as fresh:
                os.environ["XDG_CACHE_HOME"] = fresh
                taken, result = run(workers=2) if name == "processes" else on_cluster()[:2]
            seconds[name].append(round(taken, 1))
            contents.append(content(result))
            print(name, f"{taken:.1f} s", file=sys.stderr)
    with tempfile.TemporaryDirectory() as fresh:
        os.environ["XDG_CACHE_HOME"] = fresh
        taken, result, killed = on_cluster(kill=True)
    contents.append(content(result))
    assert all(other == contents[0] for other in contents), "the results differ"
    # The fastest of each: other work on the machine only ever adds time.
    fastest = {name: min(values) for name, values in seconds.items()}
    results = {
        "designs": len(contents[0]),
        "groups": 8,
        "cores": 2,
        "seconds": seconds,
        "efficiency": round(fastest["processes"] / fastest["cluster"], 3),
        "with_losses": {"seconds": round(taken, 1), "lost_after": killed},
        "bits_equal": True,
    }
    write_results(
        results_path("sweep"),
        results,
        command="make bench ONLY=sweep",
        seeds=list(SEEDS),
        packages=("ray",),
        devices=["cpu"],
    )


if __name__ == "__main__":
    main()
