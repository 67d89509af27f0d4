"""Server-sent events: each subscriber reads from the hub at its own speed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpfuse.public.connections import network_of
from dpfuse.public.hub import HistoryAway, Hub

LAST_STEP = 2**63 - 1
HEARTBEAT_S = 5.0
_SEND_S = 30.0
_PAGE = 100

StartStep = Annotated[int, Query(ge=1, le=LAST_STEP, description="the first step to return")]
LastEventId = Annotated[str, Header(description="continue after this step")]
_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]


def first_after(last_event_id: str, start: int) -> int:
    """The step after `last_event_id`, the last step that a client has; `start` if that is no step."""
    if not (last_event_id.isascii() and last_event_id.isdigit()):
        return start
    digits = last_event_id.lstrip("0") or "0"
    return min(int(digits) + 1, LAST_STEP) if len(digits) <= 19 else LAST_STEP


class SubscriberLimit:
    """Counts subscribers, and refuses those above a maximum: of all, and of each address.

    Args:
        max_subscribers: of all addresses together.
        per_address: of one address; 0 for any number, as behind a proxy.
    """

    def __init__(self, max_subscribers: int, per_address: int = 0) -> None:
        self._num_free, self._per_address = max_subscribers, per_address
        self._counts: Counter[str] = Counter()

    def admit(self, request: Request) -> Callable[[], None] | None:
        """Count one more subscriber; returns what to call when it leaves, or None if there are as many as allowed."""
        address = network_of(request.client)
        if self._num_free <= 0 or 0 < self._per_address <= self._counts[address]:
            return None
        self._num_free -= 1
        self._counts[address] += 1
        return partial(self._leave, address)

    def _leave(self, address: str) -> None:
        self._num_free += 1
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


def frame(step: int, data: bytes) -> bytes:
    """One event. A client that reconnects sends the step as its `Last-Event-ID`."""
    return b"id: %d\ndata: %s\n\n" % (step, data)


async def release_frames(hub: Hub, stream: str, start: int, status: Callable[[], str]) -> AsyncIterator[bytes]:
    """Events with every release from step `start` on, then with each new one when it is published.

    After `HEARTBEAT_S` without a release comes a comment with the centre's status.
    """
    while True:
        number = hub.number
        if hub.is_old(stream, start):
            try:
                messages = await run_in_threadpool(hub.messages, stream, start, _PAGE)
            except HistoryAway:
                return  # the client connects again
        else:
            messages = hub.messages(stream, start, _PAGE)
        if messages:
            start = messages[-1].step + 1
            yield b"".join(frame(*message) for message in messages)
            continue
        if hub.is_closed:
            return
        await hub.wait_async(number, HEARTBEAT_S)
        if hub.number == number:
            yield b": %s\n\n" % status().encode()


class EventStream(Response):
    """A response that lasts until the client leaves; it ends if the client reads nothing for half a minute."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], on_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames, self._on_end = frames, on_end

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        tasks = [asyncio.ensure_future(self._send_frames(send)), asyncio.ensure_future(_wait_until_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._on_end()

    async def _send_frames(self, send: _Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._frames:
            async with asyncio.timeout(_SEND_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _wait_until_gone(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
