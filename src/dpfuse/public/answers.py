"""Answers and errors of both HTTP applications, intake and reading: one shape, and nothing in them that was sent."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

from dpfuse._extras import requires_extra

with requires_extra("live", "serving over HTTP"):
    import orjson
    from fastapi import FastAPI, Request, Response
    from fastapi.exceptions import RequestValidationError
    from h11 import LocalProtocolError
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect

_SEND_S = 30.0
_CLOSE = {"connection": "close"}
_CODES = {404: "not_found", 405: "method_not_allowed", 429: "too_many_subscribers"}
_log = logging.getLogger(__name__)


class Refused(Exception):
    """An error answer. Its message is a constant and holds nothing that was sent."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def make_api(title: str, description: str) -> FastAPI:
    """An application without routes, whose errors all have one shape."""
    app = FastAPI(
        title=title,
        version="1",
        description=f"{description} HEAD is answered like GET, without a body. "
        "A path answers 405 to a method that is not listed here.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _handle_errors(app)
    return app


def answer(content: dict[str, Any], status: int = 200) -> Response:
    """A JSON object."""
    return Response(orjson.dumps(content), status, media_type="application/json")


def error_answer(status: int, code: str, message: str, headers: Any = None) -> Response:
    """An error, in the shape of all errors."""
    made = answer({"error": {"code": code, "message": message}}, status)
    made.headers.update(headers or {})
    return made


async def too_busy(scope: Any, receive: Any, send: Any) -> None:
    """The application for connections above a limit."""
    await error_answer(503, "too_busy", "too many connections; try again later", _CLOSE)(scope, receive, send)


def _handle_errors(app: FastAPI) -> None:
    """Give all errors the same shape and keep out of them what was sent."""

    @app.exception_handler(Refused)
    async def refuse(_: Request, error: Refused) -> Response:
        # On an open connection the server would read the rest of a body that it has refused.
        headers = _CLOSE if error.status in (408, 413, 415) else {}
        return error_answer(error.status, error.code, error.message, headers)

    @app.exception_handler(RequestValidationError)
    async def not_as_described(_: Request, error: RequestValidationError) -> Response:
        names = sorted({str(detail["loc"][-1]) for detail in error.errors() if detail["loc"][0] in ("path", "query")})
        return error_answer(
            422, "not_as_described", f"not as described in /openapi.json: {', '.join(names) or 'the request'}"
        )

    @app.exception_handler(HTTPException)
    async def by_status(_: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "refused")
        return error_answer(error.status_code, code, f"{code.replace('_', ' ')}; see /openapi.json", error.headers)

    app.add_middleware(_HideErrors)


class _TooSlow(Exception):
    """The client does not read its answer."""


class _Answered(Exception):
    """A HEAD request has its headers, and gets nothing more."""


class _HideErrors:
    """Logs the type and place of an unexpected error and answers 500. The error's text may hold a private value.

    An answer that the client does not read ends after half a minute. HEAD is answered like GET, without a body.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_started, is_head = False, scope.get("method") == "HEAD"
        scope = scope | {"method": "GET"} if is_head else scope

        async def send_in_time(message: Any) -> None:
            nonlocal is_started
            is_started = is_started or message["type"] == "http.response.start"
            try:
                async with asyncio.timeout(_SEND_S):
                    await send(message)
            except TimeoutError:
                raise _TooSlow from None
            if is_head:
                await send({"type": "http.response.body", "body": b""})
                raise _Answered  # also ends an event stream

        try:
            await self._app(scope, receive, send_in_time)
        except (_TooSlow, _Answered, ClientDisconnect, LocalProtocolError):
            # The client has left, or broke the rules of HTTP and has that answer, or it does not read: the server
            # closes the connection. Nothing is logged, since anybody could fill the log.
            return
        except asyncio.CancelledError:  # the server stops before this request is answered
            if not is_started and scope["type"] == "http":
                await error_answer(503, "stopping", "the server stops; try again later", _CLOSE)(scope, receive, send)
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, place.filename, place.lineno)
            if not is_started and scope["type"] == "http":
                await error_answer(500, "internal", "the server failed to answer; its log names the error")(
                    scope, receive, send
                )
