"""Runs a relay: follows upstream in a thread and serves the reading application."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from dpfuse.public.connections import ByAddress, LogSeldom, limited_protocol, raise_limits
from dpfuse.public.listening import address_of, bind, make_server, quiet_signals
from dpfuse.public.tls import Certificates, at_hangup
from dpfuse.remote.relay import Relay

_READY_WITHIN_S = 30.0
# Subscribers of an address to releases are at most this share of its connections, and so are those to the page's feed.
_SUBSCRIBER_SHARE = 4


class ReadingEndpoint(NamedTuple):
    """Where a relay listens.

    Attributes:
        host, port: of HTTP; port 0 is any free port.
        tls_cert, tls_key: certificate and key for HTTPS.
        per_address: connections of one address that are served; 0 for any number, as behind a proxy.
        listener: the number of an open listening socket that is used in place of host and port.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    tls_cert: Path | None = None
    tls_key: Path | None = None
    per_address: int = 0
    listener: int | None = None

    @property
    def certificates(self) -> Certificates | None:
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Certificates(self.tls_cert, self.tls_key)


def run_relay(
    relay: Relay,
    endpoint: ReadingEndpoint,
    announce: Callable[[str], object] = print,
    *,
    ends_with_parent: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, in the main thread of a process; `announce` gets the address.

    SIGHUP reads the certificates again.

    Args:
        ends_with_parent: end when standard input is closed, after what upstream still sends.

    Raises:
        DpfuseError: upstream contradicts itself or has changed.
    """
    from dpfuse.public.answers import too_busy
    from dpfuse.public.reading import MAX_SUBSCRIBERS, make_reading_app

    logging.getLogger("asyncio").addFilter(LogSeldom())
    limits = raise_limits()
    certificates = endpoint.certificates
    errors: list[BaseException] = []
    has_ended = threading.Event()

    def follow() -> None:
        try:
            relay.follow()
        except BaseException as error:  # any error ends the relay
            errors.append(error)
        finally:
            has_ended.set()
            relay.is_ready.set()

    async def before_shutdown() -> None:
        relay.is_stopping.set()
        relay.hub.close()  # ends all event streams; the server waits for them

    reloads = [] if certificates is None else [certificates.reload]
    with at_hangup(reloads), closing(relay), _listener(endpoint) as listener:
        threading.Thread(target=follow, name="dpfuse-follow", daemon=True).start()
        if ends_with_parent:
            threading.Thread(target=_wait_for_parent, args=(relay,), name="dpfuse-parent", daemon=True).start()
        if not relay.is_ready.wait(_READY_WITHIN_S):
            raise ConnectionError(f"no centre has answered within {_READY_WITHIN_S:g} s")
        if not errors:
            app = make_reading_app(
                relay.feed,
                relay.estimator,
                relay.clock,
                by_design=relay.by_design,
                max_subscribers=min(MAX_SUBSCRIBERS, limits.max_subscribers),
                subscribers_per_address=-(-endpoint.per_address // _SUBSCRIBER_SHARE),
            )
            server = make_server(
                app,
                limited_protocol(ByAddress(limits, endpoint.per_address), too_busy, certificates),
                is_over=has_ended.is_set,
                before_shutdown=before_shutdown,
            )
            announce(address_of(endpoint.host, listener, endpoint.tls_cert is not None))
            with quiet_signals():
                server.run(sockets=[listener])
    if errors:
        raise errors[0]


def _listener(endpoint: ReadingEndpoint) -> socket.socket:
    if endpoint.listener is not None:
        return socket.socket(fileno=endpoint.listener)
    return bind(endpoint.host, endpoint.port)


def _wait_for_parent(relay: Relay) -> None:
    while os.read(0, 1):
        pass
    relay.is_stopping.set()
