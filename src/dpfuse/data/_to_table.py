"""`Trajectories` as a long table: one row for each report, or one for each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats32, Integers
from dpfuse._extras import requires_extra
from dpfuse._labels import Id, Labels
from dpfuse.data._columns import NS
from dpfuse.trajectories import Trajectories

Kind = Literal["reports", "states"]
Backend = Literal["pyarrow", "pandas", "polars"]


def to_table(data: Trajectories, kind: Kind = "reports", backend: Backend = "pyarrow") -> Any:
    """The recording as a table; arguments as in `Trajectories.to_table`.

    A public input is in the row of the step during which it was published; one from before a run has no row.
    """
    _check.is_one_of("kind", kind, ("reports", "states"))
    with requires_extra("data", "a table"):
        import narwhals as nw
    labels = data.labels or _default(data)
    if kind == "reports":
        run, step, slot = np.nonzero(data.present)
        by_id = np.lexsort((data.sensors[run, step, slot], step, run))
        run, step, slot = run[by_id], step[by_id], slot[by_id]
    else:
        run, step = (index.ravel() for index in np.indices(data.state.shape[:2]))
    recording, first = (np.array(column, np.int64)[run] for column in zip(*data.origins, strict=True))
    columns: dict[str, Any] = {}
    if labels.run is not None:
        columns[labels.run] = _ids(recording, labels.run_names)
    starts = np.array(labels.starts_ns or (0,) * (1 + max(origin.recording for origin in data.origins)), np.int64)
    columns[labels.time] = _times(starts[recording] + (first + step) * round(data.interval_s * NS), labels)
    if kind == "reports":
        columns[labels.sensor] = _ids(data.sensors[run, step, slot], labels.sensor_names)
        columns |= dict(zip(labels.values, data.measurements[run, step, slot].T, strict=True))
    columns |= dict(zip(labels.state, data.state[run, step].T, strict=True))
    if data.public is not None:
        given = _published(data)[run, step]
        own = tuple(f"public_{i}" for i in range(given.shape[-1]))
        names = labels.public if len(labels.public) == len(own) else own  # they may have been added since
        columns |= dict(zip(names, given.T, strict=True))
    frame = nw.from_dict(columns, backend=backend)
    if labels.time_zone is not None:
        moment = nw.col(labels.time).dt.replace_time_zone("UTC").dt.convert_time_zone(labels.time_zone)
        frame = frame.with_columns(moment)
    return frame.to_native()


def _published(data: Trajectories) -> Floats32:
    """The public inputs that were published during each step: those that are new at the next one, NaN where none is."""
    assert data.public is not None
    new = np.where(np.asarray(data.public_age) == 0, data.public, np.float32(np.nan))
    number = {origin: run for run, origin in enumerate(data.origins)}
    after = [number.get(origin._replace(start=origin.start + data.num_steps)) for origin in data.origins]
    first = [np.full_like(new[0, 0], np.nan) if run is None else new[run, 0] for run in after]
    return np.concatenate([new[:, 1:], np.stack(first)[:, None]], axis=1)


def _default(data: Trajectories) -> Labels:
    values = tuple(f"value_{i}" for i in range(data.measurements.shape[-1]))
    return Labels(values=values, state=tuple(f"state_{i}" for i in range(data.state.shape[-1])))


def _ids(number: Integers, names: Sequence[Id] | None) -> Any:
    return number if names is None else np.array(names)[number] if type(names[0]) is not str else _texts(number, names)


def _texts(number: Integers, names: Sequence[Id]) -> list[Id]:
    return [names[i] for i in number.tolist()]


def _times(ns: Integers, labels: Labels) -> Any:
    if labels.time_kind == "moment":
        return ns.astype("datetime64[ns]")
    if labels.time_kind == "whole" and not (ns % NS).any():
        return ns // NS
    # In two parts, as nanoseconds since 1970 exceed what float64 holds exactly.
    return ns // NS + (ns % NS) / NS
