"""Server-sent events: a stream of releases, or of anything else that the hub has, at the speed of who reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from dpfuse.public.hub import Hub
from dpfuse.public.rows import release_message

LAST_STEP = 2**63 - 1
HEARTBEAT_S = 5.0
_SEND_S = 30.0
_PAGE = 100

_Receive = Callable[[], Awaitable[Any]]
_Send = Callable[[Any], Awaitable[None]]


def first_after(last_event_id: str, start: int) -> int:
    """The step after the one that a client names as its last; `start` if it names none."""
    if not (last_event_id.isascii() and last_event_id.isdigit()):
        return start
    digits = last_event_id.lstrip("0") or "0"
    return min(int(digits) + 1, LAST_STEP) if len(digits) <= 19 else LAST_STEP


class Seats:
    """So many may follow at once, and each leaves its seat to the next."""

    def __init__(self, num_seats: int) -> None:
        self._num_free = num_seats

    def take(self) -> bool:
        """Whether there was one."""
        is_free = self._num_free > 0
        self._num_free -= is_free
        return is_free

    def leave(self) -> None:
        self._num_free += 1


def frame(step: int, data: bytes) -> bytes:
    """One event: a client that comes back names the step as its `Last-Event-ID`."""
    return b"id: %d\ndata: %s\n\n" % (step, data)


async def release_frames(hub: Hub, stream: str, start: int, state: Callable[[], str]) -> AsyncIterator[bytes]:
    """Every release from step `start` on, then each one as it is published; between them the centre's state.

    A comment with the state goes out when nothing was published for `HEARTBEAT_S`: by the clock, like the releases.
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
        await hub.waited(number, HEARTBEAT_S)
        if hub.number == number:
            yield b": %s\n\n" % state().encode()


class EventStream(Response):
    """An answer that goes on until it is read no more: a reader that takes nothing for half a minute is let go."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[bytes], on_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._frames, self._on_end = frames, on_end

    async def __call__(self, scope: Any, receive: _Receive, send: _Send) -> None:
        tasks = [asyncio.ensure_future(self._pump(send)), asyncio.ensure_future(_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._on_end()

    async def _pump(self, send: _Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._frames:
            async with asyncio.timeout(_SEND_S):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
