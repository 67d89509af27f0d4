"""Household meters in the layout of Low Carbon London: one row for each household and half hour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.data._layouts import READ_ERRORS, Advance, Wanted, arrow, batches, detect
from dpfuse.data._progress import progress_bar
from dpfuse.data._rules import BrokenBatch, Rule, find_fault, fits, to_numbers
from dpfuse.data.reading import Numbering, RecordingRead, SourceFile
from dpfuse.data.recording import folder_of
from dpfuse.data.table import TableRead, read_table
from dpfuse.errors import DatasetMissing, FileRefused

HALF_HOUR_S = 1800

_ENERGY = "kwh/hh_(per_half_hour)"
_COLUMNS = Wanted(key="lclid", needed=("lclid", "stdortou", "datetime", _ENERGY))
_RULE = Rule(0, 1000, False, "an energy in kWh from 0 to 1000, or Null")
_TIME_FORM = "%Y-%m-%d %H:%M:%S"
_NO_READING = ("null", "")
_TARIFFS = ("Std", "ToU")


def meters(
    directory: str | os.PathLike[str] | None = None,
    *,
    state: Literal["mean", "sum"] = "mean",
    interval_s: float = HALF_HOUR_S,
    start: date | str | None = None,
    stop: date | str | None = None,
    households: int | None = None,
    tariff: Literal["Std", "ToU"] | None = None,
    steps: int | None = None,
    progress: bool = False,
) -> RecordingRead:
    """The demand of a group of households, and each household's own.

    Args:
        directory: a CSV or Parquet file, or a folder of them, with the columns LCLid, stdorToU, DateTime and
            KWH/hh (per half hour). By default the environment variable DPFUSE_DATA names it; a subfolder `meters` is
            read alone.
        state: the mean demand of the households that report, or the sum.
        interval_s: time between steps, a multiple of 1800 s; a longer one takes means over its half hours.
        start: first day that is read.
        stop: day before which reading stops. Memory is taken for the rows between both.
        households: read no more households than this, those that come first in the files.
        tariff: read only households with the standard tariff (`Std`) or with times of use (`ToU`).
        steps: length of the runs; by default the one that keeps the most steps.
        progress: show a progress bar on stderr.

    Returns:
        State and measurement are in kW. A household without a reading is absent. Runs are cut where nobody has one.
    """
    _check.is_one_of("state", state, ("mean", "sum"))
    if interval_s < HALF_HOUR_S or interval_s % HALF_HOUR_S:
        raise ValueError(
            f"interval_s must be a multiple of {HALF_HOUR_S}, the time between two readings, got {interval_s}"
        )
    if tariff is not None:
        _check.is_one_of("tariff", tariff, _TARIFFS)
    group = _Group(first=_half_hour("start", start), last=_half_hour("stop", stop), most=households, tariff=tariff)
    paths = _find(folder_of(directory))
    files: list[SourceFile] = []
    rows: list[_Readings] = []
    with progress_bar(paths, progress) as begin:
        for path in paths:
            parts, counts = zip(*group.rows(path, begin(path)), strict=True)
            rows += parts
            files.append(SourceFile(path, sum(counts), sum(len(part.power) for part in parts)))
    if not sum(file.num_kept for file in files):
        raise DatasetMissing(f"no reading of this group in {', '.join(map(str, paths))}; choose other days or a tariff")
    made = _to_table_read(rows, state, interval_s, steps)
    assert made.trajectories.labels is not None
    labels = replace(made.trajectories.labels, sensor_names=group.number.names)
    return RecordingRead(replace(made.trajectories, labels=labels), made.summary, tuple(files))


def _to_table_read(rows: list[_Readings], state: str, interval_s: float, steps: int | None) -> TableRead:
    half_hour, household, power = (np.concatenate(column) for column in zip(*rows, strict=True))
    rows.clear()
    pa = arrow()
    columns = {
        "time": pa.array(half_hour.astype(np.int64) * HALF_HOUR_S, pa.timestamp("s")),
        "household": household,
        "power_kw": power,
    }
    return read_table(
        pa.table(columns),
        time="time",
        sensor="household",
        values="power_kw",
        state=f"{state}:power_kw",
        interval_s=interval_s,
        resample="mean" if interval_s > HALF_HOUR_S else None,
        steps=steps,
    )


class _Readings(NamedTuple):
    """12 bytes a row: half hours since 1970, the number of the household, and its demand in kW."""

    half_hour: NDArray[np.int32]
    household: NDArray[np.int32]
    power: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Which rows are read. `first` is included and `last` is not, in half hours since 1970."""

    first: int | None
    last: int | None
    most: int | None
    tariff: str | None
    number: Numbering = field(default_factory=Numbering)

    def rows(self, path: Path, advance: Advance) -> Iterator[tuple[_Readings, int]]:
        """The readings of the group in batches, and the number of rows of each batch."""
        layout = detect(path, _COLUMNS)
        if layout is None:
            raise FileRefused(f"{path}, line 1: the column LCLid is missing in the header")
        pa, num_read = arrow(), 0
        try:
            for batch in batches(path, layout, advance):
                yield self._to_readings(batch), len(batch["lclid"])
                num_read += len(batch["lclid"])
        except (BrokenBatch, pa.ArrowException, *READ_ERRORS):
            raise FileRefused(find_fault(path, layout, num_read, self._fault_in)) from None
        if not num_read:
            raise FileRefused(f"{path} has no rows; fetch it again")

    def _to_readings(self, batch: dict[str, Any]) -> _Readings:
        pa = arrow()
        pc = pa.compute
        text = pc.utf8_lower(pc.utf8_trim_whitespace(batch[_ENERGY].cast(pa.string()).fill_null("")))
        is_kept = pc.invert(pc.is_in(text, pa.array(_NO_READING)))
        if self.tariff is not None:
            is_kept = pc.and_(is_kept, pc.equal(pc.utf8_trim_whitespace(batch["stdortou"]), self.tariff))
        name, moment, text = (column.filter(is_kept) for column in (batch["lclid"], batch["datetime"], text))
        half_hour = _to_half_hours(moment)
        energy = to_numbers(text, _RULE)
        number = self.number.of_column(name)
        own = np.ones(len(number), bool)
        if self.first is not None:
            own &= half_hour >= self.first
        if self.last is not None:
            own &= half_hour < self.last
        if self.most is not None:
            own &= number < self.most
        # Energy in half an hour, in kWh, as a mean power in kW.
        return _Readings(
            half_hour[own].astype(np.int32), number[own].astype(np.int32), (2 * energy[own]).astype(np.float32)
        )

    def _fault_in(self, values: dict[str, str]) -> str | None:
        energy = values[_ENERGY].strip()
        if energy.lower() in (*_NO_READING, "none") or (self.tariff and values["stdortou"].strip() != self.tariff):
            return None
        try:
            _to_half_hours(arrow().array([values["datetime"]]))
        except (BrokenBatch, arrow().ArrowException):
            return "datetime must be a full or half hour, such as 2012-10-12 00:30:00"
        return None if fits(energy, _RULE) else f"{_ENERGY} must be {_RULE.text}"


def _to_half_hours(moments: Any) -> Integers:
    """Half hours since 1970. The files write fractions of a second, all of them 0."""
    pa = arrow()
    if pa.types.is_temporal(moments.type):
        seconds = moments.cast(pa.timestamp("s"))
    else:
        text = pa.compute.utf8_slice_codeunits(pa.compute.utf8_trim_whitespace(moments), 0, len("2012-10-12 00:30:00"))
        seconds = pa.compute.strptime(text, _TIME_FORM, "s")
    if seconds.null_count:
        raise BrokenBatch
    since: Integers = seconds.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if (since % HALF_HOUR_S).any():
        raise BrokenBatch
    half_hours: Integers = since // HALF_HOUR_S
    return half_hours


def _half_hour(name: str, day: date | str | None) -> int | None:
    if day is None:
        return None
    try:
        chosen = day if isinstance(day, date) else date.fromisoformat(day)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a day such as 2013-01-31, got {day!r}") from None
    return (chosen - date(1970, 1, 1)).days * 48


def _find(where: Path) -> list[Path]:
    if not where.exists():
        raise DatasetMissing(f"no folder or file at {where}; docs/recordings.md says where recordings are published")
    if where.is_file():
        return [where]
    folder = where / "meters" if (where / "meters").is_dir() else where
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".csv", ".parquet"))
    if not paths:
        raise DatasetMissing(f"no CSV or Parquet file in {folder}; docs/recordings.md says where they are published")
    return paths
