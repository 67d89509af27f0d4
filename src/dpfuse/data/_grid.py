"""The steps of a table: when each run begins, how far apart steps are, and which rows fall into which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Booleans, Floats, Integers
from dpfuse.data._columns import NS, refuse_row

Resample = Literal["last", "mean"]

_MOST_STEPS = 2**60
# Clocks are rounded when they are written: a time this near to a step, as a share of the interval, lies on it.
_TOLERANCE = 1e-3


class TableRows(NamedTuple):
    """Rows of a table: run, time and values of each, NaN where there is none, and its number in the table."""

    run: Integers
    ns: Integers
    values: Floats
    number: Integers

    def take(self, index: Integers | Booleans) -> TableRows:
        """The rows with these indices, or where the mask is true."""
        return TableRows._make(column[index] for column in self)


@dataclass(frozen=True)
class TimeGrid:
    """The steps of all runs, numbered through: those of a run follow each other, and two runs are never adjacent.

    Attributes:
        starts: the first time of each run, in nanoseconds.
        first: the number of each run's first step.
        interval_ns: nanoseconds between steps.
        resample: how rows within one step become one; None if every time must lie on a step.
        column: the name of the column of times.
    """

    starts: Integers
    first: Integers
    interval_ns: int
    resample: Resample | None
    column: str

    @classmethod
    def of(
        cls,
        tables: Sequence[TableRows],
        num_runs: int,
        interval_s: float | None,
        resample: Resample | None,
        column: str,
    ) -> TimeGrid:
        """The grid of these tables: each run begins at its first time."""
        run, ns = np.concatenate([each.run for each in tables]), np.concatenate([each.ns for each in tables])
        starts, ends = np.full(num_runs, np.iinfo(np.int64).max), np.full(num_runs, np.iinfo(np.int64).min)
        np.minimum.at(starts, run, ns)
        np.maximum.at(ends, run, ns)
        interval_ns = (
            _infer(run, ns) if interval_s is None else round(_check.is_positive("interval_s", interval_s) * NS)
        )
        if interval_ns < 1 or int(((ends - starts) // interval_ns).max()) * num_runs > _MOST_STEPS:
            raise ValueError(f"interval_s must be a plausible time between steps, got {interval_ns / NS:g} s")
        lengths = (ends - starts) // interval_ns + 3
        return cls(starts, np.cumsum(lengths) - lengths, interval_ns, resample, column)

    def step_of(self, rows: TableRows) -> Integers:
        """The number of each row's step. A row between steps is refused, unless the table is resampled."""
        since = rows.ns - self.starts[rows.run]
        slack = max(round(self.interval_ns * _TOLERANCE), min(1000, self.interval_ns // 4))
        step: Integers = (since + (slack if self.resample else self.interval_ns // 2)) // self.interval_ns
        if self.resample is None:
            is_off = np.abs(since - step * self.interval_ns) > slack
            if is_off.any():
                refuse_row(
                    self.column,
                    int(rows.number[is_off][0]),
                    f"be a multiple of {self.interval_ns / NS:g} s after the first time of its run",
                    "give another interval_s, or resample='last' or 'mean'",
                )
        return self.first[rows.run] + step

    def run_of(self, step: Integers) -> Integers:
        """The run of each step."""
        return np.searchsorted(self.first, step, side="right") - 1


class Merged(NamedTuple):
    """At most one row for each key and step, sorted by key and step, and how many rows were left out or merged."""

    key: Integers
    step: Integers
    values: Floats
    num_repeated: int
    num_differing: int
    num_late: int
    num_merged: int


def merge(rows: TableRows, key: Integers, grid: TimeGrid) -> Merged:
    """The rows of each key (the sensors of a table) at each step. Of rows with the same time the first counts."""
    num_late = _count_late(rows, key)
    step = grid.step_of(rows)
    moment = step if grid.resample is None else rows.ns
    # The sort is stable: of equal times the first row stays first.
    order = np.lexsort((moment, rows.run, key))
    is_first = _starts(key[order], rows.run[order], moment[order])
    again = np.flatnonzero(~is_first)
    first = np.flatnonzero(is_first)
    here, there = rows.values[order[again]], rows.values[order[first[np.searchsorted(first, again) - 1]]]
    differs = ((here != there) & ~(np.isnan(here) & np.isnan(there))).any(-1)
    kept = order[is_first]
    del order, moment, first
    key, step, values = key[kept], step[kept], rows.values[kept]
    begins = np.flatnonzero(_starts(key, step))
    counts = np.diff(np.append(begins, len(key)))
    if grid.resample == "last":
        values = values[begins + counts - 1]
    elif grid.resample == "mean":
        num_known = np.add.reduceat((~np.isnan(values)).astype(np.float64), begins)
        total = np.add.reduceat(np.nan_to_num(values), begins)
        values = np.where(num_known > 0, total / np.maximum(num_known, 1), np.nan)
    return Merged(
        key[begins],
        step[begins],
        values,
        num_repeated=len(again),
        num_differing=int(differs.sum()),
        num_late=num_late,
        num_merged=len(kept) - len(begins),
    )


def _count_late(rows: TableRows, key: Integers) -> int:
    """How many rows come after a later row of the same key."""
    by_key = np.lexsort((key, rows.run))
    is_same = (np.diff(key[by_key]) == 0) & (np.diff(rows.run[by_key]) == 0)
    return int((is_same & (np.diff(rows.ns[by_key]) < 0)).sum())


def _starts(*columns: Integers) -> Booleans:
    """Where any of these sorted columns has another value than one row before."""
    starts = np.ones(len(columns[0]), bool)
    starts[1:] = np.logical_or.reduce([np.diff(column) != 0 for column in columns])
    return starts


def _infer(run: Integers, ns: Integers) -> int:
    order = np.lexsort((ns, run))
    apart = np.diff(ns[order])[np.diff(run[order]) == 0]
    apart = apart[apart > 0]
    if not len(apart):
        raise ValueError("interval_s must be given for a table in which no run has two times")
    return int(apart.min())


class Pieces(NamedTuple):
    """Runs of equal length: the first step of each, and how many steps of known state are part of none."""

    start: Integers
    num_steps: int
    num_left_out: int

    def find(self, step: Integers) -> tuple[Integers, Integers, Booleans]:
        """The piece of each step, its place there, and whether it is in one at all."""
        piece = np.maximum(np.searchsorted(self.start, step, side="right") - 1, 0)
        place = step - self.start[piece]
        return piece, place, (place >= 0) & (place < self.num_steps)


def cut(known: Integers, steps: int | None) -> Pieces:
    """Pieces of equal length from the steps at which the state is known, which are sorted.

    By default the length is the one that keeps the most steps where each unbroken part gives one piece.
    """
    begins = np.flatnonzero(np.append(True, np.diff(known) != 1))
    lengths = np.diff(np.append(begins, len(known)))
    steps = length_of_runs(lengths, steps)
    start = np.concatenate(
        [first + np.arange(length // steps) * steps for first, length in zip(known[begins], lengths, strict=True)]
    )
    return Pieces(start, steps, len(known) - len(start) * steps)


def length_of_runs(lengths: Integers, steps: int | None) -> int:
    """`steps`, or the length that keeps the most steps where each part of these lengths gives one piece."""
    if steps is None:
        options = np.unique(lengths)[::-1]
        kept = options * (len(lengths) - np.searchsorted(np.sort(lengths), options))
        return int(options[kept.argmax()])
    if _check.is_count("steps", steps) > lengths.max():
        raise ValueError(
            f"steps must be at most {lengths.max()}, the longest part of a run of known state, got {steps}"
        )
    return steps
