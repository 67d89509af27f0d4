"""Columns of results as a DataFrame, or as a CSV, JSON or Parquet file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfuse._extras import requires_extra
from dpfuse.errors import MissingExtra

Columns = Mapping[str, Sequence[Any]]


def to_columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Columns from rows; a row that lacks a column has None in it."""
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    return {name: [row.get(name) for row in listed] for name in names}


def to_frame(columns: Columns) -> Any:
    """The DataFrame of polars or, if that is not installed, of pandas."""
    for package in ("polars", "pandas"):
        try:
            return import_module(package).DataFrame(dict(columns))
        except ImportError:
            continue
    raise MissingExtra("a DataFrame needs polars or pandas: pip install polars")


def write_columns(columns: Columns, path: str | os.PathLike[str]) -> None:
    """Write a file of the kind that its name ends with: .csv, .json (a list of rows) or .parquet."""
    target, rows = Path(path), list(zip(*columns.values(), strict=True))
    if target.suffix not in (".csv", ".json", ".parquet"):
        raise ValueError(f"path must end with .csv, .json or .parquet, got {target.name!r}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".csv":
        with target.open("w", newline="") as file:
            csv.writer(file).writerows([list(columns), *rows])
    elif target.suffix == ".json":
        target.write_text(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1) + "\n")
    else:
        with requires_extra("data", "a Parquet file"):
            import pyarrow
            from pyarrow import parquet
        parquet.write_table(pyarrow.table(dict(columns)), target)
