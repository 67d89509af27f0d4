"""The feed for relays: public settings, and every published step of all streams with its estimate.

A centre offers it to its own relay, and a relay to others, see `dpfuse.remote.relay`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.public.answers import Refused, answer
from dpfuse.public.events import EventStream, StartStep, SubscriberLimit
from dpfuse.public.openapi import answers

with requires_extra("live", "serving over HTTP"):
    import orjson
    from fastapi import APIRouter, Request, Response

if TYPE_CHECKING:
    from dpfuse.public.feed import Feed
    from dpfuse.public.metrics import Clock

SETTINGS_PATH, EVENTS_PATH = "/v1/relay/settings", "/v1/relay/events"
_STATUS_EVERY_S = 0.25
# An event ends after so many bytes of points, which take about a millisecond. A reader takes lines of 1 MiB.
_EVENT_SIZE = 2**16


def relay_router(feed: Feed, clock: Clock, subscribers: SubscriberLimit) -> APIRouter:
    """`GET /v1/relay/settings` and `GET /v1/relay/events`."""
    router = APIRouter()

    @router.get(SETTINGS_PATH, responses=answers(200, {"type": "object"}), tags=["relays"])
    async def get_settings() -> Response:
        """The public settings of the centre."""
        return answer(feed.settings.to_dict())

    @router.get(EVENTS_PATH, responses=answers(200, "text/event-stream", 422, 429), tags=["relays"])
    async def follow_all(request: Request, start: StartStep = 1) -> Response:
        """The steps of the last minutes from a step on, then each new one, of all streams, as server-sent events."""
        if (on_end := subscribers.admit(request)) is None:
            raise Refused(429, "too_many_subscribers", "too many subscribers; try again later")
        return EventStream(relay_frames(feed, clock, start), on_end)

    return router


async def relay_frames(feed: Feed, clock: Clock, start: int = 1) -> AsyncIterator[bytes]:
    """Events with status, clock and points: four every second, and at once when something is published.

    Nothing is queued for a reader: it gets what is in the hub's memory when it reads. What was dropped from there
    meanwhile it can still read as `/releases`.
    """
    hub = feed.hub
    next_steps = {stream: max(start, hub.last_step(stream) - feed.num_kept + 1) for stream in hub.streams}
    due = 0.0
    while True:
        number, is_closed = hub.number, hub.is_closed
        points: list[bytes] = []
        size = 0
        for point in _points(feed, next_steps):
            points.append(point)
            size += len(point)
            if size >= _EVENT_SIZE:
                yield _event(feed, clock, points)
                points, size = [], 0
                await asyncio.sleep(0)
        if points or is_closed or time.monotonic() >= due:
            due = time.monotonic() + _STATUS_EVERY_S
            yield _event(feed, clock, points)
        if is_closed:
            return
        await hub.wait_async(number, max(due - time.monotonic(), 0.0))


def _points(feed: Feed, next_steps: dict[str, int]) -> Iterator[bytes]:
    """What was published from `next_steps` on, which are moved on."""
    for stream, start in next_steps.items():
        for one, message in feed.hub.recent_messages(stream, start):
            next_steps[stream] = one.row.step + 1
            described: dict[str, Any] = {"mean": one.mean, "std": one.std, "released": feed.counts(stream)[0]}
            described["at"] = feed.time_of(one.row.step)
            if feed.notes is not None:
                described["notes"] = feed.notes.of_step(stream, one.row.step)
            yield b'{"release":%s,%s' % (message.content.rstrip(), orjson.dumps(described)[1:])


def _event(feed: Feed, clock: Clock, points: list[bytes]) -> bytes:
    facts = {"status": feed.status, "first_step": feed.first_step, "clock": clock(), "parts": feed.parts._asdict()}
    return b'data: {"facts":%s,"points":[%s]}\n\n' % (orjson.dumps(facts), b",".join(points))
