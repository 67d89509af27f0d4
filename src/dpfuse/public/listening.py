"""A listening socket and the HTTP server behind it, for intake and reading alike."""

from __future__ import annotations

import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dpfuse._extras import requires_extra
from dpfuse.public.connections import BACKLOG

# The kernel closes a connection whose peer acknowledges nothing for so long.
_UNACKNOWLEDGED_MS = 30_000


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: clients may connect before anything is served, and wait."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Every connection inherits both options. Without the first, answers wait 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(AttributeError, OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return listener


def address_of(host: str, listener: socket.socket, has_tls: bool) -> str:
    """The URL of a listener."""
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if has_tls else 'http'}://{shown}:{listener.getsockname()[1]}"


def parse_address(name: str, text: str) -> tuple[str, int]:
    """Host and port in a setting of that name."""
    if "@" in text:  # not shown: it may hold a password
        raise ValueError(f"{name} must be HOST:PORT without user and password, which the list of processes would show")
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{name} must be HOST:PORT, such as 127.0.0.1:1883, got {text!r}")
    return host.strip("[]"), int(port)


def make_server(
    app: Any,
    protocol: Any,
    *,
    is_over: Callable[[], bool] = lambda: False,
    before_shutdown: Callable[[], Awaitable[object]] | None = None,
) -> Any:
    """A uvicorn server; run it with `run(sockets=[...])`.

    Args:
        protocol: of connections, see `limited_protocol`.
        is_over: asked ten times a second; the server stops once it is True.
        before_shutdown: awaited before the connections end.
    """
    with requires_extra("live", "serving over HTTP"):
        import uvicorn

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or is_over()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if before_shutdown is not None:
                await before_shutdown()
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            http=protocol,
            log_level="critical",  # the application logs its errors, without what was sent
            access_log=False,
            backlog=BACKLOG,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            h11_max_incomplete_event_size=16 * 1024,
        )
    )


@contextmanager
def quiet_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM when the server raises them again after it has stopped, so that the exit code is 0."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
