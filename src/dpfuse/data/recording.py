"""The recordings of the NGSIM program, and the `Trajectories` of a section of the road."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpfuse import _check
from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse._slots import in_slots
from dpfuse.data._grid import length_of_runs
from dpfuse.data._join import join
from dpfuse.data._reader import FileRead, find_files, read_files
from dpfuse.data.sites import SITES, TICK_S, US101, Site
from dpfuse.errors import DatasetMissing
from dpfuse.trajectories import Origin, Trajectories

SECTION_M = US101.section

_LONGEST_GAP_TICKS = 10
# A longer time without any vehicle lies between two recordings.
_APART_TICKS = 600


@dataclass(frozen=True, eq=False)
class Recording:
    """Every sighting of every vehicle, one entry for each vehicle and tenth of a second, in any order.

    Attributes:
        vehicle: ids, unique over all files: the published number plus 1,000,000 for the first period, 2,000,000 for
            the second, and so on. A vehicle in two overlapping periods has the id of the earlier one.
        tick: time in tenths of a second since 1970.
        lane: counted from the median. On US-101 1 to 5 are the main lanes, 6 the auxiliary lane, 7 the on-ramp, 8 the
            off-ramp; on I-80 1 to 6 are the main lanes, 7 the on-ramp; on streets 11 and up are bays for left turns, 31
            and up for right turns, 0 is an intersection.
        position: of the front, in m from the start of the recorded stretch.
        speed: in m/s.
        files: what was found in each file.
        passed_over: files in the folder that hold no vehicle trajectories.
        num_seen_twice: vehicles in two overlapping periods. Each is counted once.
        site: where it was recorded.
    """

    vehicle: Integers
    tick: Integers
    lane: NDArray[np.int8]
    position: Floats32
    speed: Floats32
    files: tuple[FileRead, ...]
    passed_over: tuple[Path, ...] = ()
    num_seen_twice: int = 0
    site: Site = US101

    @property
    def num_vehicles(self) -> int:
        return len(np.unique(self.vehicle))

    @property
    def duration_s(self) -> float:
        return float(self.tick.max() - self.tick.min()) * TICK_S

    @property
    def spacing_s(self) -> float:
        """The time between two instants of the recording."""
        return float(np.gcd.reduce(np.diff(self.ticks)) or 1) * TICK_S

    @property
    def ticks(self) -> Integers:
        """The ticks at which a vehicle was seen, in order."""
        first = int(self.tick.min())
        seen: Integers = first + np.flatnonzero(np.bincount(self.tick - first))
        return seen

    def parts(self) -> list[Recording]:
        """The recordings between gaps of a minute or more, such as the two hours of I-80."""
        ticks = self.ticks
        cuts = ticks[1:][np.diff(ticks) > _APART_TICKS]
        if not len(cuts):
            return [self]
        number = np.searchsorted(cuts, self.tick, side="right")
        columns = ("vehicle", "tick", "lane", "position", "speed")
        return [
            replace(self, **{name: getattr(self, name)[number == each] for name in columns})
            for each in range(len(cuts) + 1)
        ]

    def trajectories(
        self, section: tuple[float, float] | None = None, interval_s: float = 0.2, steps: int | None = None
    ) -> Trajectories:
        """The density of a section, and the position and speed of every vehicle on it.

        A run covers a time in which every vehicle on the section was tracked, see `seen_in_full`. A recording with gaps
        of a minute or more, see `parts`, gives several runs of one length.

        Args:
            section: start (included) and end (excluded) in m; by default that of the site.
            interval_s: time between steps, a multiple of the time between two instants of the recording.
            steps: length of the runs; by default the one that keeps the most steps.

        Returns:
            `state` (N, K, 1) is the density in vehicles per km, all counted lanes together. `measurements` (N, K, m, 2)
            are the position in m from the start of the section and the speed in m/s. A vehicle that is not seen at a
            step, or is on another lane, is absent and not counted.
        """
        runs = [part.run(section, interval_s) for part in self.parts()]
        if len(runs) == 1 and steps is None:
            return runs[0]
        steps = length_of_runs(np.array([run.num_steps for run in runs]), steps)
        kept = [
            replace(run, origins=[Origin(number, 0)]).windows(steps)
            for number, run in enumerate(runs)
            if run.num_steps >= steps
        ]
        return Trajectories.join(kept)

    def run(self, section: tuple[float, float] | None = None, interval_s: float = 0.2) -> Trajectories:
        """One run, of a recording without gaps. Arguments as in `trajectories`."""
        start, end = self._section(section)
        every = round(_check.is_positive("interval_s", interval_s) / TICK_S)
        spacing_s = self.spacing_s
        own = round(spacing_s / TICK_S)
        if every < 1 or abs(every * TICK_S - interval_s) > 1e-9 * every or every % own:
            raise ValueError(f"interval_s must be a multiple of {spacing_s:g}, got {interval_s}")
        opens, closes = self.seen_in_full(section)
        seen = self.on_main_lanes & (self.position >= start) & (self.position < end)
        seen &= (self.tick >= opens) & (self.tick <= closes) & ((self.tick - opens) % every == 0)
        step = (self.tick[seen] - opens) // every
        num_steps = int(closes - opens) // every + 1
        values = np.stack([self.position[seen] - np.float32(start), self.speed[seen]], axis=-1)
        measurements, present, sensors = in_slots(step, self.vehicle[seen], values, num_steps)
        return Trajectories(
            state=present.sum(-1)[None, :, None] * (1000 / (end - start)),
            measurements=measurements[None],
            present=present[None],
            sensors=sensors[None],
            interval_s=interval_s,
        )

    def seen_in_full(self, section: tuple[float, float] | None = None) -> tuple[int, int]:
        """The first and the last tick of the time in which every vehicle on the section was tracked.

        Tracks begin at the ends of the recorded stretch. So the section is full of tracked vehicles once each main lane
        has had a vehicle at or beyond the end of the section, and until the last vehicle before its start in one of
        these lanes. On a street vehicles also come from the side: all lanes are taken together, and only a vehicle that
        was seen before the section shows that it is full.
        """
        start, end = self._section(section)
        opens, closes = [], []
        for own in self._lanes():
            is_past, is_before = self.position >= end, self.position < start
            if self.site.direction == "south":
                is_past, is_before = is_before, is_past
            if self.site.direction:
                is_past &= np.isin(self.vehicle, self.vehicle[own & is_before])
            past, before = self.tick[own & is_past], self.tick[own & is_before]
            if not len(past) or not len(before):
                seen, lane = self.position[own], "" if self.site.direction else f" on lane {self.lane[own][0]}"
                raise ValueError(
                    f"section must lie within what was recorded, {seen.min():.0f} to {seen.max():.0f} m{lane}, got "
                    f"{start:g} to {end:g}"
                )
            opens.append(int(past.min()))
            closes.append(int(before.max()))
        if not opens:
            first, last = self.site.lanes
            raise ValueError(f"the recording must have vehicles on lanes {first} to {last}, got none; read other files")
        first, last = max(opens), min(closes)
        if last < first:
            raise ValueError(
                f"section must be short enough for a vehicle to cross it within the recording, which lasts "
                f"{self.duration_s:.0f} s; read more files or take a shorter section"
            )
        ticks = self.ticks
        ticks = ticks[(ticks >= first) & (ticks <= last)]
        gap = int(np.diff(ticks).max(initial=0))
        if gap > _LONGEST_GAP_TICKS:
            at = int(ticks[np.diff(ticks).argmax()])
            raise ValueError(
                f"the recording must have no gap, got {gap * TICK_S:.0f} s without a vehicle after "
                f"{self.site.clock(at)}; add the file of the missing period, or read one period alone"
            )
        return first, last

    @property
    def on_main_lanes(self) -> Booleans:
        return (self.lane >= self.site.lanes[0]) & (self.lane <= self.site.lanes[1])

    def _lanes(self) -> list[Booleans]:
        """Where the vehicles of each main lane are; on a street all lanes are one."""
        if self.site.direction:
            return [self.on_main_lanes]
        return [self.lane == lane for lane in np.unique(self.lane[self.on_main_lanes])]

    def _section(self, section: tuple[float, float] | None) -> tuple[float, float]:
        return check_section(self.site.section if section is None else section)


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
    site: str = US101.name,
    direction: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Recording:
    """The whole recording of a site of the NGSIM program, from files in any published layout.

    Args:
        directory: a folder with the files or with a subfolder `us101`, `i80`, `lankershim` or `peachtree` that has
            them, or one file. By default the environment variable DPFUSE_DATA names it.
        site: `us-101`, `i-80`, `lankershim` or `peachtree`.
        direction: on the streets, `north` or `south`; by default `north`.
        cache: folder for compact copies of text files; by default `dpfuse` in the user's cache folder.
        progress: show a progress bar on stderr.
    """
    chosen = SITES[_check.is_one_of("site", site, tuple(SITES))].towards(direction)
    found, passed_over = find_files(folder_of(directory), chosen)
    files, rows = read_files(found, chosen, None if cache is None else Path(cache), progress)
    joined = join([(file.path, each) for file, each in zip(files, rows, strict=True)])
    return Recording(
        *joined.sightings,
        files=tuple(files),
        passed_over=tuple(passed_over),
        num_seen_twice=joined.num_seen_twice,
        site=chosen,
    )


def folder_of(directory: str | os.PathLike[str] | None) -> Path:
    """The folder of the recordings; by default the environment variable DPFUSE_DATA names it."""
    where = directory if directory is not None else os.environ.get("DPFUSE_DATA")
    if not where:
        raise DatasetMissing("no folder with recordings; give one, or set the environment variable DPFUSE_DATA")
    return Path(where)


def check_section(section: tuple[float, float]) -> tuple[float, float]:
    """Start and end of a section in m."""
    try:
        start, end = (float(bound) for bound in section)
    except (TypeError, ValueError):
        raise TypeError("section must be two numbers, start and end in m") from None
    if not np.isfinite([start, end]).all() or end <= start:
        raise ValueError(f"section must have a start before its end, in m, got {start:g} to {end:g}")
    return start, end
