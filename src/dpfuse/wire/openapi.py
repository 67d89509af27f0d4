"""Schemas of what sensors send and receive, for the OpenAPI description; the code checks messages by itself."""

from __future__ import annotations

from typing import Any

from dpfuse.public.openapi import INTEGER, NUMBER, TEXT, Schema, make_array, make_object
from dpfuse.wire.intake import MAX_REFUSED


def _make_line(about: str, *, key: str, step: str, values: str, **more: Schema) -> Schema:
    """A line of the body, which has a MAC."""
    return make_object(
        f"One line of the body: {about}",
        key={"type": "string", "description": key},
        stream={"type": "string", "example": "main"},
        step={"type": "integer", "description": step},
        values={"type": "array", "items": {"type": ["number", "null"]}, "description": values},
        mac={"type": "string", "description": "32 hex digits: HMAC-SHA256 of the rest by the key, first 16 bytes"},
        **more,
    )


REPORT = _make_line(
    "one sensor's measurement for one step. Each line is read by itself, and one that is not a report with a valid MAC "
    "is refused alone. Every report with a valid MAC gets the same answer; stream, step and values do not change it.",
    key="from `dpfuse keys issue`: <sensor>.<generation>.<serial>",
    step="the step of /v1/clock, or the one after it",
    values="one finite number a channel, null for a channel that is missing",
    sealed={"type": "string", "description": "hex digits, in place of values and mac: the values, encrypted"},
)
REPORT["required"] = ["key", "stream", "step"]
INPUTS = _make_line(
    "public inputs of one stream and step. Who signs them vouches that no report, count, load or connection went into "
    "them. A line without a publisher's valid MAC is refused alone.",
    key="from `dpfuse keys issue --publisher`: p<number>.<generation>.<serial>",
    step="the step for which they hold: that of /v1/clock, or the one after it",
    values="one number for each public input of the design, null for one without news",
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
