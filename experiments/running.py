"""Jobs of an experiment, each in a process of its own, several at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dpfuse
from dpfuse.sweeps import Recording, SweepResult


def train_all(
    recordings: Mapping[str, Recording], settings: Mapping[str, Mapping[str, Any]], *, at_once: int = 1, **options: Any
) -> SweepResult:
    """The designs of all settings, by `dpfuse.sweep`; what was made before is read from its folder.

    Args:
        at_once: groups that share a GPU; with one, groups run as they do by default.
    """
    if at_once > 1:
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # this process leaves the GPU to theirs
        options["gpus"] = 1 / at_once
    result = dpfuse.sweep(recordings, None, settings=settings, progress=True, **options)
    if result.failures:
        raise SystemExit("Run the same command again for the designs that failed.")
    return result


def run_jobs(
    names: Sequence[str],
    command_of: Callable[[str], Sequence[str]],
    *,
    at_once: int = 1,
    until_s: float | None = None,
) -> list[str]:
    """Run a command for each job; returns the jobs that failed or were left out.

    Args:
        names: of the jobs, in the order in which they start.
        command_of: arguments of Python for the job of that name.
        at_once: how many run at the same time.
        until_s: after so many seconds no job is started, and those that run are ended.
    """
    waiting, running, failed, began = list(names), {}, [], time.perf_counter()

    def is_late() -> bool:
        return until_s is not None and time.perf_counter() - began > until_s

    while (waiting and not is_late()) or running:
        while waiting and len(running) < at_once and not is_late():
            name = waiting.pop(0)
            output = None if at_once == 1 else subprocess.PIPE
            running[name] = subprocess.Popen([sys.executable, *command_of(name)], stderr=output)
        for name, process in list(running.items()):
            if is_late():
                process.kill()
            elif process.poll() is None:
                continue
            _, errors = process.communicate()
            del running[name]
            failed += [name] if process.returncode else []
            done, minutes = len(names) - len(waiting) - len(running), (time.perf_counter() - began) / 60
            word = "failed" if process.returncode else "done"
            print(f"{done} of {len(names)}, {minutes:.1f} min, {word}: {name}", file=sys.stderr, flush=True)
            if process.returncode and errors:
                print(errors.decode()[-2000:], file=sys.stderr, flush=True)
        time.sleep(0.1)
    return [*failed, *waiting]


def write_json(path: Path, content: Any) -> None:
    """Write the file at once: a job whose file exists is done."""
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
