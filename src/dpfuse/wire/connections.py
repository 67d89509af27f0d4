"""How many connections a centre takes, and what becomes of the others: before the system runs out of them."""

from __future__ import annotations

import logging
import resource
import time
from contextlib import suppress
from typing import Any, NamedTuple

from dpfuse._extras import requires_extra

# More would be of no use to one process; some systems allow a thousand million.
_MOST_FILES = 65536
BACKLOG = 256
"""Connections that may wait to be taken: asyncio takes so many at once, before anybody can refuse one."""
# Open files of our own: ledger, readers of it, broker.
_OWN = 256
_REQUEST_S = 30.0
_SELDOM_S = 60.0


class Room(NamedTuple):
    """What fits into the open files that a process may have, with room for those of its own.

    Attributes:
        num_served: connections that are served.
        num_taken: connections that are taken at all; those above `num_served` are told to come back later.
    """

    num_served: int
    num_taken: int

    @property
    def num_seats(self) -> int:
        """For each of two kinds of subscribers: with all of them there, a third is left for others."""
        return self.num_served // 3


def make_room() -> Room:
    """Raise the limit of open files to what the system allows; what fits then."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if wanted > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = min(soft, _MOST_FILES) if soft != resource.RLIM_INFINITY else _MOST_FILES
    num_taken = max(num_files - BACKLOG - _OWN, num_files // 4)
    return Room(7 * num_taken // 8, num_taken)


def limited_protocol(room: Room, refuse: Any) -> Any:
    """Uvicorn's protocol for HTTP, within that room; `refuse` is the application that answers the others.

    A connection on which no request has come after half a minute is closed.
    """
    with requires_extra("live", "serving over HTTP"):
        from uvicorn.protocols.http.h11_impl import H11Protocol

    class Limited(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > room.num_taken:
                transport.abort()
                return
            if len(self.connections) > room.num_served:
                self.app = refuse
            self.loop.call_later(_REQUEST_S, self.close_if_silent)

        def close_if_silent(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Limited


class Seldom(logging.Filter):
    """Of a system that is out of files, one line a minute: asyncio tells of it without end, with tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "out of system resource" not in message and "_start_serving" not in message:  # or that it tries again
            return True
        record.msg, record.args, record.exc_info = "no more open files: new connections wait", (), None
        is_time = time.monotonic() >= self._next_s
        if is_time:
            self._next_s = time.monotonic() + _SELDOM_S
        return is_time
