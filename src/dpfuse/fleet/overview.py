"""One page, one map and one health over all shards of a fleet; all of it is public."""

from __future__ import annotations

import html
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dpfuse._extras import requires_extra
from dpfuse.fleet.reporter import read_map
from dpfuse.public.answers import answer, make_api
from dpfuse.public.page import HEADERS
from dpfuse.public.status import HEALTHS
from dpfuse.remote.client import connection_errors, make_client

with requires_extra("live", "serving over HTTP"):
    from fastapi import FastAPI, Response

_ASK_S, _KEPT_S = 3.0, 1.0
_MAX_HEALTH = 2**12
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5"><title>dpfuse fleet</title>
<link rel="stylesheet" href="/static/page.css"></head><body><main>
<h1>Fleet</h1><p>Map version {version}. {summary}</p>
<div class="scroll"><table><caption>Shards</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>
<div class="scroll"><table><caption>Streams</caption>
<thead><tr><th>Stream</th><th>Shard</th><th>Name there</th></tr></thead><tbody>{streams}</tbody></table></div>
<p><a href="/v1/map">map</a> · <a href="/healthz">health</a></p></main></body></html>"""
_COLUMNS = "shard", "health", "generation", "streams", "step", "steps_behind", "readers"


def describe_shards(published: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How each shard of a map is, as its own readers' address says; asks all of them at once."""
    shards = published["shards"]
    if not shards:
        return []
    with ThreadPoolExecutor(min(32, len(shards))) as pool:
        asked = list(pool.map(lambda name: _ask(shards[name]), shards))
    counts = {name: sum(one["shard"] == name for one in published["streams"].values()) for name in shards}
    return [
        {"shard": name, "generation": shards[name]["generation"], "streams": counts[name], **found}
        for name, found in zip(shards, asked, strict=True)
    ]


class ShardHealth:
    """How the shards of a map are. They are asked at most once a second, however many want to know.

    Args:
        published: returns the map.
    """

    def __init__(self, published: Callable[[], Mapping[str, Any]]) -> None:
        self._published, self._lock = published, threading.Lock()
        self._map: Mapping[str, Any] = {}
        self._shards: list[dict[str, Any]] = []
        self._due_s = 0.0

    def look(self) -> tuple[Mapping[str, Any], list[dict[str, Any]]]:
        """The map, and its shards as `describe_shards` found them within the last second."""
        with self._lock:
            published = self._published()
            if published != self._map or time.monotonic() >= self._due_s:
                self._map, self._shards = published, describe_shards(published)
                self._due_s = time.monotonic() + _KEPT_S
            return self._map, self._shards


def _ask(shard: Mapping[str, Any]) -> dict[str, Any]:
    readers, state = shard["readers"], shard["state"]
    unknown: dict[str, Any] = {"step": None, "steps_behind": None, "readers": readers}
    if readers is None:
        return unknown | {"health": state}
    try:
        found = _fetch_health(readers)
    except connection_errors():
        return unknown | {"health": "away"}
    return unknown | ({"health": "no centre"} if found is None else found)


def _fetch_health(readers: str) -> dict[str, Any] | None:
    """What `/healthz` of a centre says, whatever its status; None if it is not a centre's."""
    content = b""
    with make_client(readers) as client:
        client.timeout = _ASK_S
        with client.stream("GET", "/healthz") as response:
            for chunk in response.iter_raw():
                content += chunk
                if len(content) > _MAX_HEALTH:
                    return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("health") not in HEALTHS:
        return None
    counts = {name: found.get(name) for name in ("step", "steps_behind")}
    is_right = all(type(count) is int and 0 <= count < 2**63 for count in counts.values())
    return {"health": found["health"], **counts} if is_right else None


def fetch_map(url: str) -> dict[str, Any]:
    """The map that the fleet at that address publishes.

    Raises:
        ConnectionError: nothing answers there.
    """
    try:
        with make_client(url) as client:
            return read_map(client)
    except connection_errors() as error:
        raise ConnectionError(f"no fleet answers at {url}; is it running?") from error


def is_well(shards: list[dict[str, Any]]) -> bool:
    """Whether all shards that should release do so on time."""
    return all(shard["health"] in ("ok", "over", "drained") for shard in shards)


def make_fleet_app(published: Callable[[], Mapping[str, Any]], state: Callable[[], str] = lambda: "ok") -> FastAPI:
    """`GET /`, `/v1/map`, `/healthz` and `/livez`; `state` is that of the supervisor."""
    health = ShardHealth(published)
    app = make_api("dpfuse fleet", "Which shard has which stream, and how the shards are. All of it is public.")

    @app.get("/v1/map")
    async def get_map() -> Response:
        """Where to report and read each stream."""
        return answer(dict(published()))

    @app.get("/livez")
    async def get_liveness() -> Response:
        """200 unless the supervisor of the shards needs a new start, then 503."""
        found = state()
        return answer({"supervisor": found}, 503 if found == "broken" else 200)

    @app.get("/healthz")
    def get_health() -> Response:
        """200 if all shards release on time and their supervisor does its work, else 503."""
        found, (_, shards) = state(), health.look()
        is_ok = found == "ok" and is_well(shards)
        return answer({"ok": is_ok, "supervisor": found, "shards": shards}, 200 if is_ok else 503)

    @app.get("/", include_in_schema=False)
    def get_page() -> Response:
        return Response(render(*health.look()), media_type="text/html", headers=HEADERS)

    @app.get("/static/page.css", include_in_schema=False)
    async def get_style() -> Response:
        from dpfuse.public.page import STATIC

        return Response((STATIC / "page.css").read_bytes(), media_type="text/css", headers=HEADERS)

    return app


def render(published: Mapping[str, Any], shards: list[dict[str, Any]]) -> str:
    """The page over all shards."""
    columns = [name for name in _COLUMNS if any(name in shard for shard in shards)]

    def cell(shard: Mapping[str, Any], name: str) -> str:
        text = html.escape("–" if shard.get(name) is None else str(shard[name]))
        return f'<td><a href="{text}">{text}</a></td>' if name == "readers" and shard.get(name) else f"<td>{text}</td>"

    return _PAGE.format(
        version=published["version"],
        summary="All shards release on time." if is_well(shards) else "Some shards do not release on time.",
        head="".join(f"<th>{name.replace('_', ' ')}</th>" for name in columns),
        rows="".join(f"<tr>{''.join(cell(shard, name) for name in columns)}</tr>" for shard in shards),
        streams="".join(
            f"<tr><td>{html.escape(stream)}</td><td>{html.escape(one['shard'])}</td><td>{html.escape(one['stream'])}</td></tr>"
            for stream, one in sorted(published["streams"].items())
        ),
    )
