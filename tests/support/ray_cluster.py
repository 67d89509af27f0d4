"""A Ray cluster of several nodes on this machine, on loopback alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Everything then binds to 127.0.0.1, and nothing is reported.
ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def ray_cluster(num_nodes: int) -> Iterator[tuple[Any, list[Any]]]:
    """The cluster and its nodes of one core each; the head, from which the sweep is started, has none."""
    os.environ.update(ALONE)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield cluster, [cluster.add_node(num_cpus=1) for _ in range(num_nodes)]
    finally:
        cluster.shutdown()


def own_workers(task: str) -> list[int]:
    """Workers that run a task with this name and descend from this process; others may have clusters of their own."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(f"ray::{task}".encode()) and _is_ours(int(folder.name)):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended
    return found


def _is_ours(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        # The name of a process may hold blanks and brackets.
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()
