"""Holds one shard: a `dpfuse serve` process with its ledger, on the machine where the holder is."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dpfuse._logs import fields, log_options
from dpfuse.fleet.shard_ledger import change_ledger, find_objection, has_writer, make_ledger

_CODE = "from dpfuse.cli import _processes, main; _processes.end_with_parent(); main()"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S = 0.2, 5.0, 30.0
_ENDS_WITHIN_S, _ANSWERS_WITHIN_S = 30.0, 2.0
# A shard is killed when /livez has not been good for so long; a busy intake may delay an answer. One bad answer counts
# for at most _GAP_S of it, however long nobody asked before.
_ALIVE_WITHIN_S, _GAP_S = 30.0, 5.0
_log = logging.getLogger(__name__)

ShardState = Literal["made", "lost", "elsewhere", "starting", "up", "down"]
"""`made`: the ledger was just made, and the shard starts once that is in the map. `lost`: the ledger is missing.
`elsewhere`: another node has it."""


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """What a holder runs; all of it is public.

    Attributes:
        name: of the shard, and of the centre at the bank.
        streams: the names in the ledger.
        is_made: whether the ledger was made before.
        host: where sensors and readers connect; the operator's port is on loopback.
        port: for sensors; the next two are for readers and the operator.
        node: the address of the node that has the ledger; None if the shard may begin on any.
    """

    name: str
    ledger: Path
    streams: tuple[str, ...]
    is_made: bool
    design: str
    keys: Path
    port: int
    host: str = "127.0.0.1"
    bank: str | None = None
    interval_s: float | None = None
    options: tuple[str, ...] = ()
    node: str | None = None

    def is_like(self, other: ShardSpec) -> bool:
        """Whether both are the same to a shard that runs, whatever became of its ledger meanwhile."""
        return replace(self, is_made=other.is_made, node=other.node) == other

    def serve_command(self) -> list[str]:
        """The words of `dpfuse serve`."""
        words = ["serve", f"--design={self.design}", f"--ledger={self.ledger}", f"--keys={self.keys}"]
        words += [f"--host={self.host}", f"--port={self.port}", f"--reading-port={self.port + 1}"]
        words += [f"--operator-port={self.port + 2}", *(f"--stream={name}" for name in self.streams), *log_options()]
        words += [] if self.bank is None else [f"--bank={self.bank}", f"--centre={self.name}"]
        words += [] if self.interval_s is None else [f"--interval={self.interval_s}"]
        return [*words, *(word.replace("{ledger}", f"{self.name}-{self.ledger.stem}") for word in self.options)]


@dataclass(frozen=True, kw_only=True)
class ShardStatus:
    """How a shard is.

    Attributes:
        addresses: those that the centre has printed: sensors, readers, operator.
        node: where it is, by Ray.
    """

    state: ShardState
    addresses: Mapping[str, str]
    num_starts: int = 0
    pid: int | None = None
    node: str | None = None


class ShardHolder:
    """Keeps a shard running: `ensure` is called again and again, and never starts a second process.

    **Guarantees**
        - A ledger is made only for a spec with `is_made` False, and then the shard does not start before a spec says
          that it was made: a missing ledger is not replaced in silence.
        - What was released is decided by the ledger alone. A call that is made twice, or whose answer is lost, changes
          nothing.
        - On a node that has not the ledger nothing is made and nothing is called lost.
        - The process ends when the holder's process ends.

    Args:
        find_node: returns the address of this node, where the shard listens; None to listen at the host of the spec.
    """

    def __init__(self, find_node: Callable[[], str] | None = None) -> None:
        self._node = None if find_node is None else find_node()
        self._spec: ShardSpec | None = None
        self._process: subprocess.Popen[str] | None = None
        self._addresses: dict[str, str] = {}
        self._num_starts = 0
        self._asked_at: float | None = None
        self._silent_s = 0.0
        self._started_at, self._next_at, self._pause_s = 0.0, 0.0, _FIRST_PAUSE_S
        self._must_change = False

    def ensure(self, spec: ShardSpec) -> ShardStatus:
        """Bring the shard to that spec, unless it is; returns at once but for a change of streams or design."""
        before, self._spec = self._spec, spec
        if None not in (self._node, spec.node) and self._node != spec.node:
            return self._status("elsewhere")
        if before is not None and not before.is_like(spec):
            self.stop()
            self._must_change, self._next_at, self._pause_s = True, 0.0, _FIRST_PAUSE_S
        if self._is_running():
            self._check_liveness()
            return self._status("up" if self._is_up() else "starting")
        if time.monotonic() < self._next_at:
            return self._status("down")
        if not spec.ledger.exists():
            if spec.is_made:
                return self._status("lost")
            make_ledger(spec)
            return self._status("made")
        if not spec.is_made:
            return self._status("made")
        if has_writer(spec):  # a killed shard's process may need a moment to end
            self._next_at = time.monotonic() + _FIRST_PAUSE_S
            return self._status("down")
        if self._must_change:
            change_ledger(spec)
            self._must_change = False
        self._start(spec)
        return self._status("starting")

    def find_objection(self, spec: ShardSpec) -> str | None:
        """Why the shard cannot follow that spec; None if it can. Changes nothing."""
        return find_objection(spec)

    def stop(self) -> None:
        """Stop the process in order: what it committed is published."""
        process, self._process, self._addresses = self._process, None, {}
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None  # a pipe
        process.stdin.close()

    def _is_running(self) -> bool:
        if self._process is None:
            return False
        code = self._process.poll()
        if code is None:
            return True
        self._note_end(code)
        return False

    def _note_end(self, code: int) -> None:
        """Start it again: at once if it ran for a while, else after longer and longer pauses."""
        assert self._spec is not None and self._process is not None
        now = time.monotonic()
        self._pause_s = (
            _FIRST_PAUSE_S if now - self._started_at > _STEADY_S else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        )
        self._next_at = now + self._pause_s
        # A start that was refused may be one after a crash in the middle of a change of the ledger.
        self._must_change = self._must_change or (code == 2 and "sensors" not in self._addresses)
        self._process, self._addresses = None, {}
        _log.warning("a shard has ended and starts again", extra=fields(shard=self._spec.name, exit=code))

    def _is_up(self) -> bool:
        return {"sensors", "readers"} <= set(self._addresses)

    def _check_liveness(self) -> None:
        """Kill a process that does not move any more."""
        from dpfuse.remote.client import connection_errors, make_client

        if not self._is_up() or self._process is None or self._spec is None:
            return
        try:
            with make_client(self._addresses["operator"], None) as client:
                is_alive = client.get("/livez", timeout=_ANSWERS_WITHIN_S).status_code == 200
        except connection_errors():
            is_alive = False
        now = time.monotonic()
        passed_s = 0.0 if self._asked_at is None else min(now - self._asked_at, _GAP_S)
        self._asked_at, self._silent_s = now, 0.0 if is_alive else self._silent_s + passed_s
        if self._silent_s >= _ALIVE_WITHIN_S:
            _log.error("a shard hangs and is killed", extra=fields(shard=self._spec.name))
            self._process.kill()

    def _start(self, spec: ShardSpec) -> None:
        self._addresses, self._num_starts, self._started_at = {}, self._num_starts + 1, time.monotonic()
        self._asked_at, self._silent_s = None, 0.0
        cache = spec.ledger.parent.parent / "compiled"  # owned by the fleet, for all shards
        spec = spec if self._node is None else replace(spec, host=self._node)
        environment = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05"}
        # In its own session, so that Ctrl-C reaches the fleet only, which then stops its shards in order.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CODE, *spec.serve_command()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment | os.environ | {"DPFUSE_SHARD": spec.name},
        )
        threading.Thread(target=self._read, args=(self._process, self._addresses), daemon=True).start()

    @staticmethod
    def _read(process: subprocess.Popen[str], addresses: dict[str, str]) -> None:
        assert process.stdout is not None  # a pipe
        with process.stdout as lines:
            for line in lines:
                kind, _, address = line.strip().partition(" ")
                addresses[kind] = address

    def _status(self, state: ShardState) -> ShardStatus:
        pid = None if self._process is None else self._process.pid
        return ShardStatus(
            state=state, addresses=dict(self._addresses), num_starts=self._num_starts, pid=pid, node=self._node
        )
