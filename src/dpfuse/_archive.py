"""Files that hold no code: a zip of .npy arrays, without pickle, and one metadata.json."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfuse.errors import FileRefused

# Zip entries have a time stamp. A fixed one makes files of equal content equal in bytes, so that they can be hashed.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write(path: str | os.PathLike[str], metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the archive. A reader sees the old file or the whole new one: the file is renamed when it is complete."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    with zipfile.ZipFile(partial, "w") as archive:
        _add(archive, "metadata.json", json.dumps(metadata, indent=2, sort_keys=True).encode())
        for name in sorted(arrays):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(arrays[name], order="C"), allow_pickle=False)
            _add(archive, f"{name}.npy", buffer.getvalue())
    partial.replace(target)


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The metadata and arrays of an archive whose metadata name this `kind`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no {kind} file at {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            metadata = json.loads(archive.read("metadata.json"))
            arrays = {
                name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
                for name in archive.namelist()
                if name.endswith(".npy")
            }
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
    if not isinstance(metadata, dict) or metadata.get("kind") != kind:
        raise FileRefused(f"{path} must hold a {kind}, its metadata says otherwise")
    return metadata, arrays


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)
