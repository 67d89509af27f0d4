"""Files of columns (text, CSV, Parquet): how one is laid out, and its columns in batches, in bounded memory."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal, cast

from dpfuse._extras import requires_extra
from dpfuse.errors import FileRefused

_BLOCK_BYTES = 1 << 21
_BATCH_ROWS = 1 << 18
_SUFFIXES = (".txt", ".csv", ".csv.gz", ".parquet")

Advance = Callable[[int], None]

# What reading a damaged file raises, compressed or not, besides the errors of pyarrow.
READ_ERRORS = (OSError, EOFError, zlib.error)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns that a reader takes from a file, in lower case and with `_` for a blank. Others are never parsed.

    Attributes:
        key: a file without this column is of another kind.
        needed: columns without which a file of this kind is refused.
        optional: columns that are read where they are present.
        headerless: the columns of files without a header, one for each number of columns.
    """

    key: str
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    headerless: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a file is laid out.

    Attributes:
        kind: `text` separates columns by blanks, `csv` by the delimiter.
        names: the names of its columns, in their order and spelling.
        wanted: what is read of them.
        has_header: whether the first line holds the names.
        delimiter: of a CSV file.
    """

    kind: Literal["text", "csv", "parquet"]
    names: tuple[str, ...]
    wanted: Wanted
    has_header: bool = True
    delimiter: str = ","

    @property
    def columns(self) -> dict[str, str]:
        """The spelling in the file of each column that is read, by its name in lower case."""
        spelt = {_plain(name): name for name in reversed(self.names)}
        return {name: spelt[name] for name in (*self.wanted.needed, *self.wanted.optional) if name in spelt}


def arrow() -> ModuleType:
    """The package pyarrow with the parts that are used here."""
    with requires_extra("data", "reading recordings"):
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.feather
        import pyarrow.parquet  # noqa: F401
    return pyarrow  # type: ignore[no-any-return]


def detect(path: Path, wanted: Wanted) -> Layout | None:
    """The layout of a file, or None if it is of another kind."""
    if not path.name.lower().endswith(_SUFFIXES):
        return None
    if path.suffix.lower() == ".parquet":
        pa = arrow()
        try:
            names = tuple(pa.parquet.read_schema(path).names)
        except (pa.ArrowInvalid, OSError):
            raise FileRefused(f"{path} is not a Parquet file; fetch it again") from None
        return _with_columns(path, Layout(kind="parquet", names=names, wanted=wanted))
    try:
        with open_bytes(path) as (file, _):
            line = file.readline(_BLOCK_BYTES).decode("utf-8-sig", errors="replace")
    except READ_ERRORS:
        raise FileRefused(f"{path} cannot be read: it is damaged or cut short; fetch it again") from None
    if not line:
        raise FileRefused(f"{path} is empty; fetch it again")
    delimiter = max(",;", key=line.count)
    kind: Literal["csv", "text"] = "csv" if delimiter in line else "text"
    fields = next(csv.reader([line], delimiter=delimiter), []) if kind == "csv" else line.split()
    if not fields or not _is_number(fields[0]):
        return _with_columns(path, Layout(kind=kind, names=tuple(fields), wanted=wanted, delimiter=delimiter))
    if not wanted.headerless:
        return None
    for names in wanted.headerless:
        if len(fields) == len(names):
            return Layout(kind=kind, names=names, wanted=wanted, has_header=False, delimiter=delimiter)
    known = " or ".join(str(len(names)) for names in wanted.headerless)
    raise FileRefused(f"{path}, line 1: a file without a header must have {known} columns, got {len(fields)}")


@contextmanager
def open_bytes(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The content of a file, which may be compressed by gzip, and the file on disk."""
    with path.open("rb") as raw:
        if path.suffix.lower() != ".gz":
            yield raw, raw
            return
        with gzip.open(raw) as content:
            yield cast(IO[bytes], content), raw


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
    with open_bytes(path) as (content, raw):
        table = pa.csv.open_csv(
            _Lines(content, raw, advance, squeeze=layout.kind == "text"),
            pa.csv.ReadOptions(
                block_size=_BLOCK_BYTES, column_names=layout.names, skip_rows=1 if layout.has_header else 0
            ),
            pa.csv.ParseOptions(delimiter=layout.delimiter if layout.kind == "csv" else " "),
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
    with open_bytes(path) as (content, _):
        text = io.TextIOWrapper(content, encoding="utf-8-sig", errors="replace", newline="\n")
        for number, line in enumerate(text, 1):
            if not line.strip() or (number == 1 and layout.has_header):
                continue
            fields = next(csv.reader([line], delimiter=layout.delimiter)) if layout.kind == "csv" else line.split()
            if len(fields) != len(layout.names):
                yield f"line {number}", f"must have {len(layout.names)} columns, got {len(fields)}"
                continue
            values = dict(zip(layout.names, fields, strict=True))
            yield f"line {number}", {name: values[spelling] for name, spelling in layout.columns.items()}


def _with_columns(path: Path, layout: Layout) -> Layout | None:
    missing = [name for name in layout.wanted.needed if name not in layout.columns]
    if layout.wanted.key in missing:
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
    """A file that reports the bytes read from disk. With `squeeze` it has one blank between columns, no other."""

    def __init__(self, content: IO[bytes], raw: IO[bytes], advance: Advance, *, squeeze: bool) -> None:
        self._content, self._raw, self._advance, self._squeeze = content, raw, advance, squeeze
        self._rest, self._at = b"", 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """At most `size` bytes; with `squeeze`, whole lines."""
        data = self._content.read(size - len(self._rest) if self._squeeze and size > 0 else size)
        at, self._at = self._at, self._raw.tell()
        self._advance(self._at - at)
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
