"""Groups as tasks on a Ray cluster.

A task is a pure function of its arguments and has no effect but its answer, so Ray may run it again: after a worker or
a node was lost it does so by itself. Only this process writes files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from dpfuse._extras import requires_extra
from dpfuse.sweeps.grid import RecordingParts
from dpfuse.sweeps.runners import Runner
from dpfuse.sweeps.worker import GroupOutcome, GroupWork, environment_of, run_group

# For lost workers and nodes. An error in a group is an answer, and is not tried again.
_MOST_RETRIES = 20
_PACKAGES = ("dpfuse", "jax", "jaxlib", "equinox", "optax", "numpy")


class RayRunner(Runner):
    """Groups as Ray tasks.

    Args:
        address: of the cluster, `auto` for the one that this machine belongs to.
        cores, gpus: what each group takes of a node.
    """

    def __init__(self, address: str, cores: int, gpus: float) -> None:
        with requires_extra("fleet", "a sweep on a cluster"):
            import ray
        self._ray: Any = ray
        self._is_own = not ray.is_initialized()
        if self._is_own:
            # Without this Ray warns that it will stop hiding GPUs from tasks that ask for none.
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        environment = environment_of(cores, on_gpu=gpus > 0)
        self._task = ray.remote(_run_task).options(
            num_cpus=cores,
            num_gpus=gpus,
            max_retries=_MOST_RETRIES,
            runtime_env={"env_vars": environment},
            name="dpfuse sweep",
        )

    def share(self, parts: RecordingParts) -> Any:
        return self._ray.put(tuple(parts))

    def run(self, groups: Sequence[tuple[Any, GroupWork]]) -> Iterator[tuple[int, GroupOutcome]]:
        own = package_versions()
        running = {self._task.remote(own, parts, work): number for number, (parts, work) in enumerate(groups)}
        while running:
            ended, _ = self._ray.wait(list(running), num_returns=1)
            for task in ended:
                number = running.pop(task)
                try:
                    yield number, self._ray.get(task)
                except self._ray.exceptions.RayError as error:
                    yield number, GroupOutcome.failed(len(groups[number][1].pairs), f"Ray: {error}")

    def close(self) -> None:
        if self._is_own:
            self._ray.shutdown()


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide a design's numbers."""
    return {name: version(name) for name in _PACKAGES}


def _run_task(expected: dict[str, str], parts: tuple[Any, ...], work: GroupWork) -> GroupOutcome:
    if (own := package_versions()) != expected:
        unequal = ", ".join(
            f"{name} {own[name]} (here {expected[name]})" for name in own if own[name] != expected[name]
        )
        return GroupOutcome.failed(
            len(work.pairs), f"nodes must have the versions of the machine that starts the sweep, got {unequal}"
        )
    return run_group(RecordingParts(*parts), work)
