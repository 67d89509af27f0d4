"""The socket from which relays on this machine read: public settings and published rows, and nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from dpfuse._extras import requires_extra
from dpfuse.public.answers import make_api, too_busy
from dpfuse.public.connections import ByAddress, ConnectionLimits, limited_protocol
from dpfuse.public.events import StartStep, SubscriberLimit
from dpfuse.public.listening import make_server
from dpfuse.public.reading import MAX_PAGE, estimators_router, read_page
from dpfuse.public.relay_feed import relay_router

with requires_extra("live", "serving over HTTP"):
    from fastapi import FastAPI, Query, Response

if TYPE_CHECKING:
    from dpfuse.public.feed import Feed
    from dpfuse.public.metrics import Clock

_MAX_RELAYS = 64
# A relay has one connection for events and one for old rows. More would use up the open files that the ledger needs.
_LIMITS = ConnectionLimits(num_served=2 * _MAX_RELAYS, num_accepted=2 * _MAX_RELAYS + 16)
# After it has read old rows for a time t, the centre reads none for so many times t.
_REST = 4.0
_STARTS_WITHIN_S = 30.0


def make_feed_app(feed: Feed, estimator: bytes, clock: Clock, by_design: Mapping[str, bytes] | None = None) -> FastAPI:
    """The application for relays; arguments as in `make_reading_app`.

    Old rows are read for one relay at a time and with rests, so that they take at most a fifth of a core from the
    steps, whoever asks a relay for them.
    """
    app = make_api("dpfuse feed", "For relays: published releases and public settings.")
    app.include_router(relay_router(feed, clock, SubscriberLimit(_MAX_RELAYS)))
    app.include_router(estimators_router(estimator, by_design or {}))
    lock = asyncio.Lock()

    @app.get("/v1/streams/{stream}/releases")
    async def get_releases(
        stream: str, start: StartStep = 1, limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = MAX_PAGE
    ) -> Response:
        async with lock:
            began_at = time.monotonic()
            page = await read_page(feed.hub, stream, start, limit)
            await asyncio.sleep(_REST * (time.monotonic() - began_at))
        return page

    return app


class FeedDoor:
    """Serves the feed on a Unix socket, in a thread of its own. Connections are limited in number and time.

    Args:
        path: of the socket, to which owner and group may connect; by default one in a new folder of the owner's.
    """

    def __init__(self, app: FastAPI, path: Path | None = None) -> None:
        self._folder = None if path else tempfile.TemporaryDirectory(prefix="dpfuse-")  # mode 0700
        self.path = path or Path(self._folder.name if self._folder else "", "feed")
        self._listener = _bind_unix(self.path, 0o177 if path is None else 0o117)
        self._server: Any = make_server(app, limited_protocol(ByAddress(_LIMITS), too_busy))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="dpfuse-feed", daemon=True
        )

    def start(self) -> Self:
        self._thread.start()
        end = time.monotonic() + _STARTS_WITHIN_S
        while not self._server.started and time.monotonic() < end:
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        """End it; relays read what was published before."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(10)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        if self._folder is not None:
            self._folder.cleanup()


def _bind_unix(path: Path, umask: int) -> socket.socket:
    """A listening socket; one that a killed centre has left is replaced."""
    listener = socket.socket(socket.AF_UNIX)
    if path.is_socket():
        path.unlink()
    before = os.umask(umask)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise OSError(f"{path} cannot be made: {error}") from error
    finally:
        os.umask(before)
    listener.listen()
    return listener
