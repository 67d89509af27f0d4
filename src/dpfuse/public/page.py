"""The page and its feed, as routes of the application. The page loads only files of this package."""

from __future__ import annotations

import functools
import html
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from dpfuse.privacy.budget import GRID
from dpfuse.privacy.statement import Statement
from dpfuse.public.events import EventStream, LastEventId, StartStep, SubscriberLimit, first_after
from dpfuse.public.feed import Feed
from dpfuse.public.openapi import answers
from dpfuse.public.settings import split_label

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
_SPENT = {
    "total": "Spent is the Rényi loss that the releases of a stream were charged so far, for every sensor alike, "
    "whether it reported or not. When the budget is spent, releases go on at every step as noise alone. Nothing is "
    "refunded.",
    "individual": "Each sensor has an account of its own, and is charged for what it adds. What a sensor has spent is "
    "private and shown nowhere. A sensor whose account is spent adds nothing more; releases go on. Nothing is "
    "refunded.",
}
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", "": "text/plain"}


def page_router(feed: Feed, state: Callable[[], Statement], subscribers: SubscriberLimit) -> APIRouter:
    """`GET /`, `/static/...` and `/v1/streams/{stream}/feed`.

    Args:
        state: returns the guarantee in words; called for the page, not before.
        subscribers: limits how many follow the feed at the same time.
    """
    router = APIRouter()
    _add_files(router, functools.cache(lambda: render(feed, state()).encode()))

    @router.get("/v1/streams/{stream}/feed", responses=answers(200, "text/event-stream", 404, 422, 429), tags=["out"])
    async def follow_feed(
        request: Request, stream: str, start: StartStep = 1, last_event_id: LastEventId = ""
    ) -> Response:
        """Estimates and losses of the last minutes, then of each new release, as server-sent events."""
        if stream not in feed.hub.streams:
            raise HTTPException(404)
        if (on_end := subscribers.admit(request)) is None:
            raise HTTPException(429)
        return EventStream(feed.frames(stream, first_after(last_event_id, start)), on_end)

    return router


def _add_files(router: APIRouter, page: Callable[[], bytes]) -> None:
    # All files are read once, so no request can reach another file.
    files = {
        file.relative_to(STATIC).as_posix(): (file.read_bytes(), _KINDS[file.suffix])
        for file in sorted(STATIC.rglob("*"))
        if file.is_file() and file.suffix in _KINDS
    }

    @router.get("/", include_in_schema=False)
    async def get_page() -> Response:
        return Response(await run_in_threadpool(page), media_type="text/html", headers=HEADERS)

    @router.get("/static/{path:path}", include_in_schema=False)
    async def get_file(path: str) -> Response:
        if path not in files:
            raise HTTPException(404)
        content, kind = files[path]
        return Response(content, media_type=kind, headers=HEADERS)


def render(feed: Feed, statement: Statement) -> str:
    """The page's HTML, with its settings and the guarantee written into it."""
    settings, signed_by = json.dumps(page_settings(feed)), feed.settings.signed_by
    return Template(
        (STATIC / "index.html").read_text()
    ).substitute(
        settings=settings.replace("<", "\\u003c"),  # only "<" can end a script element
        version=html.escape(version("dpfuse")),
        fingerprint=feed.settings.fingerprint,
        design=feed.settings.fingerprint[:12],
        public_key=signed_by.public_key if signed_by else "none",
        spent=_SPENT[feed.guarantee.accounting],
        **_fragments(statement),
    )


def page_settings(feed: Feed) -> dict[str, Any]:
    """The settings of the page, all of them public."""
    settings = feed.settings
    names = settings.labels or [f"State {number}" for number in range(1, settings.num_states + 1)]
    inputs = settings.input_labels or [f"Input {number}" for number, _ in enumerate(settings.inputs, 1)]
    return {
        "streams": list(settings.streams),
        "interval_s": settings.interval_s,
        "delay_s": settings.delay_s,
        "num_kept": feed.num_kept,
        "is_replay": settings.is_replay,
        "prior_std": list(settings.prior_std),
        "labels": [dict(zip(("name", "unit"), split_label(name), strict=True)) for name in names],
        "inputs": [dict(zip(("name", "unit"), split_label(name), strict=True)) for name in inputs],
        "dimension": settings.dimension,
        "grid": GRID,
        "horizon": settings.horizon,
        "accounting": settings.guarantee.accounting,
        "budget": settings.guarantee.budget,
        "spent_below": settings.spent_below,
        "design": settings.fingerprint,
    }


def _fragments(statement: Statement) -> dict[str, str]:
    def items(sentences: Sequence[str]) -> str:
        return "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)

    facts = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>" for name, value in statement.facts
    )
    return {
        "sentence": html.escape(statement.sentence),
        "facts": facts,
        "assumed": items(statement.assumed),
        "uncovered": items(statement.uncovered),
    }
