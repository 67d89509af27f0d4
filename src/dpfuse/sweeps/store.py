"""The folder of a sweep: a file for each group that is done, and the designs beside it.

    groups/FINGERPRINT.json    numbers and reports of the designs of one group; written last, at once
    designs/NAME.dpfuse        the designs

A design is done if a group's file has its fingerprint and its own file is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfuse.errors import FileRefused
from dpfuse.sweeps.grid import Case
from dpfuse.sweeps.worker import GroupOutcome

_VERSION = 1


class SweepStore:
    """Reads and writes the folder of a sweep. Files appear whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("groups", "designs"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[str, dict[str, Any]]:
        """What is done, by fingerprint: `row`, `report` and `design`, the path of its file."""
        found: dict[str, dict[str, Any]] = {}
        for path in sorted((self.folder / "groups").glob("*.json")):
            try:
                content = json.loads(path.read_text())
                is_current = content["version"] == _VERSION
                entries = content["designs"] if is_current else {}
            except (ValueError, KeyError, TypeError) as error:
                raise FileRefused(
                    f"{path} is not a file of a sweep; delete it, and its designs are trained again"
                ) from error
            if not is_current:
                raise FileRefused(f"{path} has version {content['version']!r}, this is {_VERSION}; use another folder")
            for fingerprint, entry in entries.items():
                if (self.folder / entry["design"]).is_file():
                    found[fingerprint] = entry
        return found

    def write(self, cases: Sequence[Case], outcome: GroupOutcome) -> None:
        """Write the designs of a group that came about, then its file."""
        done = {}
        for case, content, row, report in zip(cases, outcome.designs, outcome.rows, outcome.reports, strict=True):
            if content is None:
                continue
            design = f"designs/{_file_name(case)}.dpfuse"
            _write(self.folder / design, content)
            done[case.fingerprint] = {"design": design, "row": row, "report": report}
        if done:
            name = hashlib.sha256("".join(sorted(done)).encode()).hexdigest()
            text = json.dumps({"version": _VERSION, "designs": done})
            _write(self.folder / "groups" / f"{name}.json", text.encode())


class TemporaryFolder:
    """A folder that is deleted with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="dpfuse-sweep-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _file_name(case: Case) -> str:
    """Words for people, and enough of the fingerprint to be unique."""
    words = re.sub(r"[^\w.=-]+", "-", case.label).strip("-")[:120]
    return f"{words}-{case.fingerprint[:12]}"


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_bytes(content)
    partial.replace(path)
