"""The two messages, the same over HTTP and MQTT: a sensor's report and the centre's release.

    {"token": "17.<64 hex digits>", "stream": "main", "step": 42, "values": [103.2, 9.8]}

    {"stream": "main", "step": 42, "release": [-812345, 90210], "fusion_weight": 33554, "grid": 1048576,
     "cost": 1125871, "budget_left": 98304000, "hash": "<64 hex digits>"}

A release is padded with spaces to a width that depends on the design and the stream's name alone, so that its length
tells nothing to somebody who sees encrypted traffic go by.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from dpfuse.public.rows import orjson

MAX_BODY = 512 * 1024
"""Bytes of one HTTP request: about two thousand reports."""
MAX_BATCH = 2000
"""Reports in one HTTP request."""
MAX_REPORT = 4096
"""Bytes of one MQTT message."""
MAX_LENIENT = 64 * 1024
"""Bytes of a body that may hold numbers that JSON does not know; they are read slowly, and others wait meanwhile."""

_STREAM = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Report(NamedTuple):
    """What a sensor sent, of the right types and otherwise unchecked; private.

    Attributes:
        token: names the sensor and proves it.
        stream, step: what it is for, known or not, due or not.
        values: a list of numbers, of whatever length and size.
    """

    token: str
    stream: str
    step: int
    values: list[float]


def read_json(body: bytes) -> Any:
    """The value of a JSON text; None for what is none, which no message is either.

    NaN, and numbers of any size that no double or int64 holds, spoil the report that they stand in and not the batch:
    what the quick reader refuses goes through the standard library's, up to `MAX_LENIENT` bytes, as it keeps the
    interpreter to itself. What is larger, or nested a thousand deep, is refused as a whole. No error comes out, as it
    would hold the text.
    """
    try:
        return orjson().loads(body)
    except ValueError:
        pass
    if len(body) > MAX_LENIENT:
        return None
    try:
        return json.loads(body.decode(), parse_int=_parse_int)
    except (ValueError, RecursionError):
        return None


def token_of(message: Any) -> str:
    """The token of a message that may be anything; empty for none."""
    token = message.get("token") if isinstance(message, dict) else None
    return token if isinstance(token, str) else ""


def parse_report(message: Any) -> Report | None:
    """The message as a report; None for one that no stream, step or values can be read from."""
    if not isinstance(message, dict):
        return None
    stream, step, values = message.get("stream"), message.get("step"), message.get("values")
    if type(stream) is not str or type(step) is not int or type(values) is not list:
        return None
    if not all(type(value) is float or type(value) is int for value in values):
        return None
    return Report(token_of(message), stream, step, values)


def check_stream_name(name: str) -> str:
    """The name, if it can stand in an address and in a topic."""
    if not _STREAM.fullmatch(name):
        raise ValueError(f"stream must be 1 to 64 letters, digits, dots, underscores or hyphens, got {name!r}")
    return name


def _parse_int(digits: str) -> float:
    # Python raises for 5,000 digits, and takes its time for fewer. With a sign, int64 has 20.
    return int(digits) if len(digits) <= 20 else math.inf
