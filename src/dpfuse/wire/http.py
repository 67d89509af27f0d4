"""The intake over HTTP: reports and public inputs come in, and the clock goes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.public.answers import Refused, answer, make_api
from dpfuse.public.openapi import CLOCK, answers
from dpfuse.public.reading import clock_facts
from dpfuse.public.replay_notes import MAX_TRUTH_STATES
from dpfuse.wire import openapi
from dpfuse.wire.intake import Holder, Intake

with requires_extra("live", "serving over HTTP"):
    import orjson
    from fastapi import FastAPI, Request, Response

if TYPE_CHECKING:
    from dpfuse.centre.clock import Ticker
    from dpfuse.public.connections import ByIdentity
    from dpfuse.public.feed import Feed
    from dpfuse.public.hub import Hub
    from dpfuse.public.replay_notes import ReplayNotes

MAX_TRUTH = 4096
"""Bytes of the true state of a step, in a replay."""
_BODY_S = 10.0
# A truth may be for a step that is so many steps away.
_TRUTH_STEPS = 1000


def make_intake_app(ticker: Ticker, intake: Intake, feed: Feed, connections: ByIdentity | None = None) -> FastAPI:
    """The application for sensors.

    **Guarantees**
        - Every report with a valid MAC gets the same answer, byte for byte. The answer does not depend on
          the report's sensor, stream, step and values, on other reports, or on anything that the centre knows.
        - No answer, header, error or log line holds a value that was sent. All errors have the same JSON shape.
        - The size of a report and the time of a request are limited. A slow client delays no other.

    Args:
        intake: takes the reports. If it has notes, the centre runs a replay: its data is simulated or public, the truth
            may be sent, and the page shows both.
        feed: the published steps, for the clock.
        connections: holds connections for the sensors that reported on them, and for publishers.
    """
    app = make_api("dpfuse intake", "Takes private reports. Releases are read elsewhere, see `dpfuse relay`.")
    _add_lines(app, intake, ticker, connections)
    if intake.notes is not None:
        _add_truth(app, ticker, feed.hub, intake.notes)

    @app.get("/v1/clock", responses=answers(200, CLOCK), tags=["facts"])
    async def get_clock() -> Response:
        """The step that reports are collected for, and the status of the centre."""
        return answer(clock_facts(feed, ticker.clock))

    return app


def _add_lines(app: FastAPI, intake: Intake, ticker: Ticker, connections: ByIdentity | None) -> None:
    responses: Any = {"status_code": 202, "responses": answers(202, openapi.RECEIVED, 408, 415), "tags": ["in"]}
    media_type = "application/x-ndjson"

    async def take(request: Request, *, are_inputs: bool) -> Response:
        _check_type(request, media_type)
        connection = request.scope.get("state", {}).get("connection")
        holder = None if connections is None or connection is None else Holder(connections, connection, ticker)
        async with _deadline():
            counted = await intake.accept_stream(request.stream(), ticker, holder, are_inputs=are_inputs)
        return answer(counted._asdict(), 202)

    @app.post("/v1/reports", openapi_extra=openapi.takes(openapi.REPORT, media_type), **responses)
    async def send_reports(request: Request) -> Response:
        """Send reports of one or many sensors, one on each line."""
        return await take(request, are_inputs=False)

    @app.post("/v1/inputs", openapi_extra=openapi.takes(openapi.INPUTS, media_type), **responses)
    async def send_inputs(request: Request) -> Response:
        """Send public inputs with a publisher's key, those of one stream and step on each line."""
        return await take(request, are_inputs=True)


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
        body = await _read_json(request)
        body = body if isinstance(body, dict) else {}
        stream, step, state = body.get("stream"), body.get("step"), body.get("state")
        is_state = (
            isinstance(state, list) and len(state) <= MAX_TRUTH_STATES and all(type(x) in (int, float) for x in state)
        )
        if not (isinstance(stream, str) and type(step) is int and isinstance(state, list) and is_state):
            raise Refused(422, "not_a_truth", 'the body must be {"stream": name, "step": number, "state": [numbers]}')
        if stream in hub.streams and abs(step - hub.last_step(stream)) < _TRUTH_STEPS:
            notes.set_truth(stream, step, state)
        return answer({}, 202)


async def _read_json(request: Request) -> Any:
    """The body of a request with a JSON content type, within the limits of size and time."""
    _check_type(request, "application/json")
    body = bytearray()
    async with _deadline():
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_TRUTH:
                raise Refused(413, "too_large", f"the body must have at most {MAX_TRUTH} bytes")
    try:
        return orjson.loads(body)
    except ValueError:
        raise Refused(400, "not_json", "the body must be a JSON object") from None


def _check_type(request: Request, wanted: str) -> None:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise Refused(415, "wrong_type", f"the body must be {wanted}")


@asynccontextmanager
async def _deadline() -> AsyncIterator[None]:
    """Refuses a body that does not arrive in time."""
    try:
        async with asyncio.timeout(_BODY_S):
            yield
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body must arrive within {_BODY_S:g} s") from None
