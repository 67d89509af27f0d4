"""Files that hold no code: a zip of .npy arrays, without pickle, and one metadata.json.

A file may come from a stranger. Sizes are read from headers and compared with limits before memory is taken: an archive
unpacks to at most `_FREE` bytes plus `_RATIO` times its own size.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpfuse.errors import FileRefused

# Zip entries have a time stamp. A fixed one makes files of equal content equal in bytes, so that they can be hashed.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_METADATA = "metadata.json"
_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}\.npy")
_FREE, _RATIO = 2**26, 50
_MAX_ENTRIES, _MAX_METADATA, _MAX_DEPTH = 10_000, 2**22, 32
_MAX_HEADER, _MAX_AXES = 10_000, 32
# What NumPy writes for an array of numbers.
_MAGIC = b"\x93NUMPY\x01\x00"
_HEADER = re.compile(
    rb"\{'descr': '([<>|](?:b1|[iu][1248]|f[248]))', 'fortran_order': False, "
    rb"'shape': \(((?:[0-9]{1,19}, ?)*(?:[0-9]{1,19})?)\), \} *\n"
)
_CHUNK = 2**20


class ArrayType(NamedTuple):
    """Shape and type of an array, as its header states them."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def write(path: str | os.PathLike[str], metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the archive. A reader sees the old file or the whole new one: the file is renamed when it is complete."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    if not _write(partial, metadata, arrays, zipfile.ZIP_DEFLATED):
        _write(partial, metadata, arrays, zipfile.ZIP_STORED)
    partial.replace(target)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The metadata and arrays of an archive whose metadata name this `kind`."""
    metadata, _ = read_headers(path, kind)
    return metadata, read_arrays(path, kind)


def read_headers(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, ArrayType]]:
    """The metadata, and the shape and type of each array; no array is read."""
    with _opened(path, kind) as (archive, entries):
        metadata = _parse_metadata(archive, entries.pop(_METADATA))
        types = {}
        for name, entry in entries.items():
            with archive.open(entry) as file:
                types[name.removesuffix(".npy")] = _read_header(file, entry)
    if not isinstance(metadata, dict) or metadata.get("kind") != kind:
        raise FileRefused(f"{path} must hold a {kind}, its metadata says otherwise")
    return metadata, types


def read_arrays(path: str | os.PathLike[str], kind: str) -> dict[str, NDArray[Any]]:
    """The arrays alone."""
    with _opened(path, kind) as (archive, entries):
        return {name.removesuffix(".npy"): _read_array(archive, entries[name]) for name in entries.keys() - {_METADATA}}


def digest_of(path: str | os.PathLike[str], kind: str, without: Collection[str] = ()) -> str:
    """SHA-256 in hex of the metadata, apart from the fields `without`, and of every array with its name."""
    metadata, _ = read_headers(path, kind)
    kept = {name: value for name, value in metadata.items() if name not in without}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    with _opened(path, kind) as (archive, entries):
        for name in sorted(entries.keys() - {_METADATA}):
            entry = entries[name]
            digest.update(f"\n{name} {entry.file_size}\n".encode())
            with archive.open(entry) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _opened(path: str | os.PathLike[str], kind: str) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """The archive and its entries by name, whose sizes are within the limits."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no {kind} file at {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive, _check_entries(archive.infolist(), os.path.getsize(path))
    except (
        zipfile.BadZipFile,
        zlib.error,
        KeyError,
        ValueError,
        EOFError,
        OSError,
        RuntimeError,
        MemoryError,
    ) as error:
        raise FileRefused(f"{path} is not a dpfuse {kind} file: {error}") from error


def _check_entries(infos: list[zipfile.ZipInfo], file_size: int) -> dict[str, zipfile.ZipInfo]:
    entries = {info.filename: info for info in infos}
    if len(infos) > _MAX_ENTRIES or len(entries) != len(infos):
        raise ValueError(f"it must have at most {_MAX_ENTRIES} entries, each with a name of its own")
    if _METADATA not in entries or not all(name == _METADATA or _NAME.fullmatch(name) for name in entries):
        raise ValueError(f"its entries must be {_METADATA} and names that end in .npy")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in infos):
        raise ValueError("its entries must be stored or deflated")
    if not _may_unpack(sum(info.file_size for info in infos), file_size):
        raise ValueError(f"it would unpack to more than {_RATIO} times its size")
    return entries


def _may_unpack(size: int, file_size: int) -> bool:
    return size <= _FREE + _RATIO * file_size


def _parse_metadata(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    if entry.file_size > _MAX_METADATA:
        raise ValueError(f"its metadata must have at most {_MAX_METADATA} bytes, got {entry.file_size}")
    with archive.open(entry) as file:
        # With a size, the decompressor stops there whatever the content would unpack to.
        metadata = json.loads(file.read(entry.file_size))
    level = [metadata]
    for _ in range(_MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return metadata
    raise ValueError(f"its metadata must have at most {_MAX_DEPTH} levels")


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _read_header(file: IO[bytes], entry: zipfile.ZipInfo) -> ArrayType:
    """Shape and type of the array; its bytes follow in the file, and are exactly as many as the entry has left."""
    start = file.read(len(_MAGIC) + 2)
    if not start.startswith(_MAGIC):
        raise ValueError("its arrays must be of .npy version 1.0")
    # Not by NumPy, whose reader evaluates the header as Python and raises errors of many kinds.
    found = _HEADER.fullmatch(file.read(min(int.from_bytes(start[len(_MAGIC) :], "little"), _MAX_HEADER)))
    if found is None:
        raise ValueError("its arrays must be of numbers, in C order, with a shape of whole numbers")
    shape = tuple(int(size) for size in found[2].replace(b",", b" ").split())
    if len(shape) > _MAX_AXES:
        raise ValueError(f"its arrays must have at most {_MAX_AXES} axes")
    dtype = np.dtype(found[1].decode())
    if math.prod(shape) * dtype.itemsize != entry.file_size - file.tell():
        raise ValueError("an array must have the size that its header states")
    return ArrayType(shape, dtype)


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        array = np.empty(*_read_header(file, entry))
        content, start = array.reshape(-1).view(np.uint8), 0
        while start < len(content):
            if not (chunk := file.read(min(_CHUNK, len(content) - start))):
                raise EOFError("an array ends too soon")
            content[start : start + len(chunk)] = np.frombuffer(chunk, np.uint8)
            start += len(chunk)
    return array


def _write(path: Path, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], compression: int) -> bool:
    """Write the archive; False if its arrays are compressed so well that a reader would refuse it."""
    with zipfile.ZipFile(path, "w") as archive:
        _add(archive, _METADATA, json.dumps(metadata, indent=2, sort_keys=True).encode(), compression)
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(arrays[name], order="C"), allow_pickle=False)
            _add(archive, f"{name}.npy", buffer.getvalue(), compression)
        size = sum(info.file_size for info in archive.infolist())
    return _may_unpack(size, os.path.getsize(path))


def _add(archive: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = compression
    archive.writestr(entry, content)
