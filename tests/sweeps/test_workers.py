"""Sweeps in processes and on a Ray cluster: equal bits everywhere, whoever is killed on the way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import dpfuse
from dpfuse.sweeps.runners import MOST_TRIES, ProcessRunner
from dpfuse.sweeps.worker import GroupWork
from support.designs import BRIEF, SMALL, make_guarantee, random_walks
from support.ray_cluster import own_workers, ray_cluster

pytestmark = pytest.mark.slow
PARTS = random_walks(64, 0), random_walks(16, 1), random_walks(32, 2)
FEW = replace(BRIEF, num_updates=4, validate_every=2, validation_windows=8, batch_size=8)


def count_runs(design, recording):
    """A test of our own."""
    return {"runs_by_filter": {design.structure.recurrent_filter: recording.num_runs}}


def run(test=count_runs, **place):
    settings = {"plain": {"spending": "constant", "architecture": SMALL, "optimisation": FEW}}
    guarantees = [make_guarantee(budget=budget) for budget in (0.5, 1.5)]
    return dpfuse.sweep(PARTS, guarantees, seeds=[0, 1, 2], settings=settings, test=test, group_size=1, **place)


def content(result):
    """What must not depend on where a sweep ran."""
    assert not result.failures
    assert all(list(row["runs_by_filter"].values()) == [32] for row in result.rows)
    changing = {"design", "training_s", "test_s"}
    rows = [{name: value for name, value in row.items() if name not in changing} for row in result.rows]
    return rows, [Path(row["design"]).read_bytes() for row in result.rows]


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory):
    """A folder for compiled programs that nobody else uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("programs")))
        yield


@pytest.fixture(scope="module")
def undisturbed(programs):
    return content(run(workers=2))


def kill_when(find, done: list[int], *, after_s: float = 1.0) -> threading.Thread:
    """Kill one of the processes that `find` gives, some time after it is there, and remember that."""

    def wait_and_kill():
        deadline = time.monotonic() + 60
        while not (found := find()):
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)
        time.sleep(after_s)
        os.kill(found[0], signal.SIGKILL)
        done.append(found[0])

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return thread


def test_a_killed_process_changes_nothing(undisturbed):
    killed: list[int] = []
    thread = kill_when(lambda: [child.pid for child in multiprocessing.active_children()], killed)
    again = content(run(workers=2))
    thread.join()
    assert killed and again == undisturbed
    assert undisturbed[1][0] != undisturbed[1][1]  # another seed, other bits


# Ray starts its programs by a fork, which they leave at once, and leaves pipes to its dead ones open.
@pytest.mark.filterwarnings("ignore:.*os.fork:RuntimeWarning", "ignore::ResourceWarning")
def test_a_cluster_gives_equal_bits_and_survives_a_killed_worker_and_a_killed_node(undisturbed):
    killed: list[int] = []
    lost_at: list[float] = []

    def count_there(design, recording):  # nodes do not have this module, as they do not have a user's script
        return {"runs_by_filter": {design.structure.recurrent_filter: recording.num_runs}}

    with ray_cluster(2) as (cluster, nodes):
        thread = kill_when(lambda: own_workers("dpfuse sweep"), killed)

        def lose_node():
            thread.join()
            time.sleep(1)
            lost_at.append(time.monotonic())
            cluster.remove_node(nodes[0], allow_graceful=False)

        second = threading.Thread(target=lose_node)
        second.start()
        result = run(count_there, address=cluster.address)
        ended_at = time.monotonic()
        second.join()
    assert killed and lost_at[0] < ended_at, "the sweep was over before a worker and a node were killed"
    assert content(result) == undisturbed


class EndsItsProcess:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (1,)


def test_a_group_that_always_ends_its_process_fails_and_the_others_do_not_wait_for_it():
    runner = ProcessRunner(1, cores=1)
    try:
        work = GroupWork(pairs=[(None, 0)], options={"stationary": EndsItsProcess()}, evaluation={}, cores=1)
        other = replace(work, options={"nonsense": 1})
        found = dict(runner.run([(runner.share(PARTS), each) for each in (work, other)]))
    finally:
        runner.close()
    assert found[0].errors == [f"its process was ended {MOST_TRIES} times"]
    assert "unexpected keyword argument 'nonsense'" in found[1].errors[0]
