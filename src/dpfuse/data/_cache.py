"""Compact copies of text files. A copy is used while the file's size and time of change stay the same."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpfuse.data._layouts import arrow
from dpfuse.data._rows import Rows
from dpfuse.data.sites import Site

# Increased when the reader makes other rows from the same file.
READER_VERSION = 2


def folder() -> Path:
    """The default folder of the copies."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpfuse"


def load(path: Path, site: Site, cache: Path | None) -> tuple[Rows, dict[str, Any]] | None:
    """The rows and counts that were stored for this file and site, or None."""
    pa, copy = arrow(), _copy_of(path, site, cache)
    try:
        table = pa.feather.read_table(copy)
        stored = json.loads(table.schema.metadata[b"dpfuse"])
        if stored["file"] != _version_of(path):
            return None
        return Rows._make(table[name].to_numpy() for name in Rows._fields), stored["counts"]
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException):
        # Any fault of the copy: the file itself is read instead.
        return None


def save(path: Path, site: Site, cache: Path | None, rows: Rows, counts: dict[str, Any]) -> None:
    """Store rows and counts for the next time. If the folder cannot be written to, nothing is stored."""
    pa, copy = arrow(), _copy_of(path, site, cache)
    table = pa.table(rows._asdict()).replace_schema_metadata(
        {"dpfuse": json.dumps({"file": _version_of(path), "counts": counts})}
    )
    partial = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        pa.feather.write_feather(table, partial, compression="zstd")
        partial.replace(copy)
    except OSError:
        with suppress(OSError):
            partial.unlink()


def _copy_of(path: Path, site: Site, cache: Path | None) -> Path:
    what = f"{path.resolve()} {site.name} {site.direction}"
    name = hashlib.sha256(what.encode()).hexdigest()[:16]
    return (folder() if cache is None else cache) / f"{path.stem}-{name}.feather"


def _version_of(path: Path) -> list[int]:
    status = path.stat()
    return [READER_VERSION, status.st_size, status.st_mtime_ns]
