"""Files from strangers: limits are checked by headers, before memory is taken."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import dpfuse
from dpfuse import _archive
from dpfuse.errors import FileRefused
from support.designs import busy_data, make_design

# Runs in a process of its own: what it may allocate is limited, and its peak is that of the hostile files alone.
_OPEN_ALL = """
import json, resource, sys
import dpfuse
from dpfuse.errors import FileRefused
kinds = {"estimator": dpfuse.RemoteEstimator.load, "design": dpfuse.load, "recording": dpfuse.Trajectories.load}
folder, *names = sys.argv[1:]
for kind, load in kinds.items():
    load(f"{folder}/good.{kind}")
held = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (held + 2**30, held + 2**30))
for name in names:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        kinds[name.rpartition(".")[2]](f"{folder}/{name}")
        answer = "taken"
    except FileRefused as error:
        answer = str(error)
    print(json.dumps([name, answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak]), flush=True)
"""
_ALLOWED_KB = 100 * 1024


def write_zip(path, entries, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(name, content)


def as_npy(array):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def header_of(shape, dtype="<f4"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


def header_with(text):
    """The start of an array's file with any text as its header."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def entries_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def edited(path, structure=None, **metadata):
    """The metadata of a file with some fields changed."""
    content = json.loads(entries_of(path)["metadata.json"])
    return json.dumps(content | metadata | {"structure": content.get("structure", {}) | (structure or {})}).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three good files, and hostile ones made from them."""
    folder = tmp_path_factory.mktemp("files")
    design = make_design(spread=0.3)
    design.save(folder / "good.design")
    design.export_estimator(folder / "good.estimator")
    busy_data().save(folder / "good.recording")
    return folder


def make_hostile(folder: Path) -> None:
    huge = {"num_states": 10**9, "estimator_size": 10**9, "dimension": 10**9}
    for kind in ("design", "estimator"):
        good = folder / f"good.{kind}"
        # The sizes are in the metadata alone, and the file is a few hundred bytes.
        write_zip(folder / f"metadata.{kind}", [("metadata.json", edited(good, huge))])
        sizes = {"num_states": 2**20, "estimator_size": 2**14, "dimension": 2**20}
        write_zip(folder / f"allowed.{kind}", [("metadata.json", edited(good, sizes))])
        # A header states an array that the entry does not hold.
        write_zip(
            folder / f"header.{kind}",
            [("metadata.json", edited(good)), ("a.npy", header_of((2**40,)) + bytes(64))],
        )
    # Zeros compress a thousand times. Within the limit of the archive, shapes that do not fit are not read.
    zeros = as_npy(np.zeros((2**26,), np.float32))
    write_zip(folder / "zeros.design", [("metadata.json", edited(folder / "good.design")), ("a.npy", zeros)])
    write_zip(folder / "zeros.recording", [*entries_of(folder / "good.recording").items(), ("a.npy", zeros)])
    some = as_npy(np.zeros(2**24 - 2**12, np.float32))
    write_zip(folder / "within.design", [("metadata.json", edited(folder / "good.design")), ("a.npy", some)])
    # The directory states a small size, and the content unpacks to another.
    write_zip(folder / "lies.design", [("a.npy", zeros), ("metadata.json", edited(folder / "good.design"))])
    shrink_stated_size(folder / "lies.design", len(zeros), 2**20)
    deep = b'{"kind":"design","training":' + b"[" * 200 + b"]" * 200 + b"}"
    write_zip(folder / "deep.design", [("metadata.json", deep)])
    write_zip(folder / "deepest.design", [("metadata.json", b"[" * 10**5)])
    write_zip(folder / "text.design", [("metadata.json", b'{"kind":"design","training":"' + b"a" * 2**25 + b'"}')])
    write_zip(folder / "many.design", [("metadata.json", b"{}"), *((f"{n}.npy", b"") for n in range(20_000))])


def shrink_stated_size(path: Path, size: int, stated: int) -> None:
    content = path.read_bytes()
    assert content.count(struct.pack("<L", size)) == 2  # the local header and the directory
    path.write_bytes(content.replace(struct.pack("<L", size), struct.pack("<L", stated)))


def test_hostile_files_are_refused_before_memory_is_taken(folder):
    """Before the limits the first file took 13.6 GB and `zeros.design`, of 260 kB, took 256 MB."""
    make_hostile(folder)
    names = sorted(
        {path.name for path in folder.iterdir()} - {f"good.{k}" for k in ("design", "estimator", "recording")}
    )
    assert (folder / "metadata.estimator").stat().st_size < 1000
    assert (folder / "zeros.design").stat().st_size < 2**21
    run = subprocess.run(
        [sys.executable, "-c", _OPEN_ALL, folder, *names], capture_output=True, text=True, env=os.environ, timeout=120
    )
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [name for name, _, _ in answers] == names, run.stderr[-2000:]
    for name, answer, taken_kb in answers:
        assert name in answer and answer != "taken"
        assert taken_kb < _ALLOWED_KB, name


LONG_HEADER = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }" + b" " * 10_000 + b"\n"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("metadata.json", b"{}"), ("../a.npy", as_npy([1.0]))], "names that end in .npy"),
        ([("metadata.json", b"{}"), ("a\x1b[2J.npy", as_npy([1.0]))], "names that end in .npy"),
        ([("metadata.json", b"{}"), ("code.py", b"1")], "names that end in .npy"),
        ([("a.npy", as_npy([1.0]))], "must be metadata.json and"),
        ([("metadata.json", b" " * 2**22 + b"{}")], "its metadata must have at most"),
        ([(f"{number}.npy", b"") for number in range(10_001)], "at most 10000 entries"),
        ([("metadata.json", b"{}"), ("a.npy", as_npy(["text"]))], "must be of numbers"),
        ([("metadata.json", b"{}"), ("a.npy", as_npy(np.zeros(2, "f4,f4")))], "must be of numbers"),
        ([("metadata.json", b"{}"), ("a.npy", header_of((-1,)))], "a shape of whole numbers"),
        ([("metadata.json", b"{}"), ("a.npy", header_with(b"{'descr': ("))], "must be of numbers"),
        ([("metadata.json", b"{}"), ("a.npy", header_with(b"{'descr': __import__('os')}"))], "must be of numbers"),
        ([("metadata.json", b"{}"), ("a.npy", header_with(LONG_HEADER) + bytes(8))], "must be of numbers"),
        ([("metadata.json", b"{}"), ("a.npy", header_of((1,) * 33))], "at most 32 axes"),
        ([("metadata.json", b"{}"), ("a.npy", b"\x93NUMPY\x02\x00" + bytes(64))], "version 1.0"),
        ([("metadata.json", b"{}"), ("a.npy", as_npy([1.0]) + b"\0")], "the size that its header states"),
        ([("metadata.json", b"{}"), ("a.npy", as_npy([1.0])[:-1])], "the size that its header states"),
    ],
)
def test_what_is_not_a_table_of_numbers_is_refused(tmp_path, entries, message):
    write_zip(tmp_path / "a", entries)
    with pytest.raises(FileRefused, match=message):
        _archive.read_headers(tmp_path / "a", "design")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused(tmp_path):
    write_zip(tmp_path / "a", [("metadata.json", b"{}"), ("metadata.json", b"{}")])
    with pytest.raises(FileRefused, match="a name of its own"):
        _archive.read(tmp_path / "a", "design")


def test_a_file_that_names_a_part_in_control_characters_is_refused_without_them(folder, tmp_path):
    entries = entries_of(folder / "good.design") | {
        "metadata.json": edited(folder / "good.design", {"estimator": "\x1b[2J:a"})
    }
    write_zip(tmp_path / "a", entries.items())
    with pytest.raises(FileRefused) as caught:
        dpfuse.load(tmp_path / "a")
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("seed", [None, 0])
def test_what_is_written_is_never_refused_however_well_it_compresses(tmp_path, seed):
    array = np.zeros(2**25, np.float32) if seed is None else np.random.default_rng(seed).random(2**10)
    _archive.write(tmp_path / "a", {"kind": "design"}, {"a": array})
    again = _archive.read(tmp_path / "a", "design")[1]["a"]
    assert again.dtype == array.dtype and np.array_equal(again, array) and again.flags.writeable
    is_compressed = (tmp_path / "a").stat().st_size < array.nbytes
    assert is_compressed == (seed is not None)


def test_every_shape_and_type_of_number_comes_back(tmp_path):
    arrays = {
        "scalar": np.float32(3.0),
        "empty": np.zeros((0, 3)),
        "flags": np.array([True, False]),
        "ids": np.arange(6).reshape(2, 3).T,
        "big-endian": np.arange(3, dtype=">i4"),
    }
    _archive.write(tmp_path / "a", {"kind": "design"}, {name: np.asarray(array) for name, array in arrays.items()})
    again = _archive.read(tmp_path / "a", "design")[1]
    assert {name: (array.dtype, array.tolist()) for name, array in again.items()} == {
        name: (np.asarray(array).dtype, np.asarray(array).tolist()) for name, array in arrays.items()
    }


def test_a_damaged_array_is_refused(tmp_path):
    _archive.write(tmp_path / "a", {"kind": "design"}, {"a": np.zeros(10)})
    content = (tmp_path / "a").read_bytes()
    checksum = struct.pack("<L", zlib.crc32(as_npy(np.zeros(10))))
    assert checksum in content
    (tmp_path / "a").write_bytes(content.replace(checksum, bytes(4)))
    with pytest.raises(FileRefused, match="CRC"):
        _archive.read(tmp_path / "a", "design")


def test_origins_of_a_recording_have_a_row_for_each_run(folder, tmp_path):
    write_zip(tmp_path / "a", (entries_of(folder / "good.recording") | {"origins.npy": as_npy([[0, 0]] * 99)}).items())
    with pytest.raises(FileRefused, match="a row of two numbers for each run"):
        dpfuse.Trajectories.load(tmp_path / "a")
