"""The page and its feed, as routes of the centre's application: files of our own, and no request to anywhere else."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import dpfuse
from dpfuse.runtime.page.feed import Feed
from dpfuse.runtime.page.words import Words, in_words

if TYPE_CHECKING:
    from fastapi import APIRouter

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
"""What every file of the page is sent with: a browser then refuses to load anything from elsewhere."""
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", "": "text/plain"}


def page_router(feed: Feed, *, labels: Sequence[str] = ()) -> APIRouter:
    """`GET /`, `/static/...` and `/v1/streams/{stream}/feed`.

    Args:
        labels: what each coordinate of the state is called, with its unit in brackets: "density [veh/km]".
    """
    from fastapi import APIRouter, Header, HTTPException, Query, Response
    from fastapi.responses import StreamingResponse

    router = APIRouter()
    page = render(feed, labels).encode()
    # Read once: what is served does not depend on the disk, and no path can lead out of the folder.
    files = {
        file.relative_to(STATIC).as_posix(): (file.read_bytes(), _KINDS[file.suffix])
        for file in sorted(STATIC.rglob("*"))
        if file.is_file() and file.suffix in _KINDS
    }

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(page, media_type="text/html", headers=HEADERS)

    @router.get("/static/{path:path}", include_in_schema=False)
    async def static(path: str) -> Response:
        if path not in files:
            raise HTTPException(404)
        content, kind = files[path]
        return Response(content, media_type=kind, headers=HEADERS)

    @router.get("/v1/streams/{stream}/feed", response_class=StreamingResponse)
    async def follow(
        stream: str,
        start: Annotated[int, Query(ge=1, lt=2**63)] = 1,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> StreamingResponse:
        """Estimates and spending for the page, as server-sent events: what is kept from `start` on, then as it comes."""
        if stream not in feed.hub.streams:
            raise HTTPException(404)
        if last_event_id and last_event_id.isascii() and last_event_id.isdigit():
            start = max(start, int(last_event_id) + 1)
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(feed.frames(stream, start), media_type="text/event-stream", headers=headers)

    return router


def render(feed: Feed, labels: Sequence[str] = ()) -> str:
    """The page's HTML, with its settings and the guarantee written into it."""
    guarantee = feed.design.guarantee
    assert guarantee is not None  # a feed has one
    words = in_words(guarantee, len(feed.hub.streams))
    settings = json.dumps(page_settings(feed, labels))
    return Template((STATIC / "index.html").read_text()).substitute(
        # Inside of a script element nothing but this can end it.
        settings=settings.replace("<", "\\u003c"),
        version=html.escape(dpfuse.__version__),
        fingerprint=feed.design.fingerprint,
        design=feed.design.fingerprint[:12],
        **_fragments(words),
    )


def page_settings(feed: Feed, labels: Sequence[str] = ()) -> dict[str, Any]:
    """All that the page needs to know, all of it public."""
    structure, guarantee = feed.design.structure, feed.design.guarantee
    assert guarantee is not None  # a feed has one
    names = labels or [f"State {number + 1}" if structure.num_states > 1 else "State" for number in
                       range(structure.num_states)]  # fmt: skip
    if len(names) != structure.num_states:
        raise ValueError(f"labels must be {structure.num_states}, one for each coordinate of the state, got {len(names)}")
    return {
        "streams": list(feed.hub.streams),
        "interval_s": feed.interval_s,
        "num_kept": feed.num_kept,
        "is_replay": feed.is_replay,
        "labels": [_label(name) for name in names],
        "dimension": structure.dimension,
        "horizon": structure.horizon,
        "accounting": guarantee.accounting,
        "order": guarantee.order,
        "budget": guarantee.budget,
        "design": feed.design.fingerprint,
    }


def _label(text: str) -> dict[str, str]:
    name, _, unit = text.partition("[")
    return {"name": name.strip(), "unit": unit.strip().removesuffix("]")}


def _fragments(words: Words) -> dict[str, str]:
    items = {
        name: "".join(f"<li>{html.escape(sentence)}</li>" for sentence in getattr(words, name))
        for name in ("assumed", "uncovered")
    }
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in words.facts)
    return {"promise": html.escape(words.promise), "facts": facts, **items}
