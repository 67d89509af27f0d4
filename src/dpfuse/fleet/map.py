"""The map of a fleet: which shard has which stream, and under which name in its ledger. Public.

The map changes when the operator's plan changes, and when a ledger is lost. It never follows load, so it says nothing
about sensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from dpfuse.errors import DpfuseError, LedgerMismatch
from dpfuse.fleet.plan import FleetPlan

MAP_FILE = "map.json"
_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class ShardEntry:
    """A shard in the map.

    Attributes:
        generation: of its ledger: 2 after the first one was lost.
        streams: the name in the ledger of each stream, by its public name.
        is_made: whether the ledger was made; if it is missing then, it was lost.
        is_drained: the plan has the shard no more; its ledger stays.
        node: by Ray: the address of the node that has the ledger; None for this machine.
    """

    generation: int = 1
    streams: Mapping[str, str] = field(default_factory=dict)
    is_made: bool = False
    is_drained: bool = False
    node: str | None = None


@dataclass(frozen=True, kw_only=True)
class FleetMap:
    """All shards, and where each stream has been.

    Attributes:
        version: goes up with every change.
        shards: by name; those that are drained too.
        num_names: how many names each stream has had: a ledger keeps the names of its streams for ever.
        homes: the last shard and generation of each stream, and its name there.
    """

    version: int = 0
    shards: Mapping[str, ShardEntry] = field(default_factory=dict)
    num_names: Mapping[str, int] = field(default_factory=dict)
    homes: Mapping[str, tuple[str, int, str]] = field(default_factory=dict)

    def follow(self, plan: FleetPlan) -> FleetMap:
        """The map for that plan: shards are added and drained, and streams move.

        Raises:
            ValueError: a stream would move between ledgers that share no accounts: its sensors would have two budgets.
        """
        names, homes, shards = dict(self.num_names), dict(self.homes), {}
        for shard, wanted in plan.shards.items():
            before = self.shards.get(shard, ShardEntry())
            streams = {}
            for stream in wanted.streams:
                home = homes.get(stream)
                if home is not None and home[:2] == (shard, before.generation):
                    streams[stream] = home[2]
                    continue
                if home is not None and plan.bank is None:
                    raise ValueError(
                        f"stream {stream!r} must stay in shard {home[0]!r}, which has its accounts, got {shard!r}; a "
                        f"fleet with a bank can move streams"
                    )
                names[stream] = names.get(stream, 0) + 1
                streams[stream] = _name(stream, names[stream])
                homes[stream] = (shard, before.generation, streams[stream])
            shards[shard] = replace(before, streams=streams, is_drained=False)
        drained = {name: replace(entry, streams={}, is_drained=True) for name, entry in self.shards.items()}
        made = replace(self, shards=drained | shards, num_names=names, homes=homes)
        return self if made == self else replace(made, version=self.version + 1)

    def with_new_generation(self, shard: str) -> FleetMap:
        """The map after the ledger of a shard was lost: all its streams go on under new names in a new ledger."""
        entry, names, homes = self.shards[shard], dict(self.num_names), dict(self.homes)
        streams = {}
        for stream in entry.streams:
            names[stream] += 1
            streams[stream] = _name(stream, names[stream])
            homes[stream] = (shard, entry.generation + 1, streams[stream])
        changed = replace(entry, generation=entry.generation + 1, streams=streams, is_made=False, node=None)
        return replace(
            self, version=self.version + 1, shards={**self.shards, shard: changed}, num_names=names, homes=homes
        )

    def with_made(self, shard: str, node: str | None = None) -> FleetMap:
        """The map once it is known that a shard has a ledger, and on which node."""
        return replace(self, shards={**self.shards, shard: replace(self.shards[shard], is_made=True, node=node)})

    def check_places(self, *, is_on_nodes: bool) -> None:
        """Refuse to look for a ledger where it cannot be, since it would then count as lost.

        Args:
            is_on_nodes: whether Ray places the shards; False if they run on this machine.

        Raises:
            LedgerMismatch: a ledger is elsewhere.
        """
        for name, entry in self.shards.items():
            if not entry.is_made or entry.is_drained:
                continue
            if is_on_nodes and entry.node is None:
                raise LedgerMismatch(
                    f"shard {name!r} has its ledger on the machine where the fleet ran without --ray; write the "
                    f'address of the node that has its folder now as "node" of the shard into {MAP_FILE}'
                )
            if not is_on_nodes and entry.node is not None:
                raise LedgerMismatch(
                    f"shard {name!r} has its ledger on node {entry.node}; give --ray, or move its folder to this "
                    f'machine and write null as "node" of the shard into {MAP_FILE}'
                )

    def save(self, path: Path) -> None:
        """Write it durably: what is in it is decided before anything is done."""
        new = path.with_suffix(".new")
        with new.open("w") as file:
            json.dump({"format": _VERSION} | asdict(self), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @classmethod
    def load(cls, path: Path) -> FleetMap:
        """The map in that file; an empty one if there is no file."""
        if not path.exists():
            return cls()
        try:
            found = json.loads(path.read_text())
            if found.pop("format") != _VERSION:
                raise DpfuseError(f"{path} is a map of another version of dpfuse; use that version")
            shards = {name: ShardEntry(**entry) for name, entry in found.pop("shards").items()}
            homes = {stream: tuple(home) for stream, home in found.pop("homes").items()}
            return cls(shards=shards, homes=homes, **found)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DpfuseError(f"{path} is not the map of a fleet; put the right file back") from error


def _name(stream: str, number: int) -> str:
    return stream if number == 1 else f"{stream}.{number}"
