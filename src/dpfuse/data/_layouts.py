"""The layouts in which the trajectories were published, and the columns of a file in batches."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from dpfuse._extras import requires_extra
from dpfuse.errors import FileRefused

# The columns that are read. Other columns are never parsed.
NEEDED = ("vehicle_id", "frame_id", "global_time", "local_y", "v_vel", "lane_id")
SITE = "location"

# The oldest release has no header.
_HEADERLESS = (
    *("vehicle_id", "frame_id", "total_frames", "global_time", "local_x", "local_y", "global_x", "global_y"),
    *("v_length", "v_width", "v_class", "v_vel", "v_acc", "lane_id", "preceding", "following"),
    *("space_headway", "time_headway"),
)
_BLOCK_BYTES = 1 << 21
_BATCH_ROWS = 1 << 18
_SUFFIXES = (".txt", ".csv", ".parquet")

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file is laid out.

    Attributes:
        kind: `text` separates columns by blanks, `csv` by commas.
        names: the names of its columns, in their order and spelling.
        has_header: whether the first line holds the names.
    """

    kind: Literal["text", "csv", "parquet"]
    names: tuple[str, ...]
    has_header: bool = True

    @property
    def columns(self) -> dict[str, str]:
        """The spelling in the file of each column that is read, by its name in lower case."""
        spelt = {_plain(name): name for name in reversed(self.names)}
        return {name: spelt[name] for name in (*NEEDED, SITE) if name in spelt}


def arrow() -> ModuleType:
    """The package pyarrow with the parts that are used here."""
    with requires_extra("data", "reading recordings"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.parquet  # noqa: F401
    return pyarrow  # type: ignore[no-any-return]


def detect(path: Path) -> Layout | None:
    """The layout of a file, or None if it holds no vehicle trajectories."""
    if path.suffix.lower() not in _SUFFIXES:
        return None
    if path.suffix.lower() == ".parquet":
        pa = arrow()
        try:
            return _with_columns(path, Layout(kind="parquet", names=tuple(pa.parquet.read_schema(path).names)))
        except (pa.ArrowInvalid, OSError) as error:
            raise FileRefused(f"{path} is not a Parquet file: {error}") from error
    with path.open("rb") as file:
        line = file.readline(_BLOCK_BYTES).decode("utf-8-sig", errors="replace")
    if not line:
        raise FileRefused(f"{path} is empty; fetch it again")
    fields = next(csv.reader([line]), []) if "," in line else line.split()
    kind: Literal["csv", "text"] = "csv" if "," in line else "text"
    if not fields or not _is_number(fields[0]):
        return _with_columns(path, Layout(kind=kind, names=tuple(fields)))
    if len(fields) != len(_HEADERLESS):
        raise FileRefused(
            f"{path}, line 1: a file without a header must have {len(_HEADERLESS)} columns, got {len(fields)}"
        )
    return Layout(kind=kind, names=_HEADERLESS, has_header=False)


def batches(path: Path, layout: Layout, advance: Advance) -> Iterator[dict[str, Any]]:
    """Batches of the columns that are read, as Arrow arrays. `advance` is called with the bytes of each batch."""
    pa, columns = arrow(), layout.columns
    if layout.kind == "parquet":
        with pa.parquet.ParquetFile(path) as file:
            bytes_a_row = path.stat().st_size / max(1, file.metadata.num_rows)
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(columns.values())):
                yield {name: batch.column(spelling) for name, spelling in columns.items()}
                advance(round(batch.num_rows * bytes_a_row))
        return
    with path.open("rb") as raw:
        table = pa.csv.open_csv(
            _Lines(raw, advance, squeeze=layout.kind == "text"),
            pa.csv.ReadOptions(
                block_size=_BLOCK_BYTES, column_names=layout.names, skip_rows=1 if layout.has_header else 0
            ),
            pa.csv.ParseOptions(delimiter="," if layout.kind == "csv" else " "),
            # As text, because numbers may have thousands separators and errors must be found by line.
            pa.csv.ConvertOptions(
                include_columns=list(columns.values()), column_types=dict.fromkeys(columns.values(), pa.string())
            ),
        )
        for batch in table:
            yield {name: batch.column(spelling) for name, spelling in columns.items()}


def records(path: Path, layout: Layout) -> Iterator[tuple[str, dict[str, str] | str]]:
    """Each row's line and values as text, or what is wrong with its columns. Slow; used to find a wrong row."""
    if layout.kind == "parquet":
        number = 0
        for batch in batches(path, layout, lambda _: None):
            for row in zip(*(column.to_pylist() for column in batch.values()), strict=True):
                number += 1
                yield f"row {number}", dict(zip(batch, map(str, row), strict=True))
        return
    with path.open(encoding="utf-8-sig", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or (number == 1 and layout.has_header):
                continue
            fields = next(csv.reader([line])) if layout.kind == "csv" else line.split()
            if len(fields) != len(layout.names):
                yield f"line {number}", f"must have {len(layout.names)} columns, got {len(fields)}"
                continue
            values = dict(zip(layout.names, fields, strict=True))
            yield f"line {number}", {name: values[spelling] for name, spelling in layout.columns.items()}


def _with_columns(path: Path, layout: Layout) -> Layout | None:
    missing = [name for name in NEEDED if name not in layout.columns]
    if "vehicle_id" in missing:
        return None
    if missing:
        raise FileRefused(f"{path}, line 1: the columns {', '.join(missing)} are missing in the header")
    return layout


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return True


class _Lines(io.RawIOBase):
    """A file that reports the bytes read. With `squeeze` it has one blank between columns and none around them."""

    def __init__(self, raw: io.BufferedReader, advance: Advance, *, squeeze: bool) -> None:
        self._raw, self._advance, self._squeeze = raw, advance, squeeze
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; with `squeeze`, whole lines."""
        data = self._raw.read(size - len(self._rest) if self._squeeze and size > 0 else size)
        self._advance(len(data))
        if not self._squeeze:
            return data
        data, is_last = self._rest + data, not data
        end = len(data) if is_last else data.rfind(b"\n") + 1
        self._rest = data[end:]
        if not end and not is_last:
            raise FileRefused(f"{self._raw.name}: a line must be shorter than {size} bytes")
        return _squeeze(data[:end])


def _squeeze(text: bytes) -> bytes:
    text = b"\n" + text.removeprefix(codecs.BOM_UTF8).replace(b"\t", b" ").replace(b"\r", b"")
    while b"  " in text:
        text = text.replace(b"    ", b" ").replace(b"  ", b" ")
    return text.replace(b"\n ", b"\n").replace(b" \n", b"\n")[1:].rstrip(b" ")
