"""What the operator wants of a fleet, as a TOML file says it: shards, their streams, and what they share."""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# A dot is for the fleet itself: a stream that moves goes on under a name with a number.
_NAME = re.compile(r"[0-9A-Za-z_-]{1,48}", re.ASCII)
_HOST = re.compile(r"[0-9A-Za-z_.-]{1,253}", re.ASCII)
PORTS_PER_SHARD = 3


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """One shard: a fusion centre with a ledger of its own.

    Attributes:
        streams: their public names.
        port: for sensors; the next one is for readers, the one after it for the operator.
    """

    streams: tuple[str, ...]
    port: int

    @classmethod
    def from_dict(cls, name: str, given: Mapping[str, Any]) -> ShardPlan:
        """The shard that a table of the file describes."""
        if unknown := set(given) - {"streams", "port"}:
            raise ValueError(f"shards.{name} must hold streams and port alone, got {', '.join(sorted(unknown))}")
        streams, port = given.get("streams"), given.get("port")
        if not isinstance(streams, list) or not streams or not all(isinstance(one, str) for one in streams):
            raise ValueError(f"shards.{name}.streams must be a list of one or more names, got {streams!r}")
        if type(port) is not int or not 0 < port <= 65536 - PORTS_PER_SHARD:
            raise ValueError(f"shards.{name}.port must be a port with two more after it, got {port!r}")
        return cls(streams=tuple(streams), port=port)


@dataclass(frozen=True, kw_only=True)
class FleetPlan:
    """A whole fleet; all of it is public.

    Attributes:
        shards: by name.
        design: of all shards: a path, or freeway.
        folder: holds a folder for each shard, with its ledger, and the map.
        keys: the key file, shared by all shards.
        bank: lends the accounts of the sensors to all shards; None for accounts of each ledger alone. Then a stream
            stays in its ledger, and a lost ledger is not replaced.
        host, port: where map, page and health of the fleet are served. Shards listen at this host, too, each at its own
            port; shards that Ray places listen at the address of their node.
        hosts: the names that the map shows in the place of the addresses where shards listen.
        per_address: connections of one address that page, map and health serve; 0 for any number, behind a proxy.
        interval_s: seconds between releases; None for the design's.
        options: more options of `dpfuse serve`, for every shard; `{ledger}` stands for a name of its ledger, such as
            north-ledger-1.
    """

    shards: Mapping[str, ShardPlan]
    design: str
    folder: Path
    keys: Path
    bank: str | None = None
    host: str = "127.0.0.1"
    port: int = 8700
    hosts: Mapping[str, str] = field(default_factory=dict)
    per_address: int = 256
    interval_s: float | None = None
    options: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.shards:
            raise ValueError("shards must hold at least one shard, [shards.NAME]")
        named = [*self.shards, *(stream for shard in self.shards.values() for stream in shard.streams)]
        if wrong := [name for name in named if not _NAME.fullmatch(name)]:
            raise ValueError(f"names must be of letters, digits, _ and -, at most 48, got {wrong[0]!r}")
        counted = Counter(stream for shard in self.shards.values() for stream in shard.streams)
        if twice := [stream for stream, number in counted.items() if number > 1]:
            raise ValueError(f"each stream must be in one shard, got {twice[0]!r} in more")
        ports = sorted([self.port, *(shard.port + n for shard in self.shards.values() for n in range(PORTS_PER_SHARD))])
        if taken := [port for port, after in zip(ports, ports[1:], strict=False) if port == after]:
            raise ValueError(f"ports must differ, each shard has {PORTS_PER_SHARD} in a row, got {taken[0]} twice")
        if type(self.per_address) is not int or self.per_address < 0:
            raise ValueError(f"per_address must be a number of connections, 0 for any number, got {self.per_address!r}")
        if not isinstance(self.hosts, Mapping) or not all(map(_is_host, self.hosts.values())):
            raise ValueError(
                f"hosts must be a table of names or addresses of machines, without ports, got {self.hosts!r}"
            )
        if _is_every_address(self.host) and self.host not in self.hosts:
            raise ValueError(
                f"hosts must say under which name the map shows shards that listen at {self.host!r}, which nobody can "
                f'connect to; write hosts = {{"{self.host}" = "NAME OF THIS MACHINE"}}'
            )

    @property
    def address(self) -> str:
        """The URL of the fleet itself."""
        return self.published(_url("http", self.host, self.port))

    def published(self, address: str) -> str:
        """The URL that the map shows for a URL where a shard listens."""
        found = urlsplit(address)
        name = self.hosts.get(found.hostname or "")
        if name is None:
            return address
        return _url(found.scheme, name, found.port)

    @classmethod
    def load(cls, path: Path) -> FleetPlan:
        """The plan in a TOML file; paths in it are relative to its folder."""
        try:
            given = tomllib.loads(path.read_text())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path} is not TOML: {error}") from error
        known = {one.name for one in fields(cls)} - {"interval_s"} | {"interval"}
        if unknown := set(given) - known:
            raise ValueError(f"{path} must hold {', '.join(sorted(known))}, got {', '.join(sorted(unknown))}")
        if missing := {"design", "keys", "shards"} - set(given):
            raise ValueError(f"{path} must hold {', '.join(sorted(missing))}")
        base = path.resolve().parent
        shards = {name: ShardPlan.from_dict(name, table) for name, table in given["shards"].items()}
        own = {name: given[name] for name in ("bank", "host", "port", "hosts", "per_address") if name in given}
        design = str(given["design"])
        return cls(
            shards=shards,
            design=str(base / design) if (base / design).exists() else design,
            folder=base / str(given.get("folder", "fleet")),
            keys=base / str(given["keys"]),
            interval_s=None if "interval" not in given else float(given["interval"]),
            options=tuple(map(str, given.get("options", ()))),
            **own,
        )


def _url(scheme: str, host: str, port: int | None) -> str:
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_host(name: Any) -> bool:
    return isinstance(name, str) and bool(_HOST.fullmatch(name) or _is_address(name))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_every_address(host: str) -> bool:
    return not host or (_is_address(host) and ipaddress.ip_address(host).is_unspecified)
