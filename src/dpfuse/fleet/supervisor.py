"""A fleet that runs: follows its plan, keeps every shard up, and publishes the map."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from dpfuse._logs import fields
from dpfuse.errors import DpfuseError
from dpfuse.fleet.holder import ShardHolder, ShardSpec, ShardStatus
from dpfuse.fleet.map import MAP_FILE, FleetMap, ShardEntry
from dpfuse.fleet.plan import FleetPlan
from dpfuse.fleet.shard_ledger import find_objection

_LOOK_EVERY_S = 0.5
_CHANGES_WITHIN_S = 120.0
# How long before its stop a shard that changes says so in the map.
_ANNOUNCED_S = 5.0
# A part of the work that fails for so long in an unforeseen way is mended by a new start, if at all.
_BROKEN_AFTER_S = 60.0
_MAX_THREADS = 64
_BEGINS = ShardStatus(state="starting", addresses={})
_log = logging.getLogger(__name__)

SupervisorState = Literal["ok", "failing", "broken"]
"""`failing`: it cannot do a part of its work, and tries again. `broken`: it needs a new start."""


class ShardRunner(Protocol):
    """What runs a shard, here or elsewhere; see `ShardHolder`."""

    def ensure(self, spec: ShardSpec) -> ShardStatus: ...

    def find_objection(self, spec: ShardSpec) -> str | None: ...

    def stop(self) -> None: ...


@dataclass
class _Shard:
    """A shard as it is. While the fleet changes to a new plan, one that waits keeps entry and spec of the old plan."""

    runner: ShardRunner
    entry: ShardEntry
    spec: ShardSpec
    status: ShardStatus = _BEGINS
    stops_at: float | None = None


class Fleet:
    """Runs the shards of a plan.

    **Guarantees**
        - While the fleet runs, a new plan is refused as a whole if the ledger of a shard could not follow it, such as
          for a design with another guarantee.
        - A change is in the map, durably, before any shard changes: a fleet that is killed goes on with it.
        - One shard changes at a time, each by a stop in order, a change of its ledger and a start; the next one waits
          until it is up. The map says when a shard will stop. Steps go on with the next number, so none is skipped;
          while the shard starts, none is made.
        - A lost ledger is replaced only if there is a bank, by a new generation with new names of its streams; what the
          bank had lent to the old one stays spent.
        - The map depends on the plan and on lost ledgers alone.
        - What fails, such as on a full disk, is logged once and tried again; shards that run go on meanwhile.

    Args:
        make_holder: makes what runs a shard, by name.
    """

    def __init__(self, plan: FleetPlan, make_holder: Callable[[str], ShardRunner] = lambda name: ShardHolder()) -> None:
        self._plan, self._make_holder = plan, make_holder
        plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = plan.folder / MAP_FILE
        self._shards: dict[str, _Shard] = {}
        self._waiting: list[str] = []
        self._changing: tuple[str, float] | None = None
        self._stop_due = 0.0
        self._told: set[tuple[str, str]] = set()
        self._new_plan: FleetPlan | None = None
        self._failures: dict[str, str | None] = {}
        self._broken_at: dict[str, float] = {}  # when each part that fails in an unforeseen way counts as broken
        self._is_stopping, self._wake = threading.Event(), threading.Event()
        self._map = FleetMap.load(self._path)
        self._set_map(self._map.follow(plan))
        self._pool = ThreadPoolExecutor(_MAX_THREADS, "dpfuse-shard")
        self._thread = threading.Thread(target=self._run, name="dpfuse-fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def follow(self, plan: FleetPlan) -> None:
        """Follow another plan from now on; refused at once if it cannot be followed.

        What needs a look at designs and ledgers is checked soon after, before anything changes; if that fails, the
        fleet logs why and keeps its plan.

        Raises:
            ValueError: see `FleetMap.follow`; or folder, bank or port differ, which takes a new start.
        """
        if (plan.folder, plan.bank, plan.host, plan.port) != (
            self._plan.folder,
            self._plan.bank,
            self._plan.host,
            self._plan.port,
        ):
            raise ValueError("folder, bank, host and port must stay as they are while the fleet runs; start it again")
        self._map.follow(plan)
        self._new_plan = plan
        self._wake.set()

    def stop(self) -> None:
        """Stop all shards in order."""
        self._is_stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        for done in [self._pool.submit(shard.runner.stop) for shard in self._shards.values()]:
            done.result()
        self._shards.clear()

    def state(self) -> SupervisorState:
        """How the supervisor is; what fails of the system, such as on a full disk, is no reason for a new start."""
        is_over = self._thread.ident is not None and not self._thread.is_alive()
        if is_over or any(time.monotonic() >= at for at in self._broken_at.copy().values()):
            return "broken"
        return "failing" if any(self._failures.copy().values()) else "ok"

    def published_map(self) -> dict[str, Any]:
        """Where to report and read each stream, and which shards will stop for a change; public."""
        running = dict(self._shards)
        streams = {
            stream: {"shard": name, "stream": own_name, "sensors": None, "readers": None}
            for name, entry in self._map.shards.items()
            for stream, own_name in entry.streams.items()
        }
        for name, shard in running.items():
            found = self._published(shard)
            for stream, own_name in shard.entry.streams.items():
                kinds = {kind: found.get(kind) for kind in ("sensors", "readers")}
                streams[stream] = {"shard": name, "stream": own_name, **kinds}
        shards = {name: self._describe(name, running.get(name)) for name in self._map.shards}
        return {"version": self._map.version, "streams": streams, "shards": shards}

    def _describe(self, name: str, shard: _Shard | None) -> dict[str, Any]:
        entry = self._map.shards[name]
        if shard is None:
            state = "drained" if entry.is_drained else _BEGINS.state
            return {"state": state, "generation": entry.generation, "readers": None, "stops_at": None}
        return {
            "state": shard.status.state,
            "generation": shard.entry.generation,
            "readers": self._published(shard).get("readers"),
            "stops_at": shard.stops_at,
        }

    def _published(self, shard: _Shard) -> dict[str, str]:
        return {kind: self._plan.published(address) for kind, address in shard.status.addresses.items()}

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            for part in (self._take_plan, self._advance, self._look):
                self._attempt(part)
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()

    def _attempt(self, part: Callable[[], None]) -> None:
        """Do a part of a round; if it fails, say so once. The next round does it again, whatever was done of it."""
        name, reason = part.__name__, None
        try:
            part()
        except Exception as error:
            reason = _in_words(error)
            if reason != self._failures.get(name):
                _log.error("the fleet cannot do its work, and tries again: %s", reason, extra=fields(part=name))
            if not isinstance(error, OSError):
                self._broken_at.setdefault(name, time.monotonic() + _BROKEN_AFTER_S)
        self._failures[name] = reason
        if reason is None:
            self._broken_at.pop(name, None)

    def _take_plan(self) -> None:
        plan, self._new_plan = self._new_plan, None
        if plan is not None:
            self._change(plan)

    def _change(self, plan: FleetPlan) -> None:
        """Take another plan, if all shards can follow it; they then change in turn, those that lose streams first."""
        try:
            changed = self._map.follow(plan)
            self._check(plan, changed)
            self._set_map(changed)
        except Exception as error:
            reason = str(error) if isinstance(error, DpfuseError | OSError | ValueError) else _in_words(error)
            _log.error("the fleet keeps its plan: %s", reason, extra=fields(version=self._map.version))
            return
        losing = [
            name
            for name, shard in self._shards.items()
            if set(shard.entry.streams) - set(changed.shards[name].streams) or name not in plan.shards
        ]
        self._plan, self._changing = plan, None
        self._waiting = [*losing, *(name for name in plan.shards if name not in losing)]
        _log.warning("the fleet follows a new plan", extra=fields(version=changed.version))

    def _check(self, plan: FleetPlan, changed: FleetMap) -> None:
        """Ask every shard that would change whether it can, where its ledger is; a new one is asked here."""

        def ask(name: str) -> str | None:
            spec, shard = _spec(plan, name, changed.shards[name]), self._shards.get(name)
            if shard is None:
                return find_objection(spec)
            return None if spec == shard.spec else shard.runner.find_objection(spec)

        for name, objection in zip(plan.shards, self._pool.map(ask, plan.shards), strict=True):
            if objection is not None:
                raise ValueError(f"shard {name!r} cannot follow the new one: {objection}")

    def _advance(self) -> None:
        """Let the next shard change, once the one before it is up and its own stop was announced."""
        if self._changing is not None:
            name, until = self._changing
            if self._shards[name].status.state != "up":
                if time.monotonic() > until:
                    self._tell(name, "a changed shard does not come up; the others keep design and streams until it is")
                return
            self._changing = None
        while self._waiting and self._changing is None and self._may_change(self._waiting[0]):
            name = self._waiting[0]
            if name not in self._plan.shards:
                self._drain(name)
            elif self._follow_map(name):
                self._changing = name, time.monotonic() + _CHANGES_WITHIN_S
            self._waiting.pop(0)

    def _may_change(self, name: str) -> bool:
        """Whether the shard need not stop for its change, or its stop was announced long enough ago."""
        shard = self._shards.get(name)
        if shard is None or shard.status.state not in ("up", "starting"):
            return True
        if name in self._plan.shards and shard.spec == _spec(self._plan, name, self._map.shards[name]):
            return True
        if shard.stops_at is None:
            shard.stops_at, self._stop_due = time.time() + _ANNOUNCED_S, time.monotonic() + _ANNOUNCED_S
            _log.warning("a shard will stop for a change", extra=fields(shard=name))
        return time.monotonic() >= self._stop_due

    def _follow_map(self, name: str) -> bool:
        """Let the shard be as the map says from now on; returns whether that changes it."""
        entry, shard = self._map.shards[name], self._shards.get(name)
        spec = _spec(self._plan, name, entry)
        if shard is not None and shard.spec == spec:
            shard.entry, shard.stops_at = entry, None
            return False
        runner = self._make_holder(name) if shard is None else shard.runner
        self._shards[name] = _Shard(runner, entry, spec)
        return True

    def _drain(self, name: str) -> None:
        if name in self._shards:
            self._shards[name].runner.stop()
            del self._shards[name]
        _log.warning("a shard was drained", extra=fields(shard=name))

    def _look(self) -> None:
        """Ask every shard at once how it is, and see to what they say."""
        for name in self._plan.shards:
            if name not in self._shards and name not in self._waiting:
                self._follow_map(name)
        failures = []
        for name, found in zip(self._shards, self._pool.map(_ensure, self._shards.values()), strict=True):
            try:
                self._note(name, found)
            except Exception as error:  # of one shard, such as a map that cannot be written; the others go on
                failures.append(error)
        if failures:
            raise failures[0]

    def _note(self, name: str, found: ShardStatus | Exception) -> None:
        shard = self._shards[name]
        if isinstance(found, Exception):
            shard.status = ShardStatus(state="down", addresses={})
            self._tell(name, f"a shard cannot start: {found}")
            return
        shard.status = found
        if found.state == "made" or (found.state in ("starting", "up") and found.node != shard.entry.node):
            self._set_map(self._map.with_made(name, found.node))
            shard.entry = replace(shard.entry, is_made=True, node=found.node)
            shard.spec = replace(shard.spec, is_made=True, node=found.node)
            self._wake.set()
        elif found.state == "lost" and self._plan.bank is None:
            self._tell(name, f"{shard.spec.ledger} was lost, and no bank knows what it spent: restore it from a backup")
        elif found.state == "lost" and name in self._plan.shards:
            self._set_map(self._map.with_new_generation(name))
            self._waiting = [other for other in self._waiting if other != name]
            self._follow_map(name)
            _log.error("a ledger was lost: a new generation begins", extra=fields(shard=name))

    def _tell(self, name: str, text: str) -> None:
        if (name, text) not in self._told:
            self._told.add((name, text))
            _log.error("%s", text, extra=fields(shard=name))

    def _set_map(self, changed: FleetMap) -> None:
        if changed != self._map or not self._path.exists():
            changed.save(self._path)
        self._map = changed


def _ensure(shard: _Shard) -> ShardStatus | Exception:
    try:
        return shard.runner.ensure(shard.spec)
    except Exception as error:  # of one shard; the others go on
        return error


def _in_words(error: Exception) -> str:
    """An unforeseen error, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"


def _spec(plan: FleetPlan, name: str, entry: ShardEntry) -> ShardSpec:
    return ShardSpec(
        name=name,
        ledger=plan.folder / name / f"ledger-{entry.generation}.db",
        streams=tuple(sorted(entry.streams.values())),
        is_made=entry.is_made,
        design=plan.design,
        keys=plan.keys,
        port=plan.shards[name].port,
        host=plan.host,
        bank=plan.bank,
        interval_s=plan.interval_s,
        options=plan.options,
        node=entry.node,
    )
