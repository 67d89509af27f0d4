"""Limits on connections that keep the process below its limit of open files."""

from __future__ import annotations

import logging
import resource
import time
from contextlib import suppress
from typing import Any, NamedTuple

from dpfuse._extras import requires_extra

# Some systems allow a thousand million open files, far more than one process needs.
_MAX_FILES = 65536
BACKLOG = 256
"""Connections that may wait to be accepted: asyncio accepts so many at once, before any can be refused."""
# Open files for everything else: ledger, its readers, broker.
_OTHER_FILES = 256
_REQUEST_S = 30.0
_LOG_EVERY_S = 60.0


class ConnectionLimits(NamedTuple):
    """Numbers of connections that fit into the process's limit of open files.

    Attributes:
        num_served: connections that are served.
        num_accepted: connections that are accepted. Those above `num_served` are answered 503, the rest are cut off.
    """

    num_served: int
    num_accepted: int

    @property
    def max_subscribers(self) -> int:
        """The most subscribers of either kind, releases and feed: a third is left for all other connections."""
        return self.num_served // 3


def raise_limits() -> ConnectionLimits:
    """Raise the limit of open files as far as the system allows; returns the connections that fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if wanted > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_files = min(soft, _MAX_FILES) if soft != resource.RLIM_INFINITY else _MAX_FILES
    num_accepted = max(num_files - BACKLOG - _OTHER_FILES, num_files // 4)
    return ConnectionLimits(7 * num_accepted // 8, num_accepted)


def limited_protocol(limits: ConnectionLimits, refuse: Any) -> Any:
    """Uvicorn's protocol for HTTP within the limits; `refuse` is the application for connections above `num_served`.

    A connection without a request is closed after half a minute.
    """
    with requires_extra("live", "serving over HTTP"):
        from uvicorn.protocols.http.h11_impl import H11Protocol

    class Limited(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.num_accepted:
                transport.abort()
                return
            if len(self.connections) > limits.num_served:
                self.app = refuse
            self.loop.call_later(_REQUEST_S, self.close_if_silent)

        def close_if_silent(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Limited


class LogSeldom(logging.Filter):
    """Logs at most one line a minute when no file can be opened; asyncio logs each failure with a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self._next_s = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if "out of system resource" not in message and "_start_serving" not in message:  # the second is its retry
            return True
        record.msg, record.args, record.exc_info = "the limit of open files is reached: new connections wait", (), None
        is_time = time.monotonic() >= self._next_s
        if is_time:
            self._next_s = time.monotonic() + _LOG_EVERY_S
        return is_time
