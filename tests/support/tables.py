"""Long tables for the tests: made of rows in each kind of frame, and read by hand, slowly."""

from __future__ import annotations

import pandas as pd
import polars as pl
import pyarrow as pa

COLUMNS = ("run", "time", "sensor", "speed", "position", "density")
MAKERS = {
    "pandas": lambda columns: pd.DataFrame(columns),
    "polars": lambda columns: pl.DataFrame(columns, strict=False),
    "pyarrow": lambda columns: pa.table(columns),
}
NAMES = {"time": "time", "sensor": "sensor", "values": ["speed", "position"], "state": "density", "run": "run"}


def make_table(rows: list[tuple], backend: str, columns=COLUMNS):
    """A frame with these rows."""
    return MAKERS[backend]({name: [row[i] for row in rows] for i, name in enumerate(columns)})


def rows_of(frame) -> list[tuple]:
    """The rows of a frame, in its order, with None for what is missing."""
    if isinstance(frame, pd.DataFrame):
        frame = pa.Table.from_pandas(frame, preserve_index=False)
    table = frame.to_arrow() if isinstance(frame, pl.DataFrame) else frame
    rows = zip(*(table[name].to_pylist() for name in table.column_names), strict=True)
    return [tuple(None if value != value else value for value in row) for row in rows]


def by_hand(rows: list[tuple], interval: int, steps: int | None = None) -> tuple[list[tuple], list[tuple], int]:
    """The rows that a recording of these rows holds, its states, and the length of its runs."""
    seen, reports, states = set(), [], {}
    for run, time, sensor, speed, position, density in rows:
        if density is not None:
            states[run, time] = density
        if (run, time, sensor) not in seen:
            seen.add((run, time, sensor))
            reports.append((run, time, sensor, speed, position))
    parts: list[list[tuple]] = []
    for run, time in sorted(states):
        if not parts or parts[-1][-1] != (run, time - interval):
            parts.append([])
        parts[-1].append((run, time))
    lengths = [len(part) for part in parts]
    steps = steps or max(lengths, key=lambda length: (length * sum(other >= length for other in lengths), length))
    kept = {place for part in parts for place in part[: len(part) // steps * steps]}
    held = [
        (*row, states[row[0], row[1]]) for row in reports if row[:2] in kept and not (row[3] is None and row[4] is None)
    ]
    return sorted(held, key=repr), sorted(((*place, states[place]) for place in kept), key=repr), steps
