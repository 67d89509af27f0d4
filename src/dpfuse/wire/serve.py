"""A whole centre in one process: ledger, ticker, hub, HTTP in the main thread, and a bridge to a broker if wanted."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse._extras import requires_extra
from dpfuse.centre.centre import FusionCentre
from dpfuse.centre.clock import Ticker
from dpfuse.errors import DpfuseError
from dpfuse.ledger import create_ledger, open_ledger, public_rows
from dpfuse.public.hub import Hub
from dpfuse.wire.connections import BACKLOG, Room, Seldom, limited_protocol, make_room
from dpfuse.wire.messages import check_stream_name
from dpfuse.wire.tokens import Tokens

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dpfuse.policy.design import Design

_log = logging.getLogger(__name__)
# How long one thread may keep the others waiting, a release above all.
_SWITCH_S = 0.0005
# A peer that acknowledges nothing for so long is cut off by the kernel.
_UNHEARD_MS = 30_000


class Listen(NamedTuple):
    """Where a centre is reached.

    Attributes:
        host, port: of HTTP; port 0 is any that is free.
        tls_cert, tls_key: to speak HTTPS.
        mqtt: the broker, as "host:port"; None for none.
        mqtt_ca: the certificates to trust, if it speaks TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    tls_cert: Path | None = None
    tls_key: Path | None = None
    mqtt: str | None = None
    mqtt_ca: Path | None = None


def run_centre(
    design: Design,
    ledger: str,
    tokens: Tokens,
    listen: Listen,
    *,
    streams: Sequence[str] | None = None,
    is_new: bool = False,
    interval_s: float | None = None,
    delay_s: float | None = None,
    is_replay: bool = False,
    labels: Sequence[str] = (),
    announce: Callable[[str], object] = print,
) -> None:
    """Serve until SIGINT or SIGTERM; the main thread of a process.

    Args:
        is_new: make the ledger, with these streams; refused if there is one already, as without it if there is none.

    Raises:
        LedgerRefused: the ledger cannot be opened, or failed on the way: nothing was released after that.
    """
    from dpfuse.wire.http import MAX_SUBSCRIBERS, make_app

    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncio").addFilter(Seldom())
    room = make_room()
    names = None if streams is None else [check_stream_name(name) for name in streams]
    broker = _parse_address(listen.mqtt)
    with ExitStack() as stack:
        listener = stack.enter_context(_bind(listen.host, listen.port))
        opened = create_ledger(ledger, design, names or ("main",)) if is_new else open_ledger(ledger, design, names)
        book = stack.enter_context(opened)
        for name in book.streams:
            check_stream_name(name)
        centre = FusionCentre(design, book)
        hub = Hub({name: book.last_step(name) for name in book.streams}, partial(public_rows, ledger), centre.past)
        errors: list[BaseException] = []
        ticker = Ticker(centre, hub.publish, interval_s, delay_s, on_error=errors.append)
        num_seats = min(MAX_SUBSCRIBERS, room.num_seats)
        app = make_app(
            centre, ticker, hub, tokens, design=design, replay=is_replay, labels=labels, max_subscribers=num_seats
        )
        server = _make_server(app, listen, room, ticker, hub, lambda: bool(errors))
        if broker is not None:
            from dpfuse.wire.mqtt import Bridge

            ca = None if listen.mqtt_ca is None else str(listen.mqtt_ca)
            bridge = Bridge(centre, hub, tokens, *broker, ca=ca, notes=app.state.notes)
            bridge.start()
            stack.callback(bridge.stop)
        ticker.start()
        stack.callback(ticker.stop)
        announce(_address(listen, listener.getsockname()[1]))
        with _signals_end_quietly():
            server.run(sockets=[listener])
    if errors:
        error = errors[0]
        if isinstance(error, DpfuseError):
            raise error
        raise DpfuseError(f"the centre stopped: {type(error).__name__} in a step; nothing was released after it")


def _make_server(
    app: FastAPI, listen: Listen, room: Room, ticker: Ticker, hub: Hub, has_failed: Callable[[], bool]
) -> Any:
    from dpfuse.wire.http import too_busy

    with requires_extra("live", "serving over HTTP"):
        import uvicorn

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or has_failed()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await asyncio.to_thread(ticker.stop)  # its last release is told to everybody before anything ends
            hub.close()  # streams of events end, or nobody would ever leave
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            http=limited_protocol(room, too_busy),
            log_level="critical",  # errors are logged by the application, and without what was sent
            access_log=False,
            backlog=BACKLOG,
            server_header=False,
            ssl_certfile=listen.tls_cert,
            ssl_keyfile=listen.tls_key,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            lifespan="off",
            ws="none",
            h11_max_incomplete_event_size=16 * 1024,
        )
    )


def _bind(host: str, port: int) -> socket.socket:
    """A socket that listens already: whoever has the address may connect, and waits for the first step."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Both go over to every connection. Without the first, answers wait 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(AttributeError, OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)
    return listener


def _address(listen: Listen, port: int) -> str:
    """Where it is reached; with a warning if others can listen in."""
    is_open = listen.tls_cert is None and listen.host not in ("127.0.0.1", "::1", "localhost")
    if is_open:
        _log.warning("reports and tokens cross the network in the clear; give --tls-cert and --tls-key, or use a proxy")
    scheme = "http" if listen.tls_cert is None else "https"
    return f"{scheme}://{f'[{listen.host}]' if ':' in listen.host else listen.host}:{port}"


def _parse_address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"mqtt must be HOST:PORT, such as 127.0.0.1:1883, got {text!r}")
    return host.strip("[]"), int(port)


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """The server stops at SIGINT and SIGTERM and then raises them again: here that is the end of the work, exit 0."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
