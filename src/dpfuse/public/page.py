"""The page and its feed, as routes of the application. The page loads only files of this package."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from fastapi import APIRouter, HTTPException, Response

from dpfuse.privacy.budget import GRID
from dpfuse.privacy.statement import ASSUMED, UNCOVERED, Statement
from dpfuse.public.events import EventStream, LastEventId, StartStep, SubscriberLimit, first_after
from dpfuse.public.feed import Feed
from dpfuse.public.openapi import answers

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of every file of the page; with them a browser refuses to load anything from another server."""
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", "": "text/plain"}


def page_router(feed: Feed, statement: Statement, *, labels: Sequence[str] = (), max_subscribers: int) -> APIRouter:
    """`GET /`, `/static/...` and `/v1/streams/{stream}/feed`.

    Args:
        labels: the name of each coordinate of the state, with its unit in brackets: "density [veh/km]".
        max_subscribers: how many may follow the feed at the same time.
    """
    router, subscribers = APIRouter(), SubscriberLimit(max_subscribers)
    _add_files(router, render(feed, statement, labels).encode())

    @router.get("/v1/streams/{stream}/feed", responses=answers(200, "text/event-stream", 404, 422, 429), tags=["out"])
    async def follow_feed(stream: str, start: StartStep = 1, last_event_id: LastEventId = "") -> Response:
        """Estimates and losses of the last minutes, then of each new release, as server-sent events."""
        if stream not in feed.hub.streams:
            raise HTTPException(404)
        if not subscribers.admit():
            raise HTTPException(429)
        return EventStream(feed.frames(stream, first_after(last_event_id, start)), subscribers.leave)

    return router


def _add_files(router: APIRouter, page: bytes) -> None:
    # All files are read once, so no request can reach another file.
    files = {
        file.relative_to(STATIC).as_posix(): (file.read_bytes(), _KINDS[file.suffix])
        for file in sorted(STATIC.rglob("*"))
        if file.is_file() and file.suffix in _KINDS
    }

    @router.get("/", include_in_schema=False)
    async def get_page() -> Response:
        return Response(page, media_type="text/html", headers=HEADERS)

    @router.get("/static/{path:path}", include_in_schema=False)
    async def get_file(path: str) -> Response:
        if path not in files:
            raise HTTPException(404)
        content, kind = files[path]
        return Response(content, media_type=kind, headers=HEADERS)


def render(feed: Feed, statement: Statement, labels: Sequence[str] = ()) -> str:
    """The page's HTML, with its settings and the guarantee written into it."""
    settings = json.dumps(page_settings(feed, labels))
    return Template(
        (STATIC / "index.html").read_text()
    ).substitute(
        settings=settings.replace("<", "\\u003c"),  # only "<" can end a script element
        version=html.escape(version("dpfuse")),
        fingerprint=feed.fingerprint,
        design=feed.fingerprint[:12],
        **_fragments(statement),
    )


def page_settings(feed: Feed, labels: Sequence[str] = ()) -> dict[str, Any]:
    """The settings of the page, all of them public."""
    structure, guarantee = feed.design.structure, feed.guarantee
    names = list(labels) or [f"State {number}" for number in range(1, structure.num_states + 1)]
    if len(names) != structure.num_states:
        raise ValueError(
            f"labels must hold {structure.num_states}, one for each coordinate of the state, got {len(names)}"
        )
    return {
        "streams": list(feed.hub.streams),
        "interval_s": feed.interval_s,
        "delay_s": feed.delay_s,
        "num_kept": feed.num_kept,
        "is_replay": feed.is_replay,
        "labels": [_label(name) for name in names],
        "dimension": structure.dimension,
        "grid": GRID,
        "horizon": structure.horizon,
        "accounting": guarantee.accounting,
        "budget": guarantee.budget,
        "spent_below": feed.spent_below,
        "design": feed.fingerprint,
    }


def _label(text: str) -> dict[str, str]:
    name, _, unit = text.partition("[")
    return {"name": name.strip(), "unit": unit.strip().removesuffix("]")}


def _fragments(statement: Statement) -> dict[str, str]:
    def items(sentences: Sequence[str]) -> str:
        return "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)

    facts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in statement.facts
    )
    return {
        "sentence": html.escape(statement.sentence),
        "facts": facts,
        "assumed": items(ASSUMED),
        "uncovered": items(UNCOVERED),
    }
