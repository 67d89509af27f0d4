"""Shards placed by Ray: each holder is an actor on the node that has the ledger, or on another if that node has died.

A call is never evidence that a step was or was not released: only the ledger is. So calls are not retried by Ray
(`max_task_retries=0`); the supervisor asks again, and `ShardHolder.ensure` may be called any number of times.
"""

from __future__ import annotations

import logging
import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dpfuse._extras import requires_extra
from dpfuse._logs import fields
from dpfuse.fleet.holder import ShardHolder, ShardSpec, ShardStatus

_ENDS_WITHIN_S, _CHECKS_WITHIN_S, _WAIT_S, _AWAY_S = 40.0, 30.0, 0.3, 10.0
# How long a node that was not seen yet may take to join, such as after a power cut.
_JOINS_WITHIN_S = 60.0
_AWAY = ShardStatus(state="down", addresses={})
_log = logging.getLogger(__name__)


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
    """A `ShardHolder` in an actor; one CPU is reserved for it, and new shards spread over the nodes.

    A shard listens at the address by which the cluster knows its node. It belongs to the node that has its ledger, and
    starts there again. Once this node has died, a shard with a bank goes to another one; without a bank it waits.
    A node has died if it was seen and is gone, or has not joined for a minute.
    """

    def __init__(self, name: str) -> None:
        import ray

        self._ray: Any = ray
        self._actor: Any = None
        self._tied_to: str | None = None
        self._died: str | None = None
        self._joins_until: dict[str, float] = {}  # of nodes; 0 once one was seen
        self._awaited: str | None = None
        self._asked: tuple[ShardSpec, Any, float] | None = None
        self._spec: ShardSpec | None = None
        self._last = _AWAY

    def ensure(self, spec: ShardSpec) -> ShardStatus:
        """As `ShardHolder.ensure`, without waiting for an actor that is on its way to another node."""
        if self._spec is None or not spec.is_like(self._spec):  # what is known is of another one
            self._last = _AWAY
        self._spec = spec
        if self._died is not None and (spec.node != self._died or not self._is_dead(self._died)):
            self._died = self._asked = None
        if self._actor is None:
            self._make_actor(spec.node)
        if self._asked is None:
            sent = spec if self._died is None else replace(spec, node=None)
            self._asked = spec, self._actor.ensure.remote(sent), time.monotonic()
        asked, answer, asked_at = self._asked
        if not self._ray.wait([answer], timeout=_WAIT_S)[0]:
            if self._tied_to is not None and not self._is_alive(self._tied_to):
                if spec.bank is not None and self._is_dead(self._tied_to):
                    self._make_actor(None)
                else:
                    self._tell_awaited(spec, self._tied_to)
            return self._last if time.monotonic() - asked_at < _AWAY_S else _AWAY
        self._asked = None
        try:
            found: ShardStatus = self._ray.get(answer)
        except self._ray.exceptions.RayActorError:  # carried out or not: the next call is the same
            found = _AWAY
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        if found.node is not None:
            self._joins_until[found.node], self._awaited = 0.0, None
        if found.state == "elsewhere":
            return self._go_home(spec)
        self._last = found if asked.is_like(spec) else _AWAY
        return self._last

    def _go_home(self, spec: ShardSpec) -> ShardStatus:
        """The actor is not on the node that has the ledger: bring it there, or give that node up."""
        assert spec.node is not None
        if spec.bank is None or not self._is_dead(spec.node):
            self._make_actor(spec.node)
        else:
            _log.warning("a node has died, and its shard moves", extra=fields(shard=spec.name, node=spec.node))
            self._died = spec.node
            return self.ensure(spec)
        self._last = _AWAY
        return _AWAY

    def _make_actor(self, node: str | None) -> None:
        """Begin on that node, in place of the actor before; None for any."""
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._asked, self._tied_to = None, node
        # By default Ray gives its workers, and so the shards, a low priority: steps would come late on a busy node.
        variables = {"RAY_worker_niceness": "0"}
        variables |= {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}
        remote: Any = self._ray.remote(ShardHolder)
        self._actor = remote.options(
            num_cpus=1,
            resources={} if node is None else {f"node:{node}": 0.001},  # every node has one of its own
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=1,
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": variables},
        ).remote(self._ray.util.get_node_ip_address)  # called where the actor runs

    def _is_alive(self, node: str) -> bool:
        if any(one["Alive"] and one["NodeManagerAddress"] == node for one in self._ray.nodes()):
            self._joins_until[node] = 0.0
            return True
        return False

    def _is_dead(self, node: str) -> bool:
        now = time.monotonic()
        return not self._is_alive(node) and now >= self._joins_until.setdefault(node, now + _JOINS_WITHIN_S)

    def _tell_awaited(self, spec: ShardSpec, node: str) -> None:
        if self._awaited != node:
            self._awaited = node
            present = ", ".join(sorted(one["NodeManagerAddress"] for one in self._ray.nodes() if one["Alive"]))
            text = (
                "a shard waits for node %s, which the cluster does not have (it has %s); start Ray there again at this "
            )
            text += "address, or write the one under which the cluster has it into the map of the stopped fleet"
            _log.warning(text, node, present or "none", extra=fields(shard=spec.name))

    def find_objection(self, spec: ShardSpec) -> str | None:
        """As `ShardHolder.find_objection`; a shard that is away cannot be asked, and has none."""
        if self._actor is None:
            return None
        try:
            found: str | None = self._ray.get(self._actor.find_objection.remote(spec), timeout=_CHECKS_WITHIN_S)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return None
        return found

    def stop(self) -> None:
        """Stop the shard, then its actor."""
        if self._actor is None:
            return
        with suppress(self._ray.exceptions.RayError):  # it is away, or takes too long
            self._ray.get(self._actor.stop.remote(), timeout=_ENDS_WITHIN_S)
        self._ray.kill(self._actor)
