"""The recording of US Highway 101, and the `Trajectories` of a section of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse._slots import assign_slots
from dpfuse.data._join import join
from dpfuse.data._reader import FileRead, find_files, read_files
from dpfuse.errors import DatasetMissing
from dpfuse.types import NOBODY, Trajectories

SECTION_M = (120.0, 520.0)
MAIN_LANES = (1, 5)

# Periods of 15 minutes, in tenths of a second, and the time from a full hour to the next start: 07:50, 08:05, ...
PERIOD_TICKS, PERIOD_OFFSET_TICKS = 9000, 3000

_TICK_S = 0.1
_PACIFIC = timedelta(hours=-7)  # daylight saving time, in June
_LONGEST_GAP_TICKS = 10


@dataclass(frozen=True, eq=False)
class Recording:
    """Every sighting of every vehicle, one entry for each vehicle and tenth of a second, in any order.

    Attributes:
        vehicle: ids, unique over all files: the published number plus 1,000,000 for the first period, 2,000,000 for
            the second, and so on. A vehicle in two overlapping periods has the id of the earlier one.
        tick: time in tenths of a second since 1970.
        lane: 1 to 5 are the main lanes, counted from the median, 6 the auxiliary lane, 7 the on-ramp, 8 the off-ramp.
        position: of the front, in m from the start of the recorded stretch.
        speed: in m/s.
        files: what was found in each file.
        passed_over: files in the folder that hold no vehicle trajectories.
        num_seen_twice: vehicles in two overlapping periods. Each is counted once.
    """

    vehicle: Integers
    tick: Integers
    lane: NDArray[np.int8]
    position: Floats32
    speed: Floats32
    files: tuple[FileRead, ...]
    passed_over: tuple[Path, ...] = ()
    num_seen_twice: int = 0

    @property
    def num_vehicles(self) -> int:
        return len(np.unique(self.vehicle))

    @property
    def duration_s(self) -> float:
        return float(self.tick.max() - self.tick.min()) * _TICK_S

    def trajectories(self, section: tuple[float, float] = SECTION_M, interval_s: float = 0.2) -> Trajectories:
        """One run: the density of a section, and the position and speed of every vehicle on it.

        The run covers the time in which every vehicle on the section was tracked, see `seen_in_full`.

        Args:
            section: start (included) and end (excluded) in m.
            interval_s: time between steps, a multiple of 0.1 s.

        Returns:
            `state` (1, K, 1) is the density in vehicles per km, lanes 1 to 5 together. `measurements` (1, K, m, 2) are
            the position in m from the start of the section and the speed in m/s. A vehicle that is not seen at a step,
            or is on another lane, is absent and not counted.
        """
        start, end = _check_section(section)
        every = round(_check.is_positive("interval_s", interval_s) / _TICK_S)
        if every < 1 or abs(every * _TICK_S - interval_s) > 1e-9 * every:
            raise ValueError(f"interval_s must be a multiple of {_TICK_S}, got {interval_s}")
        opens, closes = self.seen_in_full(section)
        seen = self.on_main_lanes & (self.position >= start) & (self.position < end)
        seen &= (self.tick >= opens) & (self.tick <= closes) & ((self.tick - opens) % every == 0)
        step = (self.tick[seen] - opens) // every
        num_steps = int(closes - opens) // every + 1
        values = np.stack([self.position[seen] - np.float32(start), self.speed[seen]], axis=-1)
        measurements, present, sensors = _in_slots(step, self.vehicle[seen], values, num_steps)
        return Trajectories(
            state=present.sum(-1)[None, :, None] * (1000 / (end - start)),
            measurements=measurements[None],
            present=present[None],
            sensors=sensors[None],
            interval_s=interval_s,
        )

    def seen_in_full(self, section: tuple[float, float] = SECTION_M) -> tuple[int, int]:
        """The first and the last tick of the time in which every vehicle on the section was tracked.

        Tracks begin at the start of the recorded stretch. So the section is full of tracked vehicles once each main
        lane has had a vehicle at or beyond the end of the section, and until the last vehicle before its start in one
        of these lanes.
        """
        start, end = _check_section(section)
        opens, closes = [], []
        for lane in np.unique(self.lane[self.on_main_lanes]):
            own = self.lane == lane
            past, before = (self.tick[own & there] for there in (self.position >= end, self.position < start))
            if not len(past) or not len(before):
                seen = self.position[own]
                raise ValueError(
                    f"section must lie within what was recorded, {seen.min():.0f} to {seen.max():.0f} m on lane "
                    f"{lane}, got {start:g} to {end:g}"
                )
            opens.append(int(past.min()))
            closes.append(int(before.max()))
        if not opens:
            raise ValueError("the recording must have vehicles on lanes 1 to 5, got none; read other files")
        first, last = max(opens), min(closes)
        if last < first:
            raise ValueError(
                f"section must be short enough for a vehicle to cross it within the recording, which lasts "
                f"{self.duration_s:.0f} s; read more files or take a shorter section"
            )
        ticks = np.flatnonzero(np.bincount(self.tick[(self.tick >= first) & (self.tick <= last)] - first))
        gap = int(np.diff(ticks).max(initial=0))
        if gap > _LONGEST_GAP_TICKS:
            at = first + int(ticks[np.diff(ticks).argmax()])
            raise ValueError(
                f"the recording must have no gap, got {gap * _TICK_S:.0f} s without a vehicle after {clock(at)}; add "
                f"the file of the missing period, or read one period alone"
            )
        return first, last

    @property
    def on_main_lanes(self) -> Booleans:
        return (self.lane >= MAIN_LANES[0]) & (self.lane <= MAIN_LANES[1])


def us101(
    directory: str | os.PathLike[str] | None = None,
    *,
    section: tuple[float, float] = SECTION_M,
    interval_s: float = 0.2,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Trajectories:
    """One run of the traffic on a section of US-101, recorded on 15 June 2005 from 07:50 to 08:35.

    All vehicles report. `Trajectories.sample_sensors` draws a share of them.

    Args:
        directory: see `read`.
        section: start (included) and end (excluded), in m from the start of the recorded stretch.
        interval_s: time between steps, a multiple of 0.1 s.
        cache: see `read`.
        progress: show a progress bar on stderr.

    Returns:
        As `freeway.simulate`: `state` (1, K, 1) is the density in vehicles per km, lanes 1 to 5 together;
        `measurements` (1, K, m, 2) are the position on the section in m and the speed in m/s.
    """
    return read(directory, cache=cache, progress=progress).trajectories(section, interval_s)


def read(
    directory: str | os.PathLike[str] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Recording:
    """The whole recording of US-101, from files in any published layout.

    Args:
        directory: a folder with the files or with a subfolder `us101` that has them, or one file. By default the
            environment variable DPFUSE_DATA names it.
        cache: folder for compact copies of text files; by default `dpfuse` in the user's cache folder.
        progress: show a progress bar on stderr.
    """
    where = directory if directory is not None else os.environ.get("DPFUSE_DATA")
    if not where:
        raise DatasetMissing("no folder with recordings; give one, or set the environment variable DPFUSE_DATA")
    found, passed_over = find_files(Path(where))
    files, rows = read_files(found, None if cache is None else Path(cache), progress)
    joined = join([(file.path, each) for file, each in zip(files, rows, strict=True)])
    return Recording(
        *joined.sightings,
        files=tuple(files),
        passed_over=tuple(passed_over),
        num_seen_twice=joined.num_seen_twice,
    )


def clock(tick: float, form: str = "%H:%M:%S") -> str:
    """The local time of day on the road."""
    return f"{datetime.fromtimestamp(tick * _TICK_S, UTC) + _PACIFIC:{form}}"


def period_of(tick: Integers) -> Integers:
    """The number of the published period of each tick."""
    return (tick - PERIOD_OFFSET_TICKS) // PERIOD_TICKS


def first_tick_of(period: int) -> int:
    """The tick at which this period starts."""
    return period * PERIOD_TICKS + PERIOD_OFFSET_TICKS


def _check_section(section: tuple[float, float]) -> tuple[float, float]:
    try:
        start, end = (float(bound) for bound in section)
    except (TypeError, ValueError):
        raise TypeError("section must be two numbers, start and end in m") from None
    if not np.isfinite([start, end]).all() or end <= start:
        raise ValueError(f"section must have a start before its end, in m, got {start:g} to {end:g}")
    return start, end


def _in_slots(
    step: Integers, vehicle: Integers, values: Floats32, num_steps: int
) -> tuple[Floats32, Booleans, Integers]:
    """Measurements, presence and ids by step and slot. From its first to its last step a vehicle keeps its slot."""
    ids, which = np.unique(vehicle, return_inverse=True)
    entered, left = np.full(len(ids), num_steps), np.zeros(len(ids), np.int64)
    np.minimum.at(entered, which, step)
    np.maximum.at(left, which, step + 1)
    slot = assign_slots(entered, left - entered)
    shape = num_steps, int(slot.max(initial=0)) + 1
    measurements = np.zeros((*shape, values.shape[1]), np.float32)
    measurements[step, slot[which]] = values
    present = np.zeros(shape, bool)
    present[step, slot[which]] = True
    sensors = np.full(shape, NOBODY)
    for each, first, last, number in zip(slot, entered, left, ids, strict=True):
        sensors[first:last, each] = number
    return measurements, present, sensors
