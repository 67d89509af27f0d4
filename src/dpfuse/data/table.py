"""A long table, one row for each report, as `Trajectories`.

Rows may come in any order, twice, and with gaps. What is done about each is fixed, and counted in a `TableSummary`:

- A row that repeats a run, sensor and time is left out: the first one counts, as in a live centre.
- A row that lacks some of its values is a report without these channels; one that lacks all is no report.
- A step at which the state is unknown ends a run, and the next known one begins another: no state is made up.
- A public input counts from the step after its own on, as in a live centre, and holds until that of the next one of its
  run, also across steps that are in no run that is made.
- All runs of a `Trajectories` have one length. By default it is the one that keeps the most steps where each unbroken
  part of a run gives one piece. Longer parts give several pieces, and shorter ones are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Booleans, Floats, Integers
from dpfuse._labels import Id, Labels
from dpfuse._slots import in_slots
from dpfuse.data._columns import NS, Times, read_ids, read_numbers, read_times, refuse_row, to_frame
from dpfuse.data._grid import Merged, Pieces, Resample, TableRows, TimeGrid, cut, merge
from dpfuse.data.table_summary import TableSummary
from dpfuse.public_inputs import NEVER
from dpfuse.trajectories import NOBODY, Origin, Trajectories

AGGREGATES = ("count", "mean", "sum")
Region = Mapping[str, tuple[float, float]]

_LARGEST = float(np.finfo(np.float32).max)


class TableRead(NamedTuple):
    """The recording in a table, and what was found there."""

    trajectories: Trajectories
    summary: TableSummary


class _Coordinate(NamedTuple):
    """Where a coordinate of the state comes from: a column, or with a `kind` an aggregate of it over the sensors."""

    name: str
    kind: str
    column: str


class _Known(NamedTuple):
    """The steps at which the state is known, sorted, and the state there."""

    step: Integers
    values: Floats


def read_table(
    table: Any,
    *,
    time: str,
    sensor: str,
    values: str | Sequence[str],
    state: str | Sequence[str],
    run: str | None = None,
    states: Any = None,
    region: Region | None = None,
    interval_s: float | None = None,
    resample: Resample | None = None,
    steps: int | None = None,
    public: str | Sequence[str] = (),
) -> TableRead:
    """The recording in a long table and what was found there. Arguments as in `Trajectories.from_table`."""
    if resample is not None:
        _check.is_one_of("resample", resample, ("last", "mean"))
    values, region = _names("values", values), _check_region(region or {})
    frames = [to_frame(table, "table"), *([] if states is None else [to_frame(states, "states")])]
    plan = [_coordinate(name, frames[0].columns, states is None) for name in _names("state", state)]
    private = [*values, *(each.name for each in plan), *(each.column for each in plan), *region, sensor]
    public = _names_public(public, private)
    times, ids = [read_times(frame, time) for frame in frames], read_ids(frames[0], sensor, "sensor")
    if len({each.kind == "moment" for each in times}) > 1:
        raise ValueError(f"column {time!r} must be of the same kind in table and states; convert one of them")
    if len({each.zone is None for each in times}) > 1:
        raise ValueError(
            f"column {time!r} must have a time zone in both of table and states, or in none; add it to one"
        )
    runs, run_names = _number_runs(frames, run)
    aggregated = [each for each in plan if each.kind]
    of_sensors = [*values, *(each.column for each in aggregated), *region]
    counted = {len(values) + i for i, each in enumerate(aggregated) if each.kind == "count"}
    rows = _read_rows(frames[0], of_sensors, "values", runs[0], times[0], counted)
    held = _read_rows(frames[-1], [each.column for each in plan if not each.kind], "state", runs[-1], times[-1])
    shown = _read_rows(frames[-1], public, "public", runs[-1], times[-1])
    grid = TimeGrid.of([rows, held], 1 if run_names is None else len(run_names), interval_s, resample, time)
    reports = merge(rows, ids.number, grid)
    extent, num_rows, names = _extent([rows, held], grid), len(rows.ns), ids.names
    del rows, ids  # The reports are all that is needed of them, and a table may be large.
    known = _together(list(_states(plan, reports, len(values), list(region.values()), held, grid)))
    pieces = cut(known.step, steps)
    published = [
        _one_a_step(shown._replace(values=own[:, None]), name, grid, "give it in a table of its own (states=)")
        for name, own in zip(public, shown.values.T, strict=True)
    ]
    labels = Labels(
        time=time,
        sensor=sensor,
        run=run,
        values=values,
        state=tuple(each.name for each in plan),
        public=public,
        time_kind=times[0].kind,
        time_zone=times[0].zone,
        sensor_names=names,
        run_names=run_names,
        starts_ns=tuple(grid.starts.tolist()),
    )
    reports = reports._replace(values=reports.values[:, : len(values)])
    made = replace(_build(reports, known, pieces, grid, labels), **_held_inputs(published, pieces, grid))
    return TableRead(made, _summarise(reports, made, pieces, num_rows, len(grid.starts), extent - len(known.step)))


def _names(argument: str, names: str | Sequence[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(name, str) for name in listed):
        raise ValueError(f"{argument} must be the name of a column, or different names, got {names!r}")
    return listed


def _names_public(public: str | Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The columns of public inputs, which are not those of measurements, state, region or sensors."""
    names = _names("public", public) if public else ()
    if shared := [name for name in names if name in others]:
        raise ValueError(
            f"public must name columns that are not in values, state, region or sensor, got {shared[0]!r}; what a "
            f"sensor reports is private, and the state is what is estimated"
        )
    return names


def _check_region(region: Region) -> dict[str, tuple[float, float]]:
    for name, bounds in region.items():
        if len(bounds) != 2 or not bounds[0] < bounds[1]:
            raise ValueError(f"region must have a low and a higher bound for {name!r}, got {bounds!r}")
    return dict(region)


def _coordinate(name: str, columns: Sequence[str], may_aggregate: bool) -> _Coordinate:
    kind, colon, source = name.partition(":")
    if not may_aggregate or name in columns or not colon:
        return _Coordinate(name, "", name)
    _check.is_one_of("state", kind, AGGREGATES, f"an aggregate is written KIND:COLUMN, got {name!r}")
    return _Coordinate(name, kind, source)


def _number_runs(frames: Sequence[Any], run: str | None) -> tuple[list[Integers], tuple[Id, ...] | None]:
    """The number of the run of each row of each table, and the ids of the runs by number."""
    if run is None:
        return [np.zeros(len(frame), np.int64) for frame in frames], None
    read = [read_ids(frame, run, "run") for frame in frames]
    known = [np.unique(each.number).tolist() if each.names is None else list(each.names) for each in read]
    if len({type(each[0]) is str for each in known}) > 1:
        raise ValueError(f"column {run!r} must be of the same kind in table and states; convert one of them")
    names = tuple(sorted({name for each in known for name in each}))
    number = {name: i for i, name in enumerate(names)}
    rank = [np.array([number[name] for name in each], np.int64) for each in known]
    where = [
        np.searchsorted(own, each.number) if each.names is None else each.number
        for own, each in zip(known, read, strict=True)
    ]
    return [own[at] for own, at in zip(rank, where, strict=True)], names


def _read_rows(
    frame: Any, names: Sequence[str], use: str, run: Integers, times: Times, counted: Collection[int] = ()
) -> TableRows:
    """The rows of a table. Of `counted` columns, by their place in `names`, only the number of entries matters."""
    columns = [read_numbers(frame, name, use, may_be_text=i in counted) for i, name in enumerate(names)]
    values = np.stack(columns, axis=-1) if columns else np.zeros((len(run), 0))
    return TableRows(run, times.ns, np.clip(values, -_LARGEST, _LARGEST), np.arange(len(run)))


def _states(
    plan: Sequence[_Coordinate],
    reports: Merged,
    num_values: int,
    bounds: Sequence[tuple[float, float]],
    held: TableRows,
    grid: TimeGrid,
) -> Iterator[_Known]:
    """Where each coordinate of the state is known. The columns of `reports`: values, aggregated columns, region."""
    place, inside = reports.values[:, reports.values.shape[1] - len(bounds) :], np.ones(len(reports.step), bool)
    for own, (low, high) in zip(place.T, bounds, strict=True):
        inside &= (own >= low) & (own < high)
    aggregated, columns = iter(reports.values.T[num_values:]), iter(held.values.T)
    for each in plan:
        if each.kind:
            yield _aggregate(reports.step, next(aggregated), inside, each.kind)
        else:
            remedy = f"give the state in a table of its own (states=), or as an aggregate (state='mean:{each.name}')"
            yield _one_a_step(held._replace(values=next(columns)[:, None]), each.name, grid, remedy)


def _aggregate(step: Integers, values: Floats, inside: Booleans, kind: str) -> _Known:
    """Count, mean or sum at each step over the sensors in the region. A sum with a missing value is unknown."""
    steps, which = np.unique(step, return_inverse=True)
    is_counted = inside & ~np.isnan(values)
    count: Floats = np.bincount(which, is_counted, len(steps)).astype(np.float64)
    if kind == "count":
        return _Known(steps, count)
    total: Floats = np.bincount(
        which, np.where(inside if kind == "sum" else is_counted, values, 0.0), len(steps)
    ).astype(np.float64)
    return _Known(steps, total if kind == "sum" else np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _one_a_step(rows: TableRows, name: str, grid: TimeGrid, remedy: str) -> _Known:
    """A column with one value for each time; rows of one time must agree. Those without a value are passed over."""
    rows = rows.take(~np.isnan(rows.values[:, 0]))
    moment = grid.step_of(rows) if grid.resample is None else rows.ns
    order = np.lexsort((moment, rows.run))
    is_same = (np.diff(moment[order]) == 0) & (np.diff(rows.run[order]) == 0)
    differs = is_same & (np.diff(rows.values[order, 0]) != 0)
    if differs.any():
        first, second = (int(rows.number[order][i + differs.argmax()]) for i in (0, 1))
        rule = f"be the same in all rows of one time, and row {first} has another value"
        refuse_row(name, second, rule, remedy)
    merged = merge(rows, np.zeros(len(rows.ns), np.int64), grid)
    return _Known(merged.step, merged.values[:, 0])


def _together(coordinates: Sequence[_Known]) -> _Known:
    """The steps at which every coordinate is known."""
    steps = np.unique(np.concatenate([each.step for each in coordinates]))
    values = np.full((len(steps), len(coordinates)), np.nan)
    for j, each in enumerate(coordinates):
        values[np.searchsorted(steps, each.step), j] = each.values
    is_known = ~np.isnan(values).any(-1)
    if not is_known.any():
        raise ValueError("state must be known at one step at least, got none; give other columns, or a table states")
    return _Known(steps[is_known], values[is_known])


def _build(reports: Merged, known: _Known, pieces: Pieces, grid: TimeGrid, labels: Labels) -> Trajectories:
    piece, place, is_used = pieces.find(reports.step)
    is_used &= ~np.isnan(reports.values).all(-1)
    order = np.flatnonzero(is_used)[np.argsort(piece[is_used], kind="stable")]
    cuts = np.searchsorted(piece[order], np.arange(len(pieces.start) + 1))
    filled = []
    for first, last in zip(cuts, cuts[1:], strict=False):
        own = order[first:last]
        filled.append(in_slots(place[own], reports.key[own], reports.values[own], pieces.num_steps))
    num_slots = max(present.shape[1] for _, present, _ in filled)
    shape = len(filled), pieces.num_steps, num_slots
    measurements = np.zeros((*shape, reports.values.shape[1]), np.float32)
    present, sensors = np.zeros(shape, bool), np.full(shape, NOBODY)
    for number, (own_measurements, own_present, own_sensors) in enumerate(filled):
        slots = own_present.shape[1]
        measurements[number, :, :slots] = own_measurements
        present[number, :, :slots], sensors[number, :, :slots] = own_present, own_sensors
    run = grid.run_of(pieces.start)
    at = np.searchsorted(known.step, pieces.start)
    return Trajectories(
        state=known.values[at[:, None] + np.arange(pieces.num_steps)],
        measurements=measurements,
        present=present,
        sensors=sensors,
        interval_s=grid.interval_ns / NS,
        origins=[Origin(*each) for each in zip(run.tolist(), (pieces.start - grid.first[run]).tolist(), strict=True)],
        labels=labels,
    )


def _held_inputs(published: Sequence[_Known], pieces: Pieces, grid: TimeGrid) -> dict[str, Any]:
    """The last value of each public input at each step and its age, as fields of `Trajectories`.

    What was published during a step is of the next one: a row holds only what came before its step began.
    """
    if not published:
        return {}
    steps = pieces.start[:, None] + np.arange(pieces.num_steps)
    begin = grid.first[grid.run_of(pieces.start)][:, None]
    values, ages = np.full((*steps.shape, len(published)), np.nan), np.full((*steps.shape, len(published)), NEVER)
    for j, own in enumerate(published):
        if not len(own.step):
            continue
        last = np.searchsorted(own.step, steps) - 1
        is_known = (last >= 0) & (own.step[last] >= begin)
        values[..., j] = np.where(is_known, own.values[last], np.nan)
        ages[..., j] = np.where(is_known, np.minimum(steps - own.step[last] - 1, NEVER), NEVER)
    return {"public": values.astype(np.float32), "public_age": ages}


def _extent(tables: Sequence[TableRows], grid: TimeGrid) -> int:
    """Steps from the first row of each run to its last, of all runs."""
    last = np.full(len(grid.first), -1)
    for rows in tables:
        np.maximum.at(last, rows.run, grid.step_of(rows) - grid.first[rows.run])
    return int((last + 1).sum())


def _summarise(
    reports: Merged, made: Trajectories, pieces: Pieces, num_rows: int, num_runs: int, num_unknown: int
) -> TableSummary:
    is_missing = np.isnan(reports.values)
    is_used = pieces.find(reports.step)[2]
    return TableSummary(
        num_rows=num_rows,
        num_sensors=len(np.unique(reports.key)),
        num_runs=num_runs,
        runs=made.num_runs,
        steps=made.num_steps,
        interval_s=made.interval_s,
        num_repeated=reports.num_repeated,
        num_differing=reports.num_differing,
        num_late=reports.num_late,
        num_merged=reports.num_merged,
        num_incomplete=int(is_missing.any(-1).sum()),
        num_empty=int(is_missing.all(-1).sum()),
        num_silent=int(((made.sensors != NOBODY) & ~made.present).sum()),
        num_unknown=num_unknown,
        num_left_out=pieces.num_left_out,
        num_without_state=int((~is_used & ~is_missing.all(-1)).sum()),
    )
