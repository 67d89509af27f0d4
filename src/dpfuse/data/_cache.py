"""Compact copies of files that are slow to read, each good for as long as its file keeps size and time of change."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpfuse.data._layouts import arrow
from dpfuse.data._rows import Rows

# Raised whenever the reader would make other rows of the same file.
READER_VERSION = 1


def folder() -> Path:
    """Where copies are kept unless the caller says otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpfuse"


def load(path: Path, cache: Path | None) -> tuple[Rows, dict[str, Any]] | None:
    """The rows and counts that were kept for this file, or None."""
    pa, copy = arrow(), _copy_of(path, cache)
    try:
        table = pa.feather.read_table(copy)
        kept = json.loads(table.schema.metadata[b"dpfuse"])
        if kept["file"] != _state_of(path):
            return None
        return Rows._make(table[name].to_numpy() for name in Rows._fields), kept["counts"]
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException):
        # Whatever is wrong with a copy, the file itself can be read.
        return None


def save(path: Path, cache: Path | None, rows: Rows, counts: dict[str, Any]) -> None:
    """Keep rows and counts for the next time; a folder that cannot be written to is left alone."""
    pa, copy = arrow(), _copy_of(path, cache)
    table = pa.table(rows._asdict()).replace_schema_metadata(
        {"dpfuse": json.dumps({"file": _state_of(path), "counts": counts})}
    )
    partial = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        pa.feather.write_feather(table, partial, compression="zstd")
        partial.replace(copy)
    except OSError:
        with suppress(OSError):
            partial.unlink()


def _copy_of(path: Path, cache: Path | None) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return (folder() if cache is None else cache) / f"{path.stem}-{name}.feather"


def _state_of(path: Path) -> list[int]:
    status = path.stat()
    return [READER_VERSION, status.st_size, status.st_mtime_ns]
