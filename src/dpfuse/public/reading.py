"""The reading application: releases, page, metrics and public facts, for everybody.

It is made of published rows and public settings alone, so it runs in a process that has nothing else, see
`dpfuse.remote.relay`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from dpfuse._extras import requires_extra
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.statement import Statement, state_guarantee
from dpfuse.public.answers import Refused, answer, make_api
from dpfuse.public.openapi import CLOCK, DESIGNS, GUARANTEE, RELEASES, answers

with requires_extra("live", "serving over HTTP"):
    from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
    from starlette.concurrency import run_in_threadpool

from dpfuse.public.events import EventStream, LastEventId, StartStep, SubscriberLimit, first_after, release_frames
from dpfuse.public.hub import HistoryAway
from dpfuse.public.metrics import metrics_router
from dpfuse.public.page import page_router
from dpfuse.public.relay_feed import relay_router

if TYPE_CHECKING:
    from dpfuse.public.feed import Feed
    from dpfuse.public.hub import Hub
    from dpfuse.public.metrics import Clock

MAX_SUBSCRIBERS = 1000
"""Subscribers to releases at the same time, and as many to the page's feed."""
MAX_PAGE = 1000

Design = Annotated[str, Path(description="the id of a design, as rows name it", max_length=64)]
Stream = Annotated[str, Path(description="the name of a stream; /v1/guarantee lists them", max_length=64)]


def make_reading_app(
    feed: Feed,
    estimator: bytes,
    clock: Clock,
    *,
    by_design: Mapping[str, bytes] | None = None,
    max_subscribers: int = MAX_SUBSCRIBERS,
    subscribers_per_address: int = 0,
) -> FastAPI:
    """The application: /v1 for programs and a page for people.

    **Guarantees**
        - Everything that it answers is a function of published rows, public settings and the clock, and in a replay
          of its notes.
        - Releases come from the hub: never before their moment, and at fixed width.
        - A client that reads slowly delays no other. An answer that is not read ends after half a minute.

    Args:
        feed: the published steps.
        estimator: the content of the estimator's file.
        clock: returns the centre's clock, which is public.
        by_design: the same of each design that the ledger has had, by the id that names the design in rows.
        max_subscribers: how many may follow the releases at the same time, how many the page's feed, and how many the
            feed for relays.
        subscribers_per_address: how many of each of them one address may have; 0 for any number.
    """
    releases, relays, pages = (SubscriberLimit(max_subscribers, subscribers_per_address) for _ in range(3))
    app = make_api(
        "dpfuse releases", "Hands out the releases of a fusion centre and what follows from them. All of it is public."
    )
    state = functools.cache(lambda: _state(feed))
    app.include_router(_releases_router(feed, releases))
    app.include_router(_facts_router(feed, state, clock))
    app.include_router(estimators_router(estimator, by_design or {}))
    app.include_router(relay_router(feed, clock, relays))
    app.include_router(metrics_router(feed, clock))
    app.include_router(page_router(feed, state, pages))
    return app


def estimators_router(estimator: bytes, by_design: Mapping[str, bytes]) -> APIRouter:
    """`GET /v1/estimator`, `/v1/estimators` and `/v1/estimators/{design}`; arguments as in `make_reading_app`."""
    router = APIRouter()

    @router.get("/v1/estimator", responses=answers(200, "application/zip"), tags=["facts"])
    async def get_estimator() -> Response:
        """The estimator's file, which turns releases into estimates; `dpfuse estimate` reads it."""
        return Response(estimator, media_type="application/zip")

    @router.get("/v1/estimators", responses=answers(200, DESIGNS), tags=["facts"])
    async def get_designs() -> Response:
        """The designs that the ledger has had, as rows name them, and whose estimators are here."""
        return answer({"designs": sorted(by_design)})

    @router.get("/v1/estimators/{design}", responses=answers(200, "application/zip", 404), tags=["facts"])
    async def get_estimator_of(design: Design) -> Response:
        """The estimator's file of a design that the ledger has had, for its rows."""
        if design not in by_design:
            raise Refused(404, "unknown_design", "there is no estimator of such a design; /v1/estimators lists them")
        return Response(by_design[design], media_type="application/zip")

    return router


async def read_page(hub: Hub, stream: str, start: int, limit: int) -> Response:
    """Releases from a step on, as `GET /v1/streams/{stream}/releases` answers."""
    if stream not in hub.streams:
        raise _unknown_stream()
    if hub.is_old(stream, start):
        try:
            messages = await run_in_threadpool(hub.messages, stream, start, limit)
        except HistoryAway:
            raise Refused(503, "history_away", "old releases cannot be read at the moment; try again later") from None
    else:
        messages = hub.messages(stream, start, limit)
    content = b",".join(message.content for message in messages)
    return Response(b'{"releases":[%s]}' % content, media_type="application/json")


def clock_facts(feed: Feed, clock: Clock) -> dict[str, Any]:
    """What `GET /v1/clock` answers."""
    spent = [stream for stream in feed.hub.streams if feed.is_spent(stream)]
    return {**clock(), "status": feed.status, "spent": spent}


def _unknown_stream() -> Refused:
    return Refused(404, "unknown_stream", "there is no such stream; /v1/guarantee lists them")


def _releases_router(feed: Feed, subscribers: SubscriberLimit) -> APIRouter:
    router, hub = APIRouter(), feed.hub

    @router.get("/v1/streams/{stream}/releases", responses=answers(200, RELEASES, 404, 422), tags=["out"])
    async def get_releases(
        stream: Stream,
        start: StartStep = 1,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="how many")] = MAX_PAGE,
    ) -> Response:
        """Releases from a step on, in order."""
        return await read_page(hub, stream, start, limit)

    @router.get(
        "/v1/streams/{stream}/releases/events",
        responses=answers(200, "text/event-stream", 404, 422, 429),
        tags=["out"],
    )
    async def follow_releases(
        request: Request, stream: Stream, start: StartStep = 1, last_event_id: LastEventId = ""
    ) -> Response:
        """Releases from a step on, then each new release when it is published, as server-sent events."""
        if stream not in hub.streams:
            raise _unknown_stream()
        frames = release_frames(hub, stream, first_after(last_event_id, start), lambda: feed.status)
        if (on_end := subscribers.admit(request)) is None:
            raise Refused(429, "too_many_subscribers", "too many subscribers; try again later, or read /releases")
        return EventStream(frames, on_end)

    return router


def _facts_router(feed: Feed, state: Callable[[], Statement], clock: Clock) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/clock", responses=answers(200, CLOCK), tags=["facts"])
    async def get_clock() -> Response:
        """The step that reports are collected for, and the status of the centre."""
        return answer(clock_facts(feed, clock))

    @router.get("/v1/guarantee", responses=answers(200, GUARANTEE), tags=["facts"])
    async def get_guarantee() -> Response:
        """The guarantee for each sensor, in numbers and in words, and the public settings of the centre."""
        return answer((await run_in_threadpool(state)).to_dict() | _facts(feed))

    return router


def _state(feed: Feed) -> Statement:
    """The guarantee in words. The conversions take a second for their imports: nothing waits for it at a start."""
    settings = feed.settings
    return state_guarantee(
        settings.guarantee,
        horizon=settings.horizon,
        dimension=settings.dimension,
        num_streams=settings.streams_in_ledger,
        has_bank=settings.has_bank,
        has_inputs=bool(settings.inputs),
    )


def _facts(feed: Feed) -> dict[str, Any]:
    """The public settings of a centre, as `/v1/guarantee` shows them."""
    settings = feed.settings
    return {
        "fingerprint": settings.fingerprint,
        "signed_by": None if settings.signed_by is None else settings.signed_by._asdict(),
        "streams": list(settings.streams),
        "interval_s": settings.interval_s,
        "delay_s": settings.delay_s,
        "channels": [
            {"low": low, "high": high} | ({"label": settings.channel_labels[at]} if settings.channel_labels else {})
            for at, (low, high) in enumerate(settings.channels)
        ],
        "inputs": [
            {"low": low, "high": high} | ({"label": settings.input_labels[at]} if settings.input_labels else {})
            for at, (low, high) in enumerate(settings.inputs)
        ],
        "labels": list(settings.labels),
        "partial_reports": settings.partial_reports,
        "attributes": settings.attributes,
        "num_states": settings.num_states,
        "dimension": settings.dimension,
        "grid": GRID,
    }
