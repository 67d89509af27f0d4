"""Drone recordings in the layout of highD: tracks, tracksMeta and recordingMeta as CSV, three files a recording."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.data._layouts import READ_ERRORS, Advance, Wanted, arrow, batches, detect
from dpfuse.data._rules import BrokenBatch, Rule, fault_in, find_fault, to_numbers
from dpfuse.data.reading import Instants, RecordingRead, RoadSection, VehicleRows, read_vehicles
from dpfuse.data.recording import folder_of
from dpfuse.errors import DatasetMissing, FileRefused

SECTION_M = (0.0, 400.0)

# The column drivingDirection.
_DIRECTIONS = {"left": 1, "right": 2}
_FRAME = Rule(1, 2**31 - 1, True, "a whole number of 1 or more")
_TRACKS = {
    "frame": _FRAME,
    "id": _FRAME,
    "x": Rule(-1000, 10_000, False, "a position in m from -1000 to 10000"),
    "width": Rule(0, 100, False, "a length in m from 0 to 100"),
    "xvelocity": Rule(-150, 150, False, "a speed in m/s from -150 to 150"),
}
_VEHICLES = {"id": _FRAME, "finalframe": _FRAME, "drivingdirection": Rule(1, 2, True, "1 or 2")}
_RECORDING = {"framerate": Rule(0.1, 10_000, False, "a rate in Hz")}


def highd(
    directory: str | os.PathLike[str] | None = None,
    *,
    section: tuple[float, float] = SECTION_M,
    interval_s: float | None = 0.2,
    direction: Literal["left", "right"] = "right",
    steps: int | None = None,
    progress: bool = False,
) -> RecordingRead:
    """The traffic on a section of a highway, recorded by a drone, in one direction; each recording is a run.

    Args:
        directory: a folder with files such as 01_tracks.csv, 01_tracksMeta.csv and 01_recordingMeta.csv, or one file of
            tracks. By default the environment variable DPFUSE_DATA names it; a subfolder `highd` is read alone.
        section: start (included) and end (excluded) in m along the picture. The front of a vehicle counts.
        interval_s: time between steps; None for that of the files. A step takes the first frame at or after it.
        direction: the way in which vehicles drive in the picture.
        steps: length of the runs; by default the one that keeps the most steps.
        progress: show a progress bar on stderr.

    Returns:
        `state` is the density in vehicles per km, all lanes of the direction together; measurements are the position on
        the section in m and the speed in m/s.
    """
    _check.is_one_of("direction", direction, tuple(_DIRECTIONS))
    road = RoadSection(section=section, interval_s=interval_s, steps=steps, progress=progress)
    source = _HighD(interval_s=interval_s, direction=_DIRECTIONS[direction])
    return read_vehicles(road, _find(folder_of(directory)), source.rows)


def _find(where: Path) -> list[Path]:
    if not where.exists():
        raise DatasetMissing(f"no folder or file at {where}; docs/recordings.md says where recordings are published")
    if where.is_file():
        return [where]
    folder = where / "highd" if (where / "highd").is_dir() else where
    paths = sorted(folder.glob("*_tracks.csv"))
    if not paths:
        raise DatasetMissing(f"no file *_tracks.csv in {folder}; docs/recordings.md says where they are published")
    return paths


@dataclass(frozen=True, kw_only=True)
class _HighD:
    """How the files of a recording are read."""

    interval_s: float | None
    direction: int

    def rows(self, path: Path, advance: Advance) -> Iterator[VehicleRows]:
        """The rows of a file of tracks. Files beside it have the rate of the frames and the ways of the vehicles."""
        rate = _whole(_beside(path, "recordingMeta"), _RECORDING)["framerate"][0]
        vehicles = _whole(_beside(path, "tracksMeta"), _VEHICLES)
        goes = np.zeros(int(vehicles["id"].max()) + 1, np.int8)
        goes[vehicles["id"].astype(np.int64)] = vehicles["drivingdirection"].astype(np.int8)
        chosen = self._choose(path, int(vehicles["finalframe"].max()), float(rate))
        instants = chosen[~np.isnan(chosen)]
        for batch in _columns(path, _TRACKS, advance):
            frame, vehicle = batch["frame"].astype(np.int64), batch["id"].astype(np.int64)
            if vehicle.max(initial=0) >= len(goes) or frame.max(initial=0) >= len(chosen):
                raise FileRefused(f"{_beside(path, 'tracksMeta')} must name every vehicle of {path}; fetch both again")
            kept = ~np.isnan(chosen[frame]) & (goes[vehicle] == self.direction)
            # x is the left side of the vehicle in the picture.
            front = batch["x"] + (batch["width"] if self.direction == _DIRECTIONS["right"] else 0)
            speed = np.abs(batch["xvelocity"])
            yield VehicleRows(instants, chosen[frame[kept]], vehicle[kept], front[kept], speed[kept], len(frame))

    def _choose(self, path: Path, num_frames: int, rate: float) -> Floats:
        """The time of the step of each frame, by its number; NaN where it has none. The first frame is 1."""
        instants = Instants(self.interval_s)
        chosen = np.full(num_frames + 1, np.nan)
        for frame in range(1, num_frames + 1):
            if (time := instants.choose((frame - 1) / rate)) is not None:
                chosen[frame] = time
        instants.check(path)
        return chosen


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(path.name.replace("_tracks.", f"_{kind}."))


def _columns(path: Path, rules: dict[str, Rule], advance: Advance) -> Iterator[dict[str, Floats]]:
    """Batches of columns, checked by these rules."""
    if not path.is_file():
        raise DatasetMissing(f"no file at {path}; each recording has three: tracks, tracksMeta and recordingMeta")
    first = next(iter(rules))
    layout = detect(path, Wanted(key=first, needed=tuple(rules)))
    if layout is None:
        raise FileRefused(f"{path}, line 1: the column {first} is missing in the header")
    pa, num_read = arrow(), 0
    try:
        for batch in batches(path, layout, advance):
            yield {name: to_numbers(batch[name], rule) for name, rule in rules.items()}
            num_read += len(batch[first])
    except (BrokenBatch, pa.ArrowException, *READ_ERRORS):
        raise FileRefused(find_fault(path, layout, num_read, lambda row: fault_in(row, rules))) from None


def _whole(path: Path, rules: dict[str, Rule]) -> dict[str, Any]:
    parts = list(_columns(path, rules, lambda _: None))
    if not sum(len(part[name]) for part in parts for name in rules):
        raise FileRefused(f"{path} has no rows; fetch it again")
    return {name: np.concatenate([part[name] for part in parts]) for name in rules}
