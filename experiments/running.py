"""The sweeps of experiments, and the files of their results."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dpfuse
from dpfuse.sweeps import Recording, SweepResult
from dpfuse.sweeps.sweep import has_gpu


def train_all(
    recordings: Mapping[str, Recording], settings: Mapping[str, Mapping[str, Any]], *, at_once: int = 1, **options: Any
) -> SweepResult:
    """The designs of all settings, by `dpfuse.sweep`; what was made before is read from its folder.

    Args:
        at_once: groups that share a GPU, and without one processes; with one, groups run as they do by default.
    """
    if at_once > 1 and not has_gpu():
        options["workers"] = at_once
    elif at_once > 1:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # this process leaves the GPU to theirs
        options["gpus"] = 1 / at_once
    result = dpfuse.sweep(recordings, None, settings=settings, progress=True, **options)
    if result.failures:
        raise SystemExit("Run the same command again for the designs that failed.")
    return result


def write_json(path: Path, content: Any) -> None:
    """Write the file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(f".{os.getpid()}.part")
    whole.write_text(json.dumps(content))
    whole.replace(path)


def rounded(value: Any) -> Any:
    """The value with six digits, also within lists and dictionaries."""
    if isinstance(value, dict):
        return {name: rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
