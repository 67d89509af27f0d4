"""What requests and answers look like, for the OpenAPI description; nothing here is enforced by it."""

from __future__ import annotations

from typing import Any

from dpfuse.runtime.messages import MAX_BATCH, MAX_BODY

Schema = dict[str, Any]

_INTEGER: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_TEXT: Schema = {"type": "string"}
_MAYBE: Schema = {"type": ["integer", "null"]}


def _object(_description: str = "", **fields: Schema) -> Schema:
    described = {"description": _description} if _description else {}
    return {"type": "object", "properties": fields, "required": list(fields), **described}


def _array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


REPORT = _object(
    "One sensor's measurement for one step. Every report whose token is right gets the same answer, whatever its "
    "stream, step and values.",
    token={"type": "string", "description": "from `dpfuse token`: <id>.<64 hex digits>"},
    stream={"type": "string", "example": "main"},
    step={"type": "integer", "description": "the step of /v1/clock, or the one after it"},
    values={"type": "array", "items": _NUMBER, "description": "one finite number a channel"},
)
# An entry may be anything: one that is no report is refused for its token, and the others count.
REPORTS = _object(reports=_array({"anyOf": [REPORT, {}]}, maxItems=MAX_BATCH))
RECEIVED = _object(
    received={"type": "integer", "description": "reports with a token that is right"},
    refused=_array({"type": "integer", "description": "positions of the others, from 0"}),
)
CLOCK = _object(
    step={"type": "integer", "description": "the step that reports are collected for"},
    closes_in_s=_NUMBER,
    interval_s=_NUMBER,
    delay_s=_NUMBER,
    is_over={"type": "boolean", "description": "a finite design has come to its end"},
    state={"enum": ["running", "over", "failed", "stopped"]},
    spent=_array({"type": "string", "description": "streams whose total budget is spent"}),
)
RELEASE = _object(
    "Integers are in grid steps, costs in squared grid steps; null in individual accounting.",
    stream=_TEXT,
    step=_INTEGER,
    release=_array(_INTEGER),
    fusion_weight=_INTEGER,
    grid=_INTEGER,
    cost=_MAYBE,
    budget_left=_MAYBE,
    hash=_TEXT,
)
RELEASES = _object(releases=_array(RELEASE))
GUARANTEE = {"type": "object"}
TRUTH = _object(
    "Data that is nobody's: what the estimate is compared with.",
    stream=_TEXT,
    step=_INTEGER,
    state=_array(_NUMBER, maxItems=64),
)
ERROR = _object(error=_object(code=_TEXT, message=_TEXT))

_SAY = {
    400: "the body is not JSON",
    404: "there is no such thing",
    408: "the body took too long",
    413: f"the body is larger than {MAX_BODY} bytes or has more than {MAX_BATCH} reports",
    415: "the body is not application/json",
    422: "a parameter or the body is not as described",
    429: "too many subscribers",
    503: "too many connections, or the centre stops",
}


def answers(status: int, schema: Schema | str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a path: one answer, JSON or of that media type, and its errors, of which 503 is everywhere."""
    content = {schema: {}} if isinstance(schema, str) else {"application/json": {"schema": schema}}
    described: dict[int | str, dict[str, Any]] = {status: {"description": "as described", "content": content}}
    for code in (*errors, 503):
        described[code] = {"description": _SAY[code], "content": {"application/json": {"schema": ERROR}}}
    return described


def takes(schema: Schema) -> dict[str, Any]:
    """The `openapi_extra` of a path that reads its body itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
