"""The way of reports into a fleet: its public map names the shard of each stream, and the name that it has there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dpfuse.errors import ReleaseRefused
from dpfuse.remote.client import connection_errors, get_json, make_client

if TYPE_CHECKING:
    import httpx

_MAP_EVERY_S = 2.0


class FleetReporter:
    """Sends the reports of sensors to a fleet, each to the shard that the map names.

    The map is read every two seconds, and again after a shard did not answer: streams move, and shards come back.

    Args:
        url: of the fleet, which serves the map.
        ca: holds certificates to trust in place of the system's.
        cert: holds the sensors' own certificate and its key, for shards that ask for one.
    """

    def __init__(self, url: str, ca: Path | None = None, cert: Path | None = None) -> None:
        self._fleet = make_client(url, ca, cert)
        self._ca, self._cert = ca, cert
        self._shards: dict[str, httpx.Client] = {}
        self._streams: dict[str, dict[str, str | None]] = {}
        self._map_due_s = 0.0

    def send(self, stream: str, write_lines: Callable[[str, int], Iterable[bytes]]) -> bool:
        """Send reports for the open step; False if no shard takes any at this moment: try the next step.

        Args:
            stream: its public name, which is the one in the fleet's plan.
            write_lines: returns the reports, each as `write_report` writes it, for a name of the stream and a step. The
                reports must be signed for this name: it changes when the stream moves.

        Raises:
            ValueError: the map has no such stream.
            PermissionError: the shard refuses one of the reports.
            ReleaseRefused: what answers is no fleet or no shard.
        """
        try:
            place = self._find(stream)
            if (sensors := place["sensors"]) is None:
                return False
            shard = self._shard_at(sensors)
            step = _read(shard, "/v1/clock", "step", int)
            content = b"\n".join(write_lines(str(place["stream"]), step))
            answer = shard.post("/v1/reports", content=content, headers={"content-type": "application/x-ndjson"})
        except connection_errors():
            self._map_due_s = 0.0
            return False
        if answer.status_code == 202 and answer.json()["refused"]:
            raise PermissionError(f"the shard at {sensors} refuses reports; sign with keys of the fleet's key file")
        return answer.status_code == 202

    def close(self) -> None:
        """Close all connections."""
        for client in (self._fleet, *self._shards.values()):
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _find(self, stream: str) -> dict[str, str | None]:
        if time.monotonic() >= self._map_due_s:
            self._streams = _read(self._fleet, "/v1/map", "streams", dict)
            self._map_due_s = time.monotonic() + _MAP_EVERY_S
        if stream not in self._streams:
            raise ValueError(f"stream must be one of the fleet's map, {', '.join(self._streams)}; got {stream!r}")
        place = self._streams[stream]
        if not isinstance(place, dict) or not place.keys() >= {"stream", "sensors"}:
            raise ReleaseRefused(f"{self._fleet.base_url} must say where each stream is; is it the address of a fleet?")
        return place

    def _shard_at(self, sensors: str) -> httpx.Client:
        if sensors not in self._shards:
            self._shards[sensors] = make_client(sensors, self._ca, self._cert)
        return self._shards[sensors]


def _read(client: httpx.Client, path: str, name: str, kind: type) -> Any:
    """One value of an answer."""
    value = get_json(client, path).get(name)
    if not isinstance(value, kind):
        raise ReleaseRefused(
            f"{client.base_url} must answer {name!r} at {path}; is it the address of a fleet or shard?"
        )
    return value


def read_map(client: httpx.Client) -> dict[str, Any]:
    """The map that the fleet publishes."""
    return get_json(client, "/v1/map")
