"""Logs of the long-running commands: one line a record, as text or JSON, with time, level and fields.

A record holds a constant sentence and public facts. Nothing that was sent, no account and no number of sensors may be
passed to a logger: `tests/wire/test_fuzz.py` looks for that.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
_chosen: dict[str, str] = {"log-format": "text", "log-level": "warning"}


def set_up_logs(log_format: LogFormat = "text", log_level: LogLevel = "warning") -> None:
    """Write records of that level and above to stderr; in place of what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
    # A library may put a value that was sent into its own messages, below warnings.
    for name in ("httpx", "httpcore", "uvicorn", "jax"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(log_level.upper())))
    _chosen.update({"log-format": log_format, "log-level": log_level})


def print_error(text: str) -> None:
    """Write why the command ends to stderr: one line, and one JSON object where the log has these."""
    if _chosen["log-format"] == "json":
        logging.getLogger("dpfuse").error("%s", text)
    else:
        print(f"dpfuse: {text}", file=sys.stderr)


def log_options() -> list[str]:
    """The options with which another command of dpfuse logs as this one does."""
    return [f"--{name}={value}" for name, value in _chosen.items()]


def fields(**named: Any) -> dict[str, dict[str, Any]]:
    """Fields of a record, for the argument `extra` of a logger; all of them public."""
    return {"fields": named}


class TextLines(logging.Formatter):
    """`2026-11-18T16:20:05.123Z WARNING dpfuse.wire.serve: the sentence step=17`."""

    def format(self, record: logging.LogRecord) -> str:
        shown = "".join(f" {name}={_word(value)}" for name, value in _fields_of(record).items())
        return f"{_time(record)} {record.levelname} {record.name}: {_sentence(record)}{shown}"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        head = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _sentence(record),
        }
        return json.dumps(head | {k: v for k, v in _fields_of(record).items() if k not in head}, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _sentence(record: logging.LogRecord) -> str:
    """The message on one line; of an exception its type alone, since its text may hold a private value."""
    kind = record.exc_info[0] if record.exc_info else None
    text = record.getMessage() + (f" ({kind.__name__})" if kind else "")
    return " ".join(text.splitlines())


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    found = getattr(record, "fields", None)
    shard = os.environ.get("DPFUSE_SHARD")  # set by the fleet that started this process
    return ({"shard": shard} if shard else {}) | (found if isinstance(found, dict) else {})


def _word(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(character in text for character in ' "=\n') else text
