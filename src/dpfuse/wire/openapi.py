"""What sensors send and are answered, for the OpenAPI description; nothing here is enforced by it."""

from __future__ import annotations

from typing import Any

from dpfuse.public.openapi import INTEGER, NUMBER, TEXT, Schema, make_array, make_object
from dpfuse.wire.messages import MAX_BATCH

REPORT = make_object(
    "One sensor's measurement for one step. Every report whose token is right gets the same answer, whatever its "
    "stream, step and values.",
    token={"type": "string", "description": "from `dpfuse token`: <id>.<64 hex digits>"},
    stream={"type": "string", "example": "main"},
    step={"type": "integer", "description": "the step of /v1/clock, or the one after it"},
    values={"type": "array", "items": NUMBER, "description": "one finite number a channel"},
)
# An entry may be anything: one that is no report is refused for its token, and the others count.
REPORTS = make_object(reports=make_array({"anyOf": [REPORT, {}]}, maxItems=MAX_BATCH))
RECEIVED = make_object(
    received={"type": "integer", "description": "reports with a token that is right"},
    refused=make_array({"type": "integer", "description": "positions of the others, from 0"}),
)
TRUTH = make_object(
    "Data that is nobody's: what the estimate is compared with.",
    stream=TEXT,
    step=INTEGER,
    state=make_array(NUMBER, maxItems=64),
)


def takes(schema: Schema) -> dict[str, Any]:
    """The `openapi_extra` of a path that reads its body itself."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
