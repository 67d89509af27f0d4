"""Schemas of the centre's answers, for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from dpfuse.public.status import STATUSES

Schema = dict[str, Any]

INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
_INTEGER_OR_NULL: Schema = {"type": ["integer", "null"]}


def make_object(_description: str = "", **fields: Schema) -> Schema:
    described = {"description": _description} if _description else {}
    return {"type": "object", "properties": fields, "required": list(fields), **described}


def make_array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


CLOCK = make_object(
    step={"type": "integer", "description": "the step that reports are collected for"},
    closes_in_s=NUMBER,
    interval_s=NUMBER,
    delay_s=NUMBER,
    is_over={
        "type": "boolean",
        "description": "the last step of a finite design has ended; its release leaves delay_s later",
    },
    status={"enum": list(STATUSES)},
    spent=make_array({"type": "string", "description": "streams whose total budget is spent"}),
)
RELEASE = make_object(
    "Release and fusion weight are in grid steps, cost and budget left in squared grid steps. The last two are null in "
    "individual accounting. The signature is Ed25519, by the key in /v1/guarantee.",
    stream=TEXT,
    step=INTEGER,
    release=make_array(INTEGER),
    fusion_weight=INTEGER,
    grid=INTEGER,
    cost=_INTEGER_OR_NULL,
    budget_left=_INTEGER_OR_NULL,
    design=TEXT,
    hash=TEXT,
)
RELEASE["properties"] |= {
    "signature": TEXT,
    "period": {"type": "integer", "description": "with periods: its number"},
    "inputs": {
        "type": "array",
        "items": {"type": ["number", "null"]},
        "description": "with public inputs: those that E reads with this release; null before the first value",
    },
    "input_ages": {"type": "array", "items": INTEGER, "description": "with public inputs: the age of each in steps"},
}
RELEASES = make_object(releases=make_array(RELEASE))
GUARANTEE = {"type": "object"}
DESIGNS = make_object(designs=make_array(TEXT))
ERROR = make_object(error=make_object(code=TEXT, message=TEXT))

_ERRORS = {
    400: "the body is not JSON",
    404: "not found",
    408: "the body arrived too slowly",
    413: "the body is too large",
    415: "the body has another content type",
    422: "a parameter or the body is not as described",
    429: "too many subscribers",
    500: "the centre failed to answer; its log names the error",
    503: "too many connections, or the centre stops",
}


def answers(status: int, schema: Schema | str, *errors: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a path: its answer, as a JSON schema or a media type, and its errors; all have 500 and 503."""
    content = {schema: {}} if isinstance(schema, str) else {"application/json": {"schema": schema}}
    described: dict[int | str, dict[str, Any]] = {status: {"description": "as described", "content": content}}
    for code in (*errors, 500, 503):
        described[code] = {"description": _ERRORS[code], "content": {"application/json": {"schema": ERROR}}}
    return described
