"""The centre over HTTP: reports come in; releases and public facts go out."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from dpfuse._extras import requires_extra
from dpfuse.privacy.budget import GRID
from dpfuse.privacy.statement import Statement, state_guarantee
from dpfuse.public.openapi import CLOCK, GUARANTEE, RELEASES, answers
from dpfuse.public.rows import release_message
from dpfuse.wire import openapi
from dpfuse.wire.intake import Intake, wait_for_release
from dpfuse.wire.messages import MAX_BATCH, MAX_BODY, read_json

with requires_extra("live", "serving over HTTP"):
    import orjson
    from fastapi import FastAPI, Path, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

from dpfuse.public.events import EventStream, LastEventId, StartStep, SubscriberLimit, first_after, release_frames
from dpfuse.public.feed import Feed
from dpfuse.public.metrics import metrics_router
from dpfuse.public.page import page_router

if TYPE_CHECKING:
    from dpfuse.centre.centre import FusionCentre
    from dpfuse.centre.clock import Ticker
    from dpfuse.policy.design import Design
    from dpfuse.public.hub import Hub
    from dpfuse.public.replay_notes import ReplayNotes

MAX_SUBSCRIBERS = 1000
"""Subscribers to releases at the same time, and as many to the page's feed."""
_BODY_S = 10.0
_PAGE = 1000
_CLOSE = {"connection": "close"}
_log = logging.getLogger(__name__)

Stream = Annotated[str, Path(description="the name of a stream; /v1/guarantee lists them", max_length=64)]
_CODES = {404: "not_found", 405: "method_not_allowed", 429: "too_many_subscribers"}


class Refused(Exception):
    """An error answer. Its message is a constant and holds nothing that was sent."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


def make_app(
    centre: FusionCentre,
    ticker: Ticker,
    hub: Hub,
    intake: Intake,
    *,
    labels: Sequence[str] = (),
    max_subscribers: int = MAX_SUBSCRIBERS,
) -> FastAPI:
    """The application: /v1 for programs and a page for people.

    **Guarantees**
        - Every report with a valid token gets the same answer, byte for byte. The answer does not depend on the
          report's sensor, stream, step and values, or on anything that the centre knows.
        - No answer, header, error or log line holds a value that was sent. All errors have the same JSON shape.
        - Releases come from the hub: never before their moment, and at fixed width.
        - The size of a request is limited. A slow client delays no other.

    Args:
        intake: takes the reports. If it has notes, the centre runs a replay: its data is simulated or public, the truth
            may be sent, and the page shows both.
        labels: the page's name for each coordinate of the state, such as "density [veh/km]".
        max_subscribers: how many may follow the releases at the same time, and how many the page's feed.
    """
    app = FastAPI(
        title="dpfuse fusion centre",
        version="1",
        description="Takes private reports and publishes releases under a hard privacy budget. A path answers 405 to a "
        "method that is not listed here.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    design, notes = centre.design, intake.notes
    feed = Feed(
        hub,
        design,
        interval_s=ticker.interval_s,
        delay_s=ticker.delay_s,
        first_step=centre.now,
        status=lambda: ticker.status,
        notes=notes,
    )
    statement = state_guarantee(
        feed.guarantee,
        horizon=design.structure.horizon,
        dimension=design.structure.dimension,
        num_streams=len(centre.ledger_streams),
    )
    _handle_errors(app)
    _add_reports(app, intake, ticker)
    _add_releases(app, ticker, hub, SubscriberLimit(max_subscribers))
    _add_facts(app, ticker, feed, statement)
    _add_estimator(app, design)
    if notes is not None:
        _add_truth(app, ticker, hub, notes)
    app.include_router(metrics_router(feed, ticker.clock))
    app.include_router(page_router(feed, statement, labels=labels, max_subscribers=max_subscribers))
    return app


def _add_reports(app: FastAPI, intake: Intake, ticker: Ticker) -> None:
    responses = answers(202, openapi.RECEIVED, 400, 408, 413, 415, 422)

    @app.post(
        "/v1/reports", status_code=202, responses=responses, openapi_extra=openapi.takes(openapi.REPORTS), tags=["in"]
    )
    async def send_reports(request: Request) -> Response:
        """Send reports of one or many sensors."""
        text = await _read_body(request)
        await wait_for_release(ticker)
        body = _parse(text)
        batch = body.get("reports") if isinstance(body, dict) else None
        if not isinstance(batch, list):
            raise Refused(422, "not_reports", 'the body must be {"reports": [...]}')
        if len(batch) > MAX_BATCH:
            raise Refused(
                413, "too_many_reports", f"a request must hold at most {MAX_BATCH} reports; send more requests"
            )
        refused = await intake.accept_batch(batch, ticker)
        return _answer({"received": len(batch) - len(refused), "refused": refused}, 202)


def _add_releases(app: FastAPI, ticker: Ticker, hub: Hub, subscribers: SubscriberLimit) -> None:
    @app.get("/v1/streams/{stream}/releases", responses=answers(200, RELEASES, 404, 422), tags=["out"])
    def get_releases(
        stream: Stream,
        start: StartStep = 1,
        limit: Annotated[int, Query(ge=1, le=_PAGE, description="how many")] = _PAGE,
    ) -> Response:
        """Releases from a step on, in order."""
        rows = hub.rows(_known(hub, stream), start, limit)
        content = b",".join(release_message(row) for row in rows)
        return Response(b'{"releases":[%s]}' % content, media_type="application/json")

    @app.get(
        "/v1/streams/{stream}/releases/events",
        responses=answers(200, "text/event-stream", 404, 422, 429),
        tags=["out"],
    )
    async def follow_releases(stream: Stream, start: StartStep = 1, last_event_id: LastEventId = "") -> Response:
        """Releases from a step on, then each new release when it is published, as server-sent events."""
        start = first_after(last_event_id, start)
        frames = release_frames(hub, _known(hub, stream), start, lambda: str(ticker.status))
        if not subscribers.admit():
            raise Refused(429, "too_many_subscribers", "too many subscribers; try again later, or read /releases")
        return EventStream(frames, subscribers.leave)


def _add_facts(app: FastAPI, ticker: Ticker, feed: Feed, statement: Statement) -> None:
    guarantee = statement.to_dict() | _settings(feed)

    @app.get("/v1/clock", responses=answers(200, CLOCK), tags=["facts"])
    async def get_clock() -> Response:
        """The step that reports are collected for, and the status of the centre."""
        spent = [stream for stream in feed.hub.streams if feed.is_spent(stream)]
        return _answer({**ticker.clock(), "status": ticker.status, "spent": spent})

    @app.get("/v1/guarantee", responses=answers(200, GUARANTEE), tags=["facts"])
    async def get_guarantee() -> Response:
        """The guarantee for each sensor, in numbers and in words, and the public settings of the centre."""
        return _answer(guarantee)


def _settings(feed: Feed) -> dict[str, Any]:
    """The public settings of a centre."""
    structure, constants = feed.design.structure, feed.design.policy.constants
    ranges = zip(constants.measurement_low.tolist(), constants.measurement_high.tolist(), strict=True)
    return {
        "fingerprint": feed.fingerprint,
        "streams": list(feed.hub.streams),
        "interval_s": feed.interval_s,
        "delay_s": feed.delay_s,
        "channels": [{"low": low, "high": high} for low, high in ranges],
        "num_states": structure.num_states,
        "dimension": structure.dimension,
        "grid": GRID,
    }


def _add_estimator(app: FastAPI, design: Design) -> None:
    with tempfile.TemporaryDirectory() as folder:
        design.export_estimator(path := os.path.join(folder, "estimator"))
        with open(path, "rb") as file:
            content = file.read()

    @app.get("/v1/estimator", responses=answers(200, "application/zip"), tags=["facts"])
    async def get_estimator() -> Response:
        """The estimator's file, which turns releases into estimates; `dpfuse estimate` reads it."""
        return Response(content, media_type="application/zip")


def _add_truth(app: FastAPI, ticker: Ticker, hub: Hub, notes: ReplayNotes) -> None:
    hub.on_publish(lambda published: notes.set_latency(published[-1].row.step, ticker.last_latency_s))
    responses = answers(202, {"type": "object"}, 400, 408, 413, 415, 422)

    @app.post(
        "/v1/replay/truth",
        status_code=202,
        responses=responses,
        openapi_extra=openapi.takes(openapi.TRUTH),
        tags=["in"],
    )
    async def send_truth(request: Request) -> Response:
        """In a replay, send the true state of a step."""
        body = _parse(await _read_body(request))
        body = body if isinstance(body, dict) else {}
        stream, step, state = body.get("stream"), body.get("step"), body.get("state")
        is_state = isinstance(state, list) and len(state) <= 64 and all(type(x) in (int, float) for x in state)
        if not (isinstance(stream, str) and type(step) is int and isinstance(state, list) and is_state):
            raise Refused(422, "not_a_truth", 'the body must be {"stream": name, "step": number, "state": [numbers]}')
        if stream in hub.streams and abs(step - hub.last_step(stream)) < _PAGE:
            notes.set_truth(stream, step, state)
        return _answer({}, 202)


def _known(hub: Hub, stream: str) -> str:
    if stream not in hub.streams:
        raise Refused(404, "unknown_stream", "there is no such stream; /v1/guarantee lists them")
    return stream


async def _read_body(request: Request) -> bytes:
    """The body of a request with a JSON content type, within the limits of size and time."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "not_json", "the body must be application/json")
    too_large = Refused(413, "too_large", f"the body must have at most {MAX_BODY} bytes; send smaller batches")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:19]) > MAX_BODY:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body must arrive within {_BODY_S:g} s") from None
    return bytes(body)


def _parse(body: bytes) -> Any:
    content = read_json(body)
    if content is None:
        raise Refused(400, "not_json", "the body must be a JSON object")
    return content


def _answer(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def _error(status: int, code: str, message: str, headers: Any = None) -> Response:
    answer = _answer({"error": {"code": code, "message": message}}, status)
    answer.headers.update(headers or {})
    return answer


def _handle_errors(app: FastAPI) -> None:
    """Give all errors the same shape and keep out of them what was sent."""

    @app.exception_handler(Refused)
    async def refuse(_: Request, error: Refused) -> Response:
        # On an open connection the server would read the rest of a body that it has refused.
        headers = _CLOSE if error.status in (408, 413, 415) else {}
        return _error(error.status, error.code, error.message, headers)

    @app.exception_handler(RequestValidationError)
    async def not_as_described(_: Request, error: RequestValidationError) -> Response:
        names = sorted({str(detail["loc"][-1]) for detail in error.errors() if detail["loc"][0] in ("path", "query")})
        return _error(
            422, "not_as_described", f"not as described in /openapi.json: {', '.join(names) or 'the request'}"
        )

    @app.exception_handler(HTTPException)
    async def by_status(_: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "refused")
        return _error(error.status_code, code, f"{code.replace('_', ' ')}; see /openapi.json", error.headers)

    app.add_middleware(_HideErrors)


async def too_busy(scope: Any, receive: Any, send: Any) -> None:
    """The application for connections above the limit."""
    await _error(503, "too_busy", "too many connections; try again later", _CLOSE)(scope, receive, send)


class _HideErrors:
    """Logs the type and place of an unexpected error and answers 500. The error's text may hold a private value."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        is_started = False

        async def note(message: Any) -> None:
            nonlocal is_started
            is_started = is_started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:  # the centre stops before this request is answered
            if not is_started and scope["type"] == "http":
                await _error(503, "stopping", "the centre stops; try again later", _CLOSE)(scope, receive, send)
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s in %s, line %s", type(error).__name__, place.filename, place.lineno)
            if not is_started and scope["type"] == "http":
                await _error(500, "internal", "the centre failed to answer; its log names the error")(
                    scope, receive, send
                )
