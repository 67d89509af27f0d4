"""The rows of files: numbers are checked, units converted, and repeated rows counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse.data import _cache
from dpfuse.data._layouts import READ_ERRORS, Advance, Layout, Wanted, arrow, batches, detect
from dpfuse.data._progress import progress_bar
from dpfuse.data._rows import TICK_MS, Rows, concatenate, periods_of
from dpfuse.data._rules import BrokenBatch, Rule, fault_in, find_fault, to_numbers
from dpfuse.data.sites import SITES, Site
from dpfuse.errors import DatasetMissing, FileRefused

_FOOT_M = 0.3048
_NEEDED = ("vehicle_id", "frame_id", "global_time", "local_y", "v_vel", "lane_id")
_PLACE, _DIRECTION = "location", "direction"
# The oldest releases have no header. Those of streets have six columns more.
_ZONES = ("o_zone", "d_zone", "int_id", "section_id", "direction", "movement")
_TO_LANE = (
    *("vehicle_id", "frame_id", "total_frames", "global_time", "local_x", "local_y", "global_x", "global_y"),
    *("v_length", "v_width", "v_class", "v_vel", "v_acc", "lane_id"),
)
_AFTER = ("preceding", "following", "space_headway", "time_headway")
NGSIM = Wanted(
    key="vehicle_id",
    needed=_NEEDED,
    optional=(_PLACE, _DIRECTION),
    headerless=((*_TO_LANE, *_AFTER), (*_TO_LANE, *_ZONES, *_AFTER)),
)


@dataclass(frozen=True, kw_only=True)
class FileRead:
    """What was found in a file.

    Attributes:
        path, layout: the file and its kind of layout.
        num_rows: rows of the site, including repeated ones.
        num_elsewhere: rows of other sites, or of the other direction of a street, which were left out.
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


def find_files(where: Path, site: Site) -> tuple[list[tuple[Path, Layout]], list[Path]]:
    """The files of vehicle trajectories in a folder, or in its subfolder of the site, and its other files."""
    if not where.exists():
        raise DatasetMissing(f"no folder or file at {where}; docs/data.md says where recordings are published")
    folder = where / site.folder if (where / site.folder).is_dir() else where
    paths = [where] if where.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    layouts = [(path, detect(path, NGSIM)) for path in paths]
    found = [(path, layout) for path, layout in layouts if layout]
    if not found:
        raise DatasetMissing(
            f"no vehicle trajectories in {folder}: they are .txt, .csv or .parquet files with a column Vehicle_ID, or "
            f"with 18 or 24 columns and no header; docs/data.md says where they are published"
        )
    return found, [path for path, layout in layouts if not layout]


def read_files(
    found: Sequence[tuple[Path, Layout]], site: Site, cache: Path | None, progress: bool
) -> tuple[list[FileRead], list[Rows]]:
    """What was found in each file, and its rows."""
    with progress_bar([path for path, _ in found], progress) as begin:
        read = [read_file(path, layout, site, cache, begin(path)) for path, layout in found]
    files, rows = zip(*read, strict=True)
    if not sum(len(each.vehicle) for each in rows):
        raise DatasetMissing(f"no row of {site.name} in {', '.join(str(path) for path, _ in found)}")
    return list(files), list(rows)


def read_file(path: Path, layout: Layout, site: Site, cache: Path | None, advance: Advance) -> tuple[FileRead, Rows]:
    """What was found in a file, and its rows of the site, each vehicle and time once."""
    if site.direction and _DIRECTION not in layout.columns:
        raise FileRefused(f"{path}, line 1: the column {_DIRECTION} is missing; {site.name} has traffic both ways")
    stored = _cache.load(path, site, cache) if layout.kind != "parquet" else None
    if stored:
        advance(path.stat().st_size)
        return FileRead(path=path, layout=layout.kind, from_cache=True, **stored[1]), stored[0]
    parts: list[Rows] = []
    num_read = num_elsewhere = 0
    pa, rules = arrow(), _rules(site)
    try:
        for batch in batches(path, layout, advance):
            part = _to_rows(batch, site, rules)
            parts.append(part)
            num_read += len(batch["vehicle_id"])
            num_elsewhere += len(batch["vehicle_id"]) - len(part.vehicle)
    except (BrokenBatch, pa.ArrowException, *READ_ERRORS):
        raise FileRefused(find_fault(path, layout, num_read, lambda row: _fault_in(row, site, rules))) from None
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
        _cache.save(path, site, cache, rows, counts)
    return FileRead(path=path, layout=layout.kind, **counts), rows


def _rules(site: Site) -> dict[str, Rule]:
    """Wide limits: they find columns in a wrong order and files of another day, and accept unusual driving."""
    return {
        "vehicle_id": Rule(0, 999_999, True, "a whole number from 0 to 999999"),
        "frame_id": Rule(0, 2**31 - 1, True, "a whole number of 0 or more"),
        "global_time": Rule(site.earliest, site.latest, True, f"a time in ms on {site.day}"),
        "local_y": Rule(-1_000, 10_000, False, "a position in feet from -1000 to 10000"),
        "v_vel": Rule(0, 300, False, "a speed in feet per second from 0 to 300"),
        "lane_id": Rule(0, 99, True, "a lane from 0 to 99"),
    }


# The column Direction of streets: east, north, west, south, or 0 where there is none.
_DIRECTION_RULE = Rule(0, 4, True, "a direction from 0 to 4")


def _to_rows(batch: dict[str, Any], site: Site, rules: dict[str, Rule]) -> Rows:
    """The rows of the site in a batch."""
    pa = arrow()
    if _PLACE in batch:
        place = pa.compute.utf8_lower(pa.compute.utf8_trim_whitespace(batch[_PLACE].cast(pa.string())))
        if not pa.compute.all(pa.compute.is_in(place, pa.array(list(SITES))), min_count=0).as_py():
            raise BrokenBatch
        ours = pa.compute.equal(place, site.name)
        batch = {name: column.filter(ours) for name, column in batch.items()}
    vehicle, frame, time_ms, position, speed, lane = (to_numbers(batch[name], rules[name]) for name in _NEEDED)
    if site.has_short_clock:
        time_ms = 1000 * (time_ms - TICK_MS * frame) + TICK_MS * frame
    rows = Rows(
        vehicle.astype(np.int32),
        frame.astype(np.int32),
        time_ms.astype(np.int64),
        lane.astype(np.int8),
        (position * _FOOT_M).astype(np.float32),
        (speed * _FOOT_M).astype(np.float32),
    )
    if site.direction is None:
        return rows
    return rows.take(to_numbers(batch[_DIRECTION], _DIRECTION_RULE) == site.direction_code)


def _once_each(rows: Rows) -> tuple[Rows, int, int]:
    """Rows without repeated vehicles and times, the number of rows removed, and how many of them disagreed."""
    key = (rows.vehicle.astype(np.int64) << 40) + (rows.time_ms - rows.time_ms.min(initial=0))
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


def _fault_in(values: dict[str, str], site: Site, rules: dict[str, Rule]) -> str | None:
    """Which column of a row breaks its rule; None if all are good."""
    if _PLACE in values and (place := values[_PLACE].strip().lower()) != site.name:
        return None if place in SITES else f"{_PLACE} must be one of {', '.join(SITES)}"
    return fault_in(values, rules | ({_DIRECTION: _DIRECTION_RULE} if site.direction else {}))
