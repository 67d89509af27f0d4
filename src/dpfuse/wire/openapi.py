"""Schemas of what sensors send and receive, for the OpenAPI description; the code checks messages by itself."""

from __future__ import annotations

from typing import Any

from dpfuse.public.openapi import INTEGER, NUMBER, TEXT, Schema, make_array, make_object
from dpfuse.wire.intake import MAX_REFUSED

REPORT = make_object(
    "One line of the body: one sensor's measurement for one step. Each line is read by itself, and one that is not a "
    "report with a valid MAC is refused alone. Every report with a valid MAC gets the same answer; stream, step "
    "and values do not change it.",
    key={"type": "string", "description": "from `dpfuse keys issue`: <sensor>.<generation>.<serial>"},
    stream={"type": "string", "example": "main"},
    step={"type": "integer", "description": "the step of /v1/clock, or the one after it"},
    values={
        "type": "array",
        "items": {"type": ["number", "null"]},
        "description": "one finite number a channel, null for a channel that is missing",
    },
    mac={"type": "string", "description": "32 hex digits: HMAC-SHA256 of the other fields by the key, first 16 bytes"},
    sealed={"type": "string", "description": "hex digits, in place of values and mac: the values, encrypted"},
)
REPORT["required"] = ["key", "stream", "step"]
INPUTS = make_object(
    "One line of the body: public inputs of one stream and step. Who signs them vouches that no report, count, load or "
    "connection went into them. A line without a publisher's valid MAC is refused alone.",
    key={"type": "string", "description": "from `dpfuse keys issue --publisher`: p<number>.<generation>.<serial>"},
    stream={"type": "string", "example": "main"},
    step={"type": "integer", "description": "the step for which they hold: that of /v1/clock, or the one after it"},
    values={
        "type": "array",
        "items": {"type": ["number", "null"]},
        "description": "one number for each public input of the design, null for one without news",
    },
    mac={"type": "string", "description": "32 hex digits, as for a report"},
)
RECEIVED = make_object(
    received={"type": "integer", "description": "number of reports with a valid MAC"},
    refused=make_array(
        {"type": "integer", "description": "positions of the first other lines, from 0"}, maxItems=MAX_REFUSED
    ),
)
TRUTH = make_object(
    "The true state of a step, where the data is simulated or public.",
    stream=TEXT,
    step=INTEGER,
    state=make_array(NUMBER, maxItems=64),
)


def takes(schema: Schema, media_type: str = "application/json") -> dict[str, Any]:
    """The `openapi_extra` of a path that parses its body by itself."""
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}
