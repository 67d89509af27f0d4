"""The places where the NGSIM program recorded vehicles, and their clocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from dpfuse import _check
from dpfuse._arrays import Integers

TICK_S = 0.1

# Periods of 15 minutes, in tenths of a second.
_PERIOD_TICKS = 9000
# The column Direction of streets.
_DIRECTIONS = {"north": 2, "south": 4}


@dataclass(frozen=True, kw_only=True)
class Site:
    """A recorded road.

    Attributes:
        name: as in the column Location.
        folder: the name of its folder of files.
        section: the part whose density is estimated, in m from the start of the recorded stretch.
        lanes: the first and the last of the lanes that count.
        earliest, latest: limits of the clock in ms.
        day: of these limits, in words.
        utc_offset_h: of the local time.
        period_offset_ticks: from a full hour to the start of a published period of 15 minutes.
        direction: on a street with traffic both ways, the one that counts: `north` or `south`.
        has_short_clock: whether times are the start of a period in s plus the time since then in ms.
    """

    name: str
    folder: str
    section: tuple[float, float]
    lanes: tuple[int, int]
    earliest: int
    latest: int
    day: str
    utc_offset_h: int = -7
    period_offset_ticks: int = 0
    direction: str | None = None
    has_short_clock: bool = False

    @property
    def direction_code(self) -> int | None:
        """The number of the direction in the column Direction."""
        return None if self.direction is None else _DIRECTIONS[self.direction]

    def towards(self, direction: str | None) -> Site:
        """The same street with this direction counted."""
        if direction is None:
            return self
        if self.direction is None:
            raise ValueError(f"direction must be left out for {self.name}, which has one direction, got {direction!r}")
        return replace(self, direction=_check.is_one_of("direction", direction, tuple(_DIRECTIONS)))

    def clock(self, tick: float, form: str = "%H:%M:%S") -> str:
        """The local time of day on the road."""
        return f"{datetime.fromtimestamp(tick * TICK_S, UTC) + timedelta(hours=self.utc_offset_h):{form}}"

    def period_of(self, tick: Integers) -> Integers:
        """The number of the published period of each tick."""
        return (tick - self.period_offset_ticks) // _PERIOD_TICKS

    def first_tick_of(self, period: int) -> int:
        """The tick at which this period starts."""
        return period * _PERIOD_TICKS + self.period_offset_ticks


US101 = Site(
    name="us-101",
    folder="us101",
    section=(120.0, 520.0),
    lanes=(1, 5),
    # 07:30 to 09:00 on the road.
    earliest=1_118_845_800_000,
    latest=1_118_851_200_000,
    day="the morning of 15 June 2005",
    period_offset_ticks=3000,  # 07:50, 08:05, ...
)
I80 = Site(
    name="i-80",
    folder="i80",
    section=(100.0, 400.0),
    lanes=(1, 6),
    # 15:30 to 18:00.
    earliest=1_113_431_400_000,
    latest=1_113_440_400_000,
    day="the afternoon of 13 April 2005",
)
LANKERSHIM = Site(
    name="lankershim",
    folder="lankershim",
    section=(100.0, 400.0),
    lanes=(0, 99),
    # 08:00 to 09:30.
    earliest=1_118_934_000_000,
    latest=1_118_939_400_000,
    day="the morning of 16 June 2005",
    direction="north",
)
PEACHTREE = Site(
    name="peachtree",
    folder="peachtree",
    section=(150.0, 450.0),
    lanes=(0, 99),
    # Starts of periods from 12:30 to 16:30 in s, plus up to 30 minutes in ms.
    earliest=1_163_017_800,
    latest=1_163_032_200 + 1_800_000,
    day="8 November 2006, in the short clock of this site",
    # The published seconds are those of Atlanta's time of day in the zone of California.
    utc_offset_h=-8,
    direction="north",
    has_short_clock=True,
)
SITES = {site.name: site for site in (US101, I80, LANKERSHIM, PEACHTREE)}
