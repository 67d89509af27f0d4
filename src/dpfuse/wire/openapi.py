"""Schemas of what sensors send and receive, for the OpenAPI description; the code checks messages by itself."""

from __future__ import annotations

from typing import Any

from dpfuse.public.openapi import INTEGER, NUMBER, TEXT, Schema, make_array, make_object
from dpfuse.wire.messages import MAX_BATCH

REPORT = make_object(
    "One sensor's measurement for one step. Every report with a valid token gets the same answer; stream, step and "
    "values do not change it.",
    token={"type": "string", "description": "from `dpfuse token`: <id>.<64 hex digits>"},
    stream={"type": "string", "example": "main"},
    step={"type": "integer", "description": "the step of /v1/clock, or the one after it"},
    values={"type": "array", "items": NUMBER, "description": "one finite number a channel"},
)
# An entry may have any shape. One without a valid token is refused, and the others count.
REPORTS = make_object(reports=make_array({"anyOf": [REPORT, {}]}, maxItems=MAX_BATCH))
RECEIVED = make_object(
    received={"type": "integer", "description": "number of reports with a valid token"},
    refused=make_array({"type": "integer", "description": "positions of the others in the batch, from 0"}),
)
TRUTH = make_object(
    "The true state of a step, where the data is simulated or public.",
    stream=TEXT,
    step=INTEGER,
    state=make_array(NUMBER, maxItems=64),
)


def takes(schema: Schema) -> dict[str, Any]:
    """The `openapi_extra` of a path that parses its body by itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
