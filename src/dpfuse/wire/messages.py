"""The two messages, which are the same on every transport: a sensor's report and the centre's release.

    {"key": "17.1.0", "stream": "main", "step": 42, "values": [103.2, 9.8], "mac": "<32 hex digits>"}
    {"key": "17.1.0", "stream": "main", "step": 42, "sealed": "<292 hex digits>"}

    {"stream": "main", "step": 42, "release": [-812345, 90210], "fusion_weight": 33554, "grid": 1048576,
     "cost": 1125871, "budget_left": 98304000, "hash": "<64 hex digits>"}

A report is one line of JSON. A value is a number, or null for a channel that is missing. Every report is parsed by
itself: nothing in it can change how another is read. Its MAC is over numbers, not over text, so that a sensor may write
its JSON as it likes:

    sensor (8 bytes), generation (4), serial (4), step (8, signed), length of the stream's name (1), the name padded
    with zeros (64), and each value as a double (8), NaN (7ff8 and 12 zeros) for null; all in network byte order.

A sealed report hides its values from those who carry it. They are encrypted together with their number, padded with
zeros to 16 values, or 32, ..., so that all reports of a design have one width; the bytes before the values, as above,
are bound to them.

A report is padded with spaces to a width that depends on its form and on the number of channels alone (`write_report`).
Without them its length would show how many digits the values have, also to an observer of encrypted traffic.

A release (`public.rows.release_message`) is padded with spaces to a width that depends on the design and the stream's
name alone. Its length shows nothing to an observer of encrypted traffic.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from dpfuse._extras import requires_extra

with requires_extra("live", "a JSON message"):
    import orjson

MAX_REPORT = 4096
"""Bytes of one report, without the end of its line."""

PADDED_TO = 16
"""The values of a sealed report are padded to a multiple of so many."""

# Bytes of a report without its values: a key and a step of the most digits, and a stream with the longest name.
_REST_WIDTH = 216
# Bytes of the longest double as text, with a comma and a space.
_VALUE_WIDTH = 26
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_STREAM = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VALUE_TYPES = {float, int, type(None)}
_HEADER = struct.Struct(">QIIqB64s")


class SensorReport(NamedTuple):
    """A report with fields of the right types; whose it is, is not checked yet. Private.

    Attributes:
        key: names the sensor and the key that signed the report.
        stream: the name of a stream, which may not exist.
        step: any number of 64 bits.
        values: numbers, as many and as large as were sent, NaN for null; none if the report is sealed.
        mac: proves that the holder of the key sent exactly this; empty if the report is sealed.
        sealed: the encrypted values, which prove the same; empty if the report is not sealed.
    """

    key: str
    stream: str
    step: int
    values: list[float]
    mac: str
    sealed: bytes


def parse_report(line: bytes) -> SensorReport | None:
    """The report in a line; None if the line is too long, not JSON, or has a field that is missing or of another type.

    NaN and infinity are not JSON. No error is raised, as its text would hold the line.
    """
    if len(line) > MAX_REPORT:
        return None
    try:
        message = orjson.loads(line)
    except ValueError:
        return None
    if type(message) is not dict:
        return None
    key, stream, step, values, mac, sealed = (message.get(name) for name in SensorReport._fields)
    if type(key) is not str or type(stream) is not str or type(step) is not int:
        return None
    if not _STREAM.fullmatch(stream) or not -(2**63) <= step < 2**63:
        return None
    if type(sealed) is str and values is None and mac is None:
        return SensorReport(key, stream, step, [], "", bytes.fromhex(sealed)) if _HEX.fullmatch(sealed) else None
    if type(values) is not list or type(mac) is not str or not mac.isascii() or sealed is not None:
        return None
    if not all(type(value) is float or type(value) is int for value in values):
        if not all(type(value) in _VALUE_TYPES for value in values):
            return None
        values = [math.nan if value is None else value for value in values]
    return SensorReport(key, stream, step, values, mac, b"")


def write_report(report: Mapping[str, Any]) -> bytes:
    """The line of a report, signed or sealed, padded with spaces so that its length shows no value and no sensor."""
    values = len(report["sealed"]) if "sealed" in report else _VALUE_WIDTH * len(report["values"])
    return orjson.dumps(report).ljust(min(_REST_WIDTH + values, MAX_REPORT))


def signed_bytes(key: tuple[int, int, int], stream: str, step: int, values: list[float]) -> bytes:
    """What the MAC of a report is over: two different reports have different bytes."""
    name = stream.encode()
    return _HEADER.pack(*key, step, len(name), name) + struct.pack(f">{len(values)}d", *values)


def pad_values(values: list[float]) -> bytes:
    """What is encrypted: the number of values and the values, padded so that fewer values are not shorter."""
    room = max(1, -(-len(values) // PADDED_TO)) * PADDED_TO
    return struct.pack(f">H{room}d", len(values), *values, *[0.0] * (room - len(values)))


def unpad_values(content: bytes) -> list[float] | None:
    """The values that `pad_values` padded, NaN for one that is not finite; None for bytes of another form."""
    room = (len(content) - 2) // 8
    if room < 1 or room % PADDED_TO or len(content) != 2 + 8 * room:
        return None
    number, *values = struct.unpack(f">H{room}d", content)
    if number > room:
        return None
    return values[:number] if all(map(math.isfinite, values)) else [_or_nan(value) for value in values[:number]]


def _or_nan(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def check_stream_name(name: str) -> str:
    """The name, if it fits into a URL and an MQTT topic."""
    if not _STREAM.fullmatch(name):
        raise ValueError(f"stream must be 1 to 64 letters, digits, dots, underscores or hyphens, got {name!r}")
    return name
