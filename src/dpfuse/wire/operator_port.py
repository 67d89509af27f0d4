"""The operator's port: startup, readiness, liveness, and metrics that may not be public.

It is served before the ledger is opened, in a thread of its own, so that a supervisor sees a start that takes long.
"""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from dpfuse._extras import requires_extra
from dpfuse.public.answers import Refused, answer, make_api, too_busy
from dpfuse.public.connections import ByAddress, ConnectionLimits, limited_protocol
from dpfuse.public.listening import address_of, bind, make_server
from dpfuse.wire.operations import Operations

with requires_extra("live", "the operator's port"):
    from fastapi import FastAPI, Request, Response
    from prometheus_client import CollectorRegistry, ProcessCollector
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_LIMITS = ConnectionLimits(num_served=16, num_accepted=24)
_STARTS_WITHIN_S = 30.0
_log = logging.getLogger(__name__)


def make_operator_app(operations: Operations, token: str | None = None) -> FastAPI:
    """The application.

    Args:
        token: `/metrics` needs the header `Authorization: Bearer TOKEN`, and is closed without a token: other users of
            the machine can reach the port, too. The checks need none: what they answer is public.
    """
    app = make_api("dpfuse operator", "For the operator of a centre alone: its metrics are private.")
    registry = CollectorRegistry()
    registry.register(operations)
    ProcessCollector(registry=registry)
    for path, check in (
        ("/startupz", operations.startup),
        ("/readyz", operations.readiness),
        ("/livez", operations.liveness),
    ):
        app.get(path)(_checked(check))

    @app.get("/metrics")
    def get_metrics(request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if token is None:
            raise Refused(401, "not_allowed", "the metrics are closed; start the centre with DPFUSE_OPERATOR_TOKEN set")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Refused(401, "not_allowed", "the header must be `Authorization: Bearer TOKEN`, with the operator's")
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return app


def _checked(check: Callable[[], tuple[bool, dict[str, Any]]]) -> Callable[[], Response]:
    def get_check() -> Response:
        is_good, facts = check()
        return answer({"ok": is_good} | facts, 200 if is_good else 503)

    return get_check


class OperatorPort:
    """Serves the operator's application until it is stopped."""

    def __init__(self, operations: Operations, host: str, port: int, token: str | None = None) -> None:
        self._listener = bind(host, port)
        self.address = address_of(host, self._listener, has_tls=False)
        if token is None:
            _log.warning("the operator's metrics are closed; set DPFUSE_OPERATOR_TOKEN to read them")
        app = make_operator_app(operations, token)
        self._server: Any = make_server(app, limited_protocol(ByAddress(_LIMITS), too_busy))
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="dpfuse-operator", daemon=True
        )

    def start(self) -> Self:
        self._thread.start()
        end = time.monotonic() + _STARTS_WITHIN_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        return self

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(10)
        self._listener.close()
