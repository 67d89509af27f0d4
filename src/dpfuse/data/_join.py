"""Files and periods joined: every vehicle has a unique id and is counted once.

In each period the numbers of vehicles start again at 1. Periods overlap by about a minute, and a folder may hold the
same period twice. Two tracks of different periods are one vehicle if, for at least half of the time that both are seen,
they are in the same lane and at nearly the same place: the fronts of two vehicles in one lane never come so close.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse.data._rows import TICK_MS, Rows, periods_of
from dpfuse.errors import FileRefused

IDS_EACH = 1_000_000

_SAME_PLACE_M = 2.0
_SAME_SHARE = 0.5
# Published periods overlap by about one minute.
_LONG_OVERLAP_TICKS = 3000


class Sightings(NamedTuple):
    """Columns of equal length, one entry for each vehicle and tick."""

    vehicle: Integers
    tick: Integers
    lane: NDArray[np.int8]
    position: Floats32
    speed: Floats32

    def take(self, index: Integers | Booleans) -> Sightings:
        """The entries with these indices, or where the mask is true."""
        return Sightings._make(column[index] for column in self)


class Joined(NamedTuple):
    """All sightings, and how many vehicles were found in two periods."""

    sightings: Sightings
    num_seen_twice: int


def join(files: Sequence[tuple[Path, Rows]]) -> Joined:
    """The sightings of all files. A vehicle that several periods saw has the id of the earliest period."""
    sources = [(path, rows) for path, all_rows in files for rows in periods_of(all_rows)]
    sources.sort(key=lambda source: int(source[1].time_ms.min()))
    parts = [_to_sightings(rows, number) for number, (_, rows) in enumerate(sources, 1)]
    same: dict[int, int] = {}
    for (one, first), (other, second) in combinations(list(zip(sources, parts, strict=True)), 2):
        pairs = _same_vehicles(first, second, one[0], other[0])
        same |= {later: same.get(earlier, earlier) for earlier, later in pairs if later not in same}
    sightings = Sightings._make(np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Joined(_count_once(sightings, same) if same else sightings, len(same))


def _to_sightings(rows: Rows, number: int) -> Sightings:
    return Sightings(
        rows.vehicle + np.int64(number * IDS_EACH),
        (rows.time_ms + TICK_MS // 2) // TICK_MS,
        rows.lane,
        rows.position,
        rows.speed,
    )


def _same_vehicles(first: Sightings, second: Sightings, one: Path, other: Path) -> list[tuple[int, int]]:
    """Ids in `first` and in `second` that are the same vehicle."""
    start = max(first.tick.min(), second.tick.min())
    stop = min(first.tick.max(), second.tick.max())
    if start > stop:
        return []
    parts = [each.take((each.tick >= start) & (each.tick <= stop)) for each in (first, second)]
    both = Sightings._make(np.concatenate(columns) for columns in zip(*parts, strict=True))
    both = both.take(np.lexsort((both.position, both.lane, both.tick)))
    close = (np.diff(both.tick) == 0) & (np.diff(both.lane) == 0) & (np.diff(both.position) < _SAME_PLACE_M)
    pairs = np.sort(np.stack([both.vehicle[:-1][close], both.vehicle[1:][close]], axis=1), axis=1)
    pairs = pairs[pairs[:, 0] // IDS_EACH != pairs[:, 1] // IDS_EACH]
    pairs, count = np.unique(pairs, axis=0, return_counts=True)
    common = _common_ticks(both, pairs)
    pairs = pairs[count >= _SAME_SHARE * common]
    fewer = min(len(np.unique(part.vehicle)) for part in parts)
    if stop - start > _LONG_OVERLAP_TICKS and len(pairs) < fewer / 2:
        names = f"{one} and {other}" if one != other else f"two periods of {one}"
        raise FileRefused(
            f"{names} both cover {(stop - start) * TICK_MS / 1000:.0f} s but have different vehicles; keep one of "
            f"them, or every vehicle would count twice"
        )
    return [(int(earlier), int(later)) for earlier, later in pairs]


def _common_ticks(both: Sightings, pairs: Integers) -> Integers:
    """For how many ticks both vehicles of each pair are seen: from the later first tick to the earlier last tick."""
    ids, where = np.unique(both.vehicle, return_inverse=True)
    first, last = np.full(len(ids), both.tick.max()), np.zeros(len(ids), np.int64)
    np.minimum.at(first, where, both.tick)
    np.maximum.at(last, where, both.tick)
    at = np.searchsorted(ids, pairs)
    common: Integers = last[at].min(axis=1) - first[at].max(axis=1) + 1
    return common


def _count_once(sightings: Sightings, same: dict[int, int]) -> Sightings:
    """The sightings with later ids replaced by earlier ones, and for each vehicle and tick the earliest period's."""
    later = np.array(sorted(same))
    earlier = np.array([same[each] for each in later.tolist()])
    where = np.searchsorted(later, sightings.vehicle).clip(max=len(later) - 1)
    is_later = later[where] == sightings.vehicle
    vehicle = np.where(is_later, earlier[where], sightings.vehicle)
    affected = np.flatnonzero(np.isin(vehicle, earlier))
    # The sort is stable: of equal entries the first stays, and earlier periods come first.
    order = affected[np.lexsort((sightings.tick[affected], vehicle[affected]))]
    again = (np.diff(vehicle[order]) == 0) & (np.diff(sightings.tick[order]) == 0)
    keep = np.ones(len(vehicle), bool)
    keep[order[1:][again]] = False
    return sightings._replace(vehicle=vehicle).take(keep)
