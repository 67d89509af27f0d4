"""Tables on disk: CSV and Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dpfuse.data._layouts import arrow
from dpfuse.errors import DatasetMissing, FileRefused

# The types of columns are inferred from the first block, so that a block is the whole file where that is possible.
_LARGEST_BLOCK = 2**30


def read_file(path: Path, names: Iterable[str], ids: Iterable[str] = ()) -> Any:
    """The columns with these names, as a pyarrow table; all columns where one is missing, for the caller's message.

    Of these, `ids` are columns of ids. In a text file a column of ids is text, unless each is a whole number as Python
    writes it: 007 and 7 are two sensors, and so are two numbers of 20 digits that one float stands for.
    """
    if not path.is_file():
        raise DatasetMissing(f"no file at {path}; give a CSV or Parquet file")
    wanted = set(names)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, wanted)
    if path.suffix.lower() not in (".csv", ".txt", ".tsv"):
        raise FileRefused(f"{path} must end in .csv, .tsv, .txt or .parquet; rename it, or convert it")
    return _read_csv(path, wanted, set(ids))


def _read_parquet(path: Path, wanted: set[str]) -> Any:
    pa = arrow()
    try:
        known = pa.parquet.read_schema(path).names
        return pa.parquet.read_table(path, columns=_to_read(known, wanted))
    except (pa.ArrowException, OSError) as error:
        raise FileRefused(f"{path} is not a Parquet file that can be read: {type(error).__name__}") from None


def _read_csv(path: Path, wanted: set[str], ids: set[str]) -> Any:
    pa = arrow()
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        line = file.readline()
    delimiter = max(",;\t", key=line.count)
    known = next(csv.reader([line], delimiter=delimiter), [])
    broken: list[str] = []

    def refuse(row: Any) -> str:
        broken.append(f"line {row.number} must have {row.expected_columns} columns, got {row.actual_columns}")
        return "error"

    try:
        table = pa.csv.read_csv(
            path,
            # One thread: only then is a broken line's number known.
            pa.csv.ReadOptions(use_threads=False, block_size=min(path.stat().st_size + 1, _LARGEST_BLOCK)),
            pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=refuse),
            pa.csv.ConvertOptions(
                include_columns=_to_read(known, wanted),
                column_types=dict.fromkeys(ids, pa.string()),
                strings_can_be_null=True,
            ),
        )
    except (pa.ArrowException, OSError) as error:
        # Arrow's own message may hold a value.
        reason = broken[0] if broken else f"it is not a table of text: {type(error).__name__}"
        raise FileRefused(f"{path}: {reason}; correct the file") from None
    for name in ids.intersection(table.column_names):
        table = table.set_column(table.column_names.index(name), name, _as_ids(table[name]))
    return table


def _as_ids(text: Any) -> Any:
    """A column of text as whole numbers where that loses nothing."""
    pa = arrow()
    try:
        numbers = text.cast(pa.int64())
    except pa.ArrowInvalid:
        return text
    return numbers if numbers.cast(pa.string()) == text else text


def _to_read(known: list[str], wanted: set[str]) -> list[str] | None:
    is_complete = all(name in known for name in wanted if ":" not in name)  # count:position is no column
    return [name for name in known if name in wanted] if is_complete else None
