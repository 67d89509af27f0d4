"""A whole centre in one process: ledger, ticker, hub and HTTP server, and if asked a bridge to an MQTT broker."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse._extras import requires_extra
from dpfuse.centre.centre import FusionCentre
from dpfuse.centre.clock import Ticker
from dpfuse.errors import DpfuseError
from dpfuse.ledger import create_ledger, open_ledger, public_rows
from dpfuse.public.hub import Hub
from dpfuse.public.replay_notes import ReplayNotes
from dpfuse.wire.connections import BACKLOG, ConnectionLimits, LogSeldom, limited_protocol, raise_limits
from dpfuse.wire.intake import Intake
from dpfuse.wire.messages import check_stream_name
from dpfuse.wire.tokens import Tokens

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dpfuse.policy.design import Design

_log = logging.getLogger(__name__)
# The longest time for which a thread keeps the interpreter while others wait: a release must leave in time.
_SWITCH_S = 0.0005
# The kernel closes a connection whose peer acknowledges nothing for so long.
_UNACKNOWLEDGED_MS = 30_000


class Endpoints(NamedTuple):
    """The addresses of a centre.

    Attributes:
        host, port: of HTTP; port 0 is any free port.
        tls_cert, tls_key: certificate and key for HTTPS.
        mqtt: the broker, as "host:port"; None for no broker.
        mqtt_ca: the certificates to trust, for a broker with TLS.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    tls_cert: Path | None = None
    tls_key: Path | None = None
    mqtt: str | None = None
    mqtt_ca: Path | None = None


@dataclass(frozen=True, kw_only=True)
class CentreOptions:
    """Settings of a running centre; all of them are public.

    Attributes:
        streams: the names of the streams; None for those of the ledger, or "main" in a new one.
        is_new: True makes the ledger, and is refused if there is one. False is refused if there is none.
        interval_s, delay_s: see `Ticker`.
        is_replay: the data is simulated or public, so the page may show truth, latency and number of reports.
        labels: the page's name for each coordinate of the state.
    """

    streams: Sequence[str] | None = None
    is_new: bool = False
    interval_s: float | None = None
    delay_s: float | None = None
    is_replay: bool = False
    labels: Sequence[str] = ()


def run_centre(
    design: Design,
    ledger: str,
    tokens: Tokens,
    endpoints: Endpoints,
    options: CentreOptions,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread of a process; `announce` gets the address.

    Raises:
        LedgerRefused: the ledger could not be opened, or it failed later. Nothing was released after the failure.
    """
    from dpfuse.wire.http import MAX_SUBSCRIBERS, make_app

    sys.setswitchinterval(_SWITCH_S)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncio").addFilter(LogSeldom())
    limits = raise_limits()
    names = None if options.streams is None else [check_stream_name(name) for name in options.streams]
    broker = _parse_address(endpoints.mqtt)
    with ExitStack() as stack:
        listener = stack.enter_context(_bind(endpoints.host, endpoints.port))
        is_new = options.is_new
        opened = create_ledger(ledger, design, names or ("main",)) if is_new else open_ledger(ledger, design, names)
        book = stack.enter_context(opened)
        for name in book.streams:
            check_stream_name(name)
        centre = FusionCentre(design, book)
        hub = Hub({name: book.last_step(name) for name in book.streams}, partial(public_rows, ledger), centre.past)
        errors: list[BaseException] = []
        ticker = Ticker(centre, hub.publish, options.interval_s, options.delay_s, on_error=errors.append)
        intake = Intake(centre, tokens, ReplayNotes() if options.is_replay else None)
        max_subscribers = min(MAX_SUBSCRIBERS, limits.max_subscribers)
        app = make_app(centre, ticker, hub, intake, labels=options.labels, max_subscribers=max_subscribers)
        server = _make_server(app, endpoints, limits, ticker, hub, lambda: bool(errors))
        if broker is not None:
            from dpfuse.wire.broker import CENTRE
            from dpfuse.wire.mqtt import Bridge

            ca = None if endpoints.mqtt_ca is None else str(endpoints.mqtt_ca)
            bridge = Bridge(intake, hub, tokens.password(CENTRE), *broker, ca=ca)
            bridge.start()
            stack.callback(bridge.stop)
        ticker.start()
        stack.callback(ticker.stop)
        announce(_address(endpoints, listener.getsockname()[1]))
        with _quiet_signals():
            server.run(sockets=[listener])
    if errors:
        error = errors[0]
        if isinstance(error, DpfuseError):
            raise error
        raise DpfuseError(f"the centre stopped: {type(error).__name__} in a step; nothing was released after it")


def _make_server(
    app: FastAPI,
    endpoints: Endpoints,
    limits: ConnectionLimits,
    ticker: Ticker,
    hub: Hub,
    has_failed: Callable[[], bool],
) -> Any:
    from dpfuse.wire.http import too_busy

    with requires_extra("live", "serving over HTTP"):
        import uvicorn

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or has_failed()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await asyncio.to_thread(ticker.stop)  # the last release is published before any connection ends
            hub.close()  # ends all event streams; the server waits for them
            await super().shutdown(sockets)

    return Server(
        uvicorn.Config(
            app,
            http=limited_protocol(limits, too_busy),
            log_level="critical",  # the application logs its errors, without what was sent
            access_log=False,
            backlog=BACKLOG,
            server_header=False,
            ssl_certfile=endpoints.tls_cert,
            ssl_keyfile=endpoints.tls_key,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=3,
            lifespan="off",
            ws="none",
            h11_max_incomplete_event_size=16 * 1024,
        )
    )


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket: clients may connect before the first step, and wait."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Every connection inherits both options. Without the first, answers wait 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with suppress(AttributeError, OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return listener


def _address(endpoints: Endpoints, port: int) -> str:
    """The URL of the centre; logs a warning if others on the network could read reports."""
    host, has_tls = endpoints.host, endpoints.tls_cert is not None
    if not has_tls and host not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("reports and tokens cross the network unencrypted; give --tls-cert and --tls-key, or use a proxy")
    return f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _parse_address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"mqtt must be HOST:PORT, such as 127.0.0.1:1883, got {text!r}")
    return host.strip("[]"), int(port)


@contextmanager
def _quiet_signals() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM when the server raises them again after it has stopped, so that the exit code is 0."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
