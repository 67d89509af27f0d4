"""What was found in a table, counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """What was found in a table, and what was left out of it. Nothing else was changed.

    Attributes:
        num_rows, num_sensors, num_runs: in the table.
        runs, steps, interval_s: the runs that were made, their length, and the seconds between steps.
        num_repeated: rows that repeat the run, sensor and time of an earlier row, which counts; `num_differing` of them
            have other values.
        num_late: rows that come after a later row of the same sensor. They are sorted in.
        num_merged: rows that fell into the step of another row of their sensor when the table was resampled.
        num_incomplete: rows that lack a value in some of the columns; `num_empty` of them lack all.
        num_silent: steps without a report of a sensor that reported before and after.
        num_unknown: steps between the first and the last of a run at which the state is not known. Runs are cut there.
        num_left_out: steps at which the state is known, in parts of runs that are shorter than the runs that were made.
        num_without_state: reports of steps that are not part of any run that was made.
    """

    num_rows: int
    num_sensors: int
    num_runs: int
    runs: int
    steps: int
    interval_s: float
    num_repeated: int = 0
    num_differing: int = 0
    num_late: int = 0
    num_merged: int = 0
    num_incomplete: int = 0
    num_empty: int = 0
    num_silent: int = 0
    num_unknown: int = 0
    num_left_out: int = 0
    num_without_state: int = 0

    def to_text(self) -> str:
        """One line on what was made, and one for each thing that was found."""
        made = (
            f"{self.num_rows:,} rows of {self.num_sensors:,} sensors in {_count(self.num_runs, 'run')}: "
            f"{_count(self.runs, 'run')} of {_count(self.steps, 'step')} of {self.interval_s:g} s"
        )
        return "\n  ".join([made, *self._notes()])

    def _notes(self) -> Iterator[str]:
        if self.num_repeated:
            yield (
                f"{_count(self.num_repeated, 'row')} repeated a sensor and time; the first counts "
                f"({self.num_differing:,} had other values)"
            )
        if self.num_late:
            yield f"{_count(self.num_late, 'row')} came after a later row of the same sensor; sorted in"
        if self.num_merged:
            yield f"{_count(self.num_merged, 'row')} fell into the step of another row of the sensor; merged"
        if self.num_incomplete:
            yield (
                f"{_count(self.num_incomplete, 'row')} lacked a value: reports without these channels; "
                f"{self.num_empty:,} lacked all, and count as no report"
            )
        if self.num_silent:
            yield f"sensors were silent for {_count(self.num_silent, 'step')} between two reports"
        if self.num_unknown:
            yield f"the state was unknown at {_count(self.num_unknown, 'step')}; runs were cut there"
        if self.num_left_out:
            yield (
                f"{_count(self.num_left_out, 'step')} left out, in parts of runs shorter than {self.steps:,} steps; "
                f"choose another length by steps="
            )
        if self.num_without_state:
            yield f"{_count(self.num_without_state, 'report')} left out with those steps"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
