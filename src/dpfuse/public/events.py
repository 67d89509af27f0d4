"""Server-sent events: each subscriber reads from the hub at its own speed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpfuse.public.hub import Hub
from dpfuse.public.rows import release_message

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
    """Counts subscribers and refuses those above a maximum."""

    def __init__(self, max_subscribers: int) -> None:
        self._num_free = max_subscribers

    def admit(self) -> bool:
        """Count one more subscriber; False if there are as many as allowed."""
        is_admitted = self._num_free > 0
        self._num_free -= is_admitted
        return is_admitted

    def leave(self) -> None:
        self._num_free += 1


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
            rows = await run_in_threadpool(hub.rows, stream, start, _PAGE)
        else:
            rows = hub.rows(stream, start, _PAGE)
        if rows:
            start = rows[-1].step + 1
            yield b"".join(frame(row.step, release_message(row)) for row in rows)
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
