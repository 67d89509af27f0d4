"""Shards placed by Ray: each holder is an actor, which Ray starts again elsewhere if its node dies.

A call is never evidence that a step was or was not released: only the ledger is. So calls are not retried by Ray
(`max_task_retries=0`); the supervisor asks again, and `ShardHolder.ensure` may be called any number of times.
"""

from __future__ import annotations

import os
import time
from typing import Any

from dpfuse._extras import requires_extra
from dpfuse.fleet.holder import ShardHolder, ShardSpec, ShardStatus

_ENDS_WITHIN_S, _CHECKS_WITHIN_S, _WAIT_S, _AWAY_S = 40.0, 30.0, 0.3, 10.0
_AWAY = ShardStatus(state="down", addresses={})


def connect(address: str | None) -> None:
    """Connect to the Ray cluster at that address; None starts one on this machine, on loopback."""
    with requires_extra("fleet", "placing shards by Ray"):
        import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    ray.init(
        address=address, include_dashboard=False if address is None else None, log_to_driver=True, logging_level=30
    )


class RayHolder:
    """A `ShardHolder` in an actor; one CPU is reserved for it, and shards spread over the nodes.

    A shard listens at the address by which the cluster knows its node.
    """

    def __init__(self, name: str) -> None:
        import ray

        path = os.environ.get("PYTHONPATH", "")
        remote: Any = ray.remote(ShardHolder)
        self._ray = ray
        self._asked: tuple[ShardSpec, Any, float] | None = None
        self._spec: ShardSpec | None = None
        self._last = _AWAY
        self._actor = remote.options(
            name=f"dpfuse-shard-{name}",
            num_cpus=1,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=1,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": {"PYTHONPATH": path}} if path else {},
        ).remote(ray.util.get_node_ip_address)  # called where the actor runs

    def ensure(self, spec: ShardSpec) -> ShardStatus:
        """As `ShardHolder.ensure`, without waiting for an actor that is on its way to another node."""
        if spec != self._spec:  # what is known is of another one
            self._spec, self._last = spec, _AWAY
        if self._asked is None:
            self._asked = spec, self._actor.ensure.remote(spec), time.monotonic()
        asked, answer, asked_at = self._asked
        if not self._ray.wait([answer], timeout=_WAIT_S)[0]:
            return self._last if time.monotonic() - asked_at < _AWAY_S else _AWAY
        self._asked = None
        try:
            found: ShardStatus = self._ray.get(answer)
        except self._ray.exceptions.RayActorError:  # carried out or not: the next call is the same
            found = _AWAY
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        self._last = found if asked == spec else _AWAY
        return self._last

    def find_objection(self, spec: ShardSpec) -> str | None:
        """As `ShardHolder.find_objection`; a shard that is away cannot be asked, and has none."""
        try:
            found: str | None = self._ray.get(self._actor.find_objection.remote(spec), timeout=_CHECKS_WITHIN_S)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return None
        return found

    def stop(self) -> None:
        """Stop the shard, then its actor."""
        try:
            self._ray.get(self._actor.stop.remote(), timeout=_ENDS_WITHIN_S)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            pass
        self._ray.kill(self._actor)
