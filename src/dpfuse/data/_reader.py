"""The rows of files: numbers are checked, units converted, and repeated rows counted once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.data import _cache
from dpfuse.data._layouts import NEEDED, SITE, Advance, Layout, arrow, batches, detect, records
from dpfuse.data._rows import Rows, concatenate, periods_of
from dpfuse.errors import DatasetMissing, FileRefused

SITES = ("us-101", "i-80", "lankershim", "peachtree")
_OURS = SITES[0]
_FOOT_M = 0.3048


class _Rule(NamedTuple):
    """What the numbers of a column must be."""

    lowest: float
    highest: float
    is_whole: bool
    text: str


# Wide limits: they find columns in a wrong order and files of another day, and accept unusual driving.
_RULES = {
    "vehicle_id": _Rule(0, 999_999, True, "a whole number from 0 to 999999"),
    "frame_id": _Rule(0, 2**31 - 1, True, "a whole number of 0 or more"),
    # 07:30 to 09:00 on the road.
    "global_time": _Rule(1_118_845_800_000, 1_118_851_200_000, True, "a time in ms on the morning of 15 June 2005"),
    "local_y": _Rule(-1_000, 10_000, False, "a position in feet from -1000 to 10000"),
    "v_vel": _Rule(0, 300, False, "a speed in feet per second from 0 to 300"),
    "lane_id": _Rule(0, 99, True, "a lane from 0 to 99"),
}


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """What was found in a file.

    Attributes:
        path, layout: the file and its kind of layout.
        num_rows: rows of US-101, including repeated ones.
        num_elsewhere: rows of other sites, which were left out.
        num_duplicates: rows left out because the file has an earlier row of the same vehicle and time.
        num_conflicts: duplicates that differ from the earlier row in position, speed or lane.
        from_cache: whether a compact copy was read instead.
    """

    path: Path
    layout: str
    num_rows: int
    num_elsewhere: int
    num_duplicates: int
    num_conflicts: int
    from_cache: bool = False


class _Broken(Exception):
    """A batch holds a value that breaks a rule."""


def find_files(where: Path) -> tuple[list[tuple[Path, Layout]], list[Path]]:
    """The files of vehicle trajectories in a folder, or in its subfolder `us101`, and its other files."""
    if not where.exists():
        raise DatasetMissing(f"no folder or file at {where}; docs/data.md says where recordings are published")
    folder = where / "us101" if (where / "us101").is_dir() else where
    paths = [where] if where.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    layouts = [(path, detect(path)) for path in paths]
    found = [(path, layout) for path, layout in layouts if layout]
    if not found:
        raise DatasetMissing(
            f"no vehicle trajectories in {folder}: they are .txt, .csv or .parquet files with a column Vehicle_ID, or "
            f"with 18 columns and no header; docs/data.md says where they are published"
        )
    return found, [path for path, layout in layouts if not layout]


def read_files(
    found: Sequence[tuple[Path, Layout]], cache: Path | None, progress: bool
) -> tuple[list[FileRead], list[Rows]]:
    """What was found in each file, and its rows."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("reading", total=sum(path.stat().st_size for path, _ in found))
        read = []
        for path, layout in found:
            bar.update(task, description=path.name)
            read.append(read_file(path, layout, cache, lambda count: bar.advance(task, count)))
    files, rows = zip(*read, strict=True)
    if not sum(len(each.vehicle) for each in rows):
        raise DatasetMissing(f"no row of {_OURS} in {', '.join(str(path) for path, _ in found)}")
    return list(files), list(rows)


def read_file(path: Path, layout: Layout, cache: Path | None, advance: Advance) -> tuple[FileRead, Rows]:
    """What was found in a file, and its rows of US-101, each vehicle and time once."""
    stored = _cache.load(path, cache) if layout.kind != "parquet" else None
    if stored:
        advance(path.stat().st_size)
        return FileRead(path=path, layout=layout.kind, from_cache=True, **stored[1]), stored[0]
    parts: list[Rows] = []
    num_read = num_elsewhere = 0
    pa = arrow()
    try:
        for batch in batches(path, layout, advance):
            part = _to_rows(batch)
            parts.append(part)
            num_read += len(batch["vehicle_id"])
            num_elsewhere += len(batch["vehicle_id"]) - len(part.vehicle)
    except (_Broken, pa.ArrowException, OSError) as error:
        raise FileRefused(_find_fault(path, layout, num_read, error)) from None
    if not parts:
        raise FileRefused(f"{path} has no rows; fetch it again")
    periods, num_duplicates, num_conflicts = zip(*map(_once_each, periods_of(concatenate(parts))), strict=True)
    rows = concatenate(list(periods))
    counts: dict[str, Any] = {
        "num_rows": num_read - num_elsewhere,
        "num_elsewhere": num_elsewhere,
        "num_duplicates": sum(num_duplicates),
        "num_conflicts": sum(num_conflicts),
    }
    if layout.kind != "parquet":
        _cache.save(path, cache, rows, counts)
    return FileRead(path=path, layout=layout.kind, **counts), rows


def _to_rows(batch: dict[str, Any]) -> Rows:
    """The rows of US-101 in a batch."""
    pa = arrow()
    if SITE in batch:
        site = pa.compute.utf8_lower(pa.compute.utf8_trim_whitespace(batch[SITE].cast(pa.string())))
        if not pa.compute.all(pa.compute.is_in(site, pa.array(SITES)), min_count=0).as_py():
            raise _Broken
        ours = pa.compute.equal(site, _OURS)
        batch = {name: batch[name].filter(ours) for name in NEEDED}
    vehicle, frame, time_ms, position, speed, lane = (_to_numbers(batch[name], name) for name in NEEDED)
    return Rows(
        vehicle.astype(np.int32),
        frame.astype(np.int32),
        time_ms.astype(np.int64),
        lane.astype(np.int8),
        (position * _FOOT_M).astype(np.float32),
        (speed * _FOOT_M).astype(np.float32),
    )


def _to_numbers(column: Any, name: str) -> Floats:
    """The column as numbers, checked by its rule. Times in ms are exact in float64."""
    pa, rule = arrow(), _RULES[name]
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            numbers = column.cast(pa.float64())
        except pa.ArrowInvalid:
            plain = pa.compute.replace_substring(pa.compute.utf8_trim_whitespace(column), ",", "")
            numbers = plain.cast(pa.float64())
    else:
        numbers = column.cast(pa.float64())
    if numbers.null_count:
        raise _Broken
    values: Floats = numbers.to_numpy(zero_copy_only=False)
    # NaN is out of limits too.
    fits = (values >= rule.lowest) & (values <= rule.highest)
    if not fits.all() or (rule.is_whole and (values != np.floor(values)).any()):
        raise _Broken
    return values


def _once_each(rows: Rows) -> tuple[Rows, int, int]:
    """Rows without repeated vehicles and times, the number of rows removed, and how many of them disagreed."""
    key = (rows.vehicle.astype(np.int64) << 40) + (rows.time_ms - int(_RULES["global_time"].lowest))
    if (np.diff(key) > 0).all():
        return rows, 0, 0
    # The sort is stable: of equal rows the first stays.
    order = np.argsort(key, kind="stable")
    again = 1 + np.flatnonzero(np.diff(key[order]) == 0)
    if not len(again):
        return rows, 0, 0
    is_first = np.ones(len(order), bool)
    is_first[again] = False
    first = order[np.maximum.accumulate(np.where(is_first, np.arange(len(order)), 0))[again]]
    gone = order[again]
    values = rows.lane, rows.position, rows.speed
    conflicts = np.logical_or.reduce([column[gone] != column[first] for column in values])
    kept = np.ones(len(order), bool)
    kept[gone] = False
    return rows.take(kept), len(gone), int(conflicts.sum())


def _find_fault(path: Path, layout: Layout, num_good: int, error: Exception) -> str:
    """The error message of a file that cannot be read: its first wrong line after `num_good` good rows."""
    with suppress(arrow().ArrowException, OSError):
        for where, values in islice(records(path, layout), num_good, None):
            if fault := values if isinstance(values, str) else _fault_in(values):
                return f"{path}, {where}: {fault}"
    return f"{path} cannot be read: {error}"


def _fault_in(values: dict[str, str]) -> str | None:
    """Which value breaks a rule, which rule, and the value; None if all are good."""
    if SITE in values and (site := values[SITE].strip().lower()) != _OURS:
        return None if site in SITES else f"{SITE} must be one of {', '.join(SITES)}, got {values[SITE]!r}"
    for name, rule in _RULES.items():
        try:
            number = float(values[name].replace(",", ""))
        except ValueError:
            number = math.nan
        if not rule.lowest <= number <= rule.highest or (rule.is_whole and number != math.floor(number)):
            return f"{name} must be {rule.text}, got {values[name]!r}"
    return None
