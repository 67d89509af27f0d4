"""Rows of vehicles, read as a stream, become `Trajectories`: what the readers of SUMO and highD share.

A reader yields batches of rows in SI units. Here instants are chosen, and rows off the section are left out at once, so
that memory is bounded by what is kept; the rules of `data/table.py` do the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats, Integers
from dpfuse.data._layouts import Advance, arrow
from dpfuse.data._progress import progress_bar
from dpfuse.data._rules import BrokenBatch
from dpfuse.data.recording import check_section
from dpfuse.data.table import TableRead, read_table
from dpfuse.data.table_summary import TableSummary
from dpfuse.errors import DatasetMissing, FileRefused
from dpfuse.trajectories import Trajectories

# Clocks are rounded when they are written: this share of an interval before a step counts as on it.
_TOLERANCE = 1e-3


class SourceFile(NamedTuple):
    """A file that was read, its rows, and how many of them are part of the recording."""

    path: Path
    num_rows: int
    num_kept: int


class RecordingRead(NamedTuple):
    """What a reader made of a published recording.

    Attributes:
        trajectories: all sensors report; `Trajectories.sample_sensors` draws a share of them.
        summary: what was found, counted.
        files: what was read.
    """

    trajectories: Trajectories
    summary: TableSummary
    files: tuple[SourceFile, ...]


class Instants:
    """Chooses the instants of one run: for each step the first one at or after it.

    Instants are given in order of time. Without an interval each is chosen.
    """

    def __init__(self, interval_s: float | None) -> None:
        self._interval_s = None if interval_s is None else _check.is_positive("interval_s", interval_s)
        self._start: float | None = None
        self._last = -math.inf
        self._chosen: float | None = None
        self._step = -1
        self._spacing_s = math.inf

    def choose(self, time_s: float) -> float | None:
        """The time of the step for which this instant is chosen, or None; the same again for the same instant."""
        if time_s == self._last:
            return self._chosen
        if time_s < self._last:
            raise ValueError("times must not go back")
        if self._start is None:
            self._start = time_s
        else:
            self._spacing_s = min(self._spacing_s, time_s - self._last)
        self._last = time_s
        if self._interval_s is None:
            self._chosen = time_s
            return self._chosen
        step = math.floor((time_s - self._start) / self._interval_s + _TOLERANCE)
        self._chosen = self._start + step * self._interval_s if step > self._step else None
        self._step = step
        return self._chosen

    def check(self, path: Path) -> None:
        """Refuse an interval that is shorter than the time between two instants."""
        if self._interval_s and math.isfinite(self._spacing_s) and self._interval_s < self._spacing_s * (1 - 1e-6):
            raise ValueError(
                f"interval_s must be at least {self._spacing_s:g}, the time between two instants of {path}, got "
                f"{self._interval_s:g}"
            )


class VehicleRows(NamedTuple):
    """Rows of chosen instants in SI units.

    Attributes:
        instants: the chosen instants of this batch, also those at which no vehicle was there.
        time, vehicle, position, speed: of each row; `vehicle` is a number.
        num_rows: rows of the file that were looked at for this batch.
    """

    instants: Floats
    time: Floats
    vehicle: Integers
    position: Floats
    speed: Floats
    num_rows: int


class Numbering:
    """Numbers for ids of text, in the order in which they are first seen."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self._known.setdefault(name, len(self._known))

    def of_column(self, column: Any) -> Integers:
        """The numbers of an Arrow column of ids; blanks around an id do not count."""
        coded = column.cast(arrow().string()).dictionary_encode()
        if coded.null_count:
            raise BrokenBatch
        numbers = np.array([self(name.strip()) for name in coded.dictionary.to_pylist()], np.int64)
        of_rows: Integers = numbers[coded.indices.to_numpy(zero_copy_only=False)]
        return of_rows

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._known)


@dataclass(frozen=True, kw_only=True)
class RoadSection:
    """What is read of a road.

    Attributes:
        section: start (included) and end (excluded) in m.
        interval_s: time between steps; None for every instant.
        steps: length of the runs that are made; None for the one that keeps the most steps.
        progress: show a progress bar on stderr.
    """

    section: tuple[float, float]
    interval_s: float | None
    steps: int | None
    progress: bool

    def __post_init__(self) -> None:
        check_section(self.section)


Open = Callable[[Path, Advance], Iterator[VehicleRows]]


def read_vehicles(
    road: RoadSection, paths: Sequence[Path], open_file: Open, names: Numbering | None = None
) -> RecordingRead:
    """The recording in these files, each a run: the density of the section, and each vehicle's position and speed."""
    files: list[SourceFile] = []
    parts: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    with progress_bar(paths, road.progress) as begin:
        for number, path in enumerate(paths):
            own, instants, num_rows = _collect(road, number, open_file(path, begin(path)))
            if not len(instants):
                raise FileRefused(f"{path} has no rows; write or fetch it again")
            files.append(SourceFile(path, num_rows, len(own["time"])))
            held.append(_densities(road, number, own, instants))
            parts.append(own)
    if not sum(file.num_kept for file in files):
        start, end = road.section
        raise DatasetMissing(
            f"no vehicle between {start:g} and {end:g} m in {', '.join(map(str, paths))}; choose another section"
        )
    read = _to_table_read(road, parts, held)
    labels = read.trajectories.labels
    assert labels is not None
    labels = replace(
        labels,
        sensor_names=names.names if names else None,
        run_names=tuple(path.name for path in paths) if len(paths) > 1 else None,
    )
    return RecordingRead(replace(read.trajectories, labels=labels), read.summary, tuple(files))


def _collect(road: RoadSection, number: int, batches: Iterator[VehicleRows]) -> tuple[dict[str, Any], Floats, int]:
    """The rows of a run on the section, its instants, and the number of rows of its file."""
    start, end = road.section
    parts, instants, num_rows = [], [np.zeros(0)], 0
    for batch in batches:
        there = (batch.position >= start) & (batch.position < end)
        columns = {
            "run": np.full(int(there.sum()), number, np.int32),
            "time": batch.time[there],
            "vehicle": batch.vehicle[there].astype(np.int64),
            "position_m": (batch.position[there] - start).astype(np.float32),
            "speed_mps": batch.speed[there].astype(np.float32),
        }
        parts.append(columns)
        instants.append(batch.instants)
        num_rows += batch.num_rows
    return _concatenate(parts) if parts else {"time": []}, np.unique(np.concatenate(instants)), num_rows


def _densities(road: RoadSection, number: int, rows: dict[str, Any], instants: Floats) -> dict[str, Any]:
    """The density at each instant of a run."""
    length_km = (road.section[1] - road.section[0]) / 1000
    return {
        "run": np.full(len(instants), number, np.int32),
        "time": instants,
        "density_per_km": _count(rows["time"], rows["vehicle"], instants) / length_km,
    }


def _concatenate(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of all parts, which are given up column by column: memory holds the rows little more than once."""
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}


def _to_table_read(road: RoadSection, parts: list[dict[str, Any]], held: list[dict[str, Any]]) -> TableRead:
    pa, has_runs = arrow(), len(parts) > 1
    return read_table(
        pa.table(_concatenate(parts)),
        time="time",
        sensor="vehicle",
        values=("position_m", "speed_mps"),
        state="density_per_km",
        run="run" if has_runs else None,
        states=pa.table(_concatenate(held)),
        interval_s=road.interval_s,
        steps=road.steps,
    )


def _count(time: Floats, vehicle: Integers, instants: Floats) -> Floats:
    """The number of different vehicles at each instant."""
    base = int(vehicle.max(initial=0)) + 1
    pairs = np.unique(np.searchsorted(instants, time) * base + vehicle)
    return np.bincount(pairs // base, minlength=len(instants)).astype(np.float64)
