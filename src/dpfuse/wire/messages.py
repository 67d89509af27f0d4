"""The two messages, which are the same on every transport: a sensor's report and the centre's release.

    {"token": "17.<64 hex digits>", "stream": "main", "step": 42, "values": [103.2, 9.8]}

    {"stream": "main", "step": 42, "release": [-812345, 90210], "fusion_weight": 33554, "grid": 1048576,
     "cost": 1125871, "budget_left": 98304000, "hash": "<64 hex digits>"}

A release (`public.rows.release_message`) is padded with spaces to a width that depends on the design and the stream's
name alone. Its length shows nothing to an observer of encrypted traffic.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from dpfuse._extras import requires_extra

MAX_BODY = 512 * 1024
"""Bytes of one HTTP request: about two thousand reports."""
MAX_BATCH = 2000
"""Reports in one HTTP request."""
MAX_REPORT = 4096
"""Bytes of one MQTT message."""
MAX_LENIENT = 64 * 1024
"""A text of more bytes must be strict JSON. Numbers such as NaN need a slow parser, which blocks all threads."""

_STREAM = re.compile(r"[A-Za-z0-9._-]{1,64}")


class SensorReport(NamedTuple):
    """A report with fields of the right types; nothing else is checked. Private.

    Attributes:
        token: names the sensor and proves its identity.
        stream, step: any name and any number.
        values: numbers, as many and as large as were sent.
    """

    token: str
    stream: str
    step: int
    values: list[float]


def read_json(body: bytes) -> Any:
    """The value of a JSON text; None for a text that is not JSON, or is null.

    NaN and numbers outside double and int64 invalidate their own report and not the batch: a text that orjson refuses
    is read again by the standard library, up to `MAX_LENIENT` bytes. A longer one, or one nested a thousand levels
    deep, is refused as a whole. No error is raised, as it would hold the text.
    """
    with requires_extra("live", "a JSON message"):
        import orjson
    try:
        return orjson.loads(body)
    except ValueError:
        pass
    if len(body) > MAX_LENIENT:
        return None
    try:
        return json.loads(body.decode(), parse_int=_parse_int)
    except (ValueError, RecursionError):
        return None


def token_of(message: Any) -> str:
    """The token in a message of any shape; empty if there is none."""
    token = message.get("token") if isinstance(message, dict) else None
    return token if isinstance(token, str) else ""


def parse_report(message: Any) -> SensorReport | None:
    """The message as a report; None if stream, step or values are missing or of another type."""
    if not isinstance(message, dict):
        return None
    stream, step, values = message.get("stream"), message.get("step"), message.get("values")
    if type(stream) is not str or type(step) is not int or type(values) is not list:
        return None
    if not all(type(value) is float or type(value) is int for value in values):
        return None
    return SensorReport(token_of(message), stream, step, values)


def check_stream_name(name: str) -> str:
    """The name, if it fits into a URL and an MQTT topic."""
    if not _STREAM.fullmatch(name):
        raise ValueError(f"stream must be 1 to 64 letters, digits, dots, underscores or hyphens, got {name!r}")
    return name


def _parse_int(digits: str) -> float:
    # Python raises for 5,000 digits and is slow for fewer. An int64 with its sign has at most 20.
    return int(digits) if len(digits) <= 20 else math.inf
