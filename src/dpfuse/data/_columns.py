"""Columns of a pandas, polars or pyarrow table as arrays. Errors name column, row, rule and remedy, never a value."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Floats, Integers
from dpfuse._extras import requires_extra
from dpfuse._labels import Id, TimeKind

NS = 1_000_000_000
# Seconds since 1970 up to the year 2200; a time in milliseconds is larger.
_LARGEST_TIME_S = 7.26e9


class Times(NamedTuple):
    """A column of times in nanoseconds, with what is needed to write it back.

    Attributes:
        ns: since 1970, or since the 0 of a column of seconds.
        kind: `whole` and `number` are columns of seconds, `moment` one of dates with a time.
        zone: the time zone of a moment, if it has one.
    """

    ns: Integers
    kind: TimeKind
    zone: str | None


class Ids(NamedTuple):
    """A column of ids: `names[number]` is each row's id; for whole numbers of 0 or more `names` is None."""

    number: Integers
    names: tuple[Id, ...] | None


def to_frame(table: Any, name: str) -> Any:
    """The table as a narwhals DataFrame."""
    with requires_extra("data", "a table"):
        import narwhals as nw
    try:
        frame = nw.from_native(table)
    except TypeError:
        raise TypeError(
            f"{name} must be a pandas, polars or pyarrow table, got {type(table).__module__}.{type(table).__name__}"
        ) from None
    frame = frame.collect() if isinstance(frame, nw.LazyFrame) else frame
    if not isinstance(frame, nw.DataFrame):
        raise TypeError(f"{name} must be a table, got one column; select columns by a list of names")
    if not len(frame):
        raise ValueError(f"{name} must have at least one row, got none")
    return frame


def column(frame: Any, name: str, use: str) -> Any:
    """The column with this name."""
    if name not in frame.columns:
        # The first line of a file without a header holds values: they are not shown.
        is_header = all(str(each)[:1].isalpha() or str(each)[:1] in ("", "_") for each in frame.columns)
        known = (
            f"it has {', '.join(map(str, frame.columns))}"
            if is_header
            else f"the names of its {len(frame.columns)} columns look like values; give it a line with names first"
        )
        raise ValueError(f"{use} must be a column of the table, got {name!r}; {known}")
    return frame[name]


def read_times(frame: Any, name: str) -> Times:
    """A column of seconds, dates or dates with a time."""
    series = _complete(frame, name, "time")
    dtype = series.dtype
    if dtype.is_temporal():
        if not hasattr(dtype, "time_unit") and str(dtype) != "Date":
            raise TypeError(f"time column {name!r} must hold seconds or dates with a time, got {dtype}")
        zone = getattr(dtype, "time_zone", None)
        return Times(series.dt.timestamp("ns").to_numpy().astype(np.int64), "moment", zone)
    if not dtype.is_numeric():
        raise TypeError(
            f"time column {name!r} must hold seconds or dates with a time, got {dtype}; convert it, "
            f"with pandas.to_datetime for example"
        )
    seconds = series.to_numpy()
    _refuse(~np.isfinite(seconds.astype(np.float64)), name, "be a finite time", "drop the row")
    _refuse(np.abs(seconds.astype(np.float64)) > _LARGEST_TIME_S, name, "be a time in seconds",
            "divide milliseconds by 1000")  # fmt: skip
    if dtype.is_integer():
        return Times(seconds.astype(np.int64) * NS, "whole", None)
    whole = np.floor(seconds.astype(np.float64))
    # In two parts: seconds since 1970 in nanoseconds exceed what float64 holds exactly.
    ns = whole.astype(np.int64) * NS + np.rint((seconds - whole) * NS).astype(np.int64)
    return Times(ns, "number", None)


def read_ids(frame: Any, name: str, use: str) -> Ids:
    """A column of ids of any type. Whole numbers of 0 or more stay; all others are numbered in sorted order."""
    series = _complete(frame, name, use)
    dtype = series.dtype
    values: NDArray[Any]
    if dtype.is_integer():
        values = series.to_numpy()
    elif dtype.is_float():
        values = series.to_numpy().astype(np.float64)
    elif str(dtype) == "Boolean":
        values = series.to_numpy().astype(np.bool_)
    else:
        values = _of_one_kind(series.to_list(), name)
    if values.dtype.kind in "iu" and values.min() >= 0 and values.max() <= np.iinfo(np.int64).max:
        return Ids(values.astype(np.int64), None)
    if values.dtype.kind == "f":
        _refuse(np.isnan(values), name, "have an id", "drop the row or give it an id")
    known, number = np.unique(values, return_inverse=True)
    return Ids(number.astype(np.int64), tuple(known.tolist()))


def read_numbers(frame: Any, name: str, use: str, may_be_text: bool = False) -> Floats:
    """A column of numbers; null, NaN and infinite values become NaN. Text, where it may be, becomes 0."""
    series = column(frame, name, use)
    is_missing = series.is_null()
    if is_missing.all():
        return np.full(len(series), np.nan)
    if not (series.dtype.is_numeric() or str(series.dtype) == "Boolean"):
        if may_be_text:
            return np.where(is_missing.to_numpy().astype(np.bool_), np.nan, 0.0)
        raise TypeError(
            f"{use} column {name!r} must hold numbers, got {series.dtype}{_first_text(series)}; convert the column, or "
            f"leave it out"
        )
    import narwhals as nw

    values: Floats = series.cast(nw.Float64).to_numpy().astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def refuse_row(name: str, row: int, rule: str, remedy: str) -> NoReturn:
    """Raise for one row of a column. No value is shown."""
    raise ValueError(f"column {name!r}, row {row} (the first is 0): must {rule}; {remedy}")


def _refuse(is_wrong: NDArray[np.bool_], name: str, rule: str, remedy: str) -> None:
    if is_wrong.any():
        refuse_row(name, int(is_wrong.argmax()), rule, remedy)


def _complete(frame: Any, name: str, use: str) -> Any:
    series = column(frame, name, use)
    _refuse(series.is_null().to_numpy().astype(np.bool_), name, f"have a {use}", "drop the row or fill it in")
    return series


def _of_one_kind(values: list[Any], name: str) -> NDArray[Any]:
    """A column without a type of its own: text, or whole numbers, or numbers, or true and false, in all rows."""
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    kinds = [next((kind for kind in (str, bool, int, float) if isinstance(value, kind)), None) for value in values]
    wrong = np.array([kind is None for kind in kinds])
    _refuse(wrong, name, "be text, a number, or true or false", "convert the column to text")
    differs = np.array([kind is not kinds[0] for kind in kinds])
    _refuse(differs, name, "have an id of the same type as row 0", "convert the column to text, or to numbers")
    if kinds[0] is int and -(2**63) <= min(values) and max(values) < 2**63:
        return np.array(values, np.int64)
    return np.array(values, np.object_ if kinds[0] in (str, int) else kinds[0])


def _first_text(series: Any) -> str:
    """Where the first entry is that is not a number, for a column of text."""
    for row, value in enumerate(series.to_list()):
        if value is not None:
            try:
                float(value)
            except (TypeError, ValueError):
                return f" (row {row} is not a number)"
    return ""
