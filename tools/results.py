"""Results files: the numbers of an experiment or benchmark, and the runs that made them.

`experiments/NAME/results.json` and `benchmarks/results/NAME.json` have the same form:

    {"runs": [{"part": null, "command": ..., "commit": ..., "recorded_in": ..., "seeds": [...],
               "hardware": {...}, "versions": {...}, "note": null}],
     "results": {...}}

A run whose part is null made all results, or all that no other run names. Null stands where something is not known;
a run whose commit is not in the history has instead the one that added its numbers, `recorded_in`. A note says in what
the numbers differ from what the command gives now.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIELDS = ("part", "command", "commit", "recorded_in", "seeds", "hardware", "versions", "note")
PACKAGES = ("jax", "equinox", "optax", "numpy", "opendp")


def results_path(name: str) -> Path:
    """The results file of an experiment, or else of a benchmark."""
    experiment = ROOT / "experiments" / name
    return experiment / "results.json" if experiment.is_dir() else ROOT / "benchmarks/results" / f"{name}.json"


def read_results(name: str) -> dict[str, Any]:
    """The numbers of an experiment or benchmark."""
    return dict(json.loads(results_path(name).read_text())["results"])


def read_runs(name: str) -> list[dict[str, Any]]:
    """The runs that made them."""
    return list(json.loads(results_path(name).read_text())["runs"])


def write_results(
    path: Path,
    results: dict[str, Any],
    *,
    command: str,
    seeds: Sequence[int],
    packages: Sequence[str] = (),
    devices: Sequence[str] | None = None,
    part: str | None = None,
    note: str | None = None,
    machine: dict[str, Any] | None = None,
) -> None:
    """Write a results file.

    Args:
        path: of the file.
        results: the numbers; with `part`, those of the part.
        command: what to type in the root of the repository to run it again.
        seeds: of everything random.
        packages: whose versions matter besides those of `PACKAGES`.
        devices: what JAX computed on, if not what this process has.
        part: replaces this key of the results alone, and the run that made it; the rest of the file stays.
        note: in what the run differs from the command.
        machine: what `describe_machine` gave where the numbers were made; by default this machine is described.
    """
    run = {"part": part, "command": command, "commit": None, "recorded_in": None, "seeds": list(seeds)}
    run |= describe_machine(devices, packages) if machine is None else machine
    run |= {"note": note}
    whole: dict[str, Any] = {"runs": [run], "results": results}
    if part is not None:
        whole = json.loads(path.read_text())
        whole["runs"] = [*(other for other in whole["runs"] if other["part"] != part), run]
        whole["results"][part] = results
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_text(whole))


def describe_machine(devices: Sequence[str] | None = None, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Commit, hardware and versions of this process. Where there is no repository, DPFUSE_COMMIT names the commit."""
    versions = {"python": platform.python_version()}
    for name in (*PACKAGES, *packages):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # a machine that only trains has no opendp
            continue
    return {"commit": current_commit(), "hardware": hardware(devices), "versions": versions}


def to_text(content: Any) -> str:
    """JSON with a list of plain values on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    return re.sub(r"\[\n([^\[\]{}]+)\]", _on_one_line, text) + "\n"


def _on_one_line(found: re.Match[str]) -> str:
    return "[" + ", ".join(value.strip() for value in found[1].split(",\n")) + "]"


def current_commit(checkout: Path = ROOT) -> str:
    """The commit of the working tree, or of another checkout.

    It ends in `-dirty` if files differ from it, other than results files, which a long run writes again and again.
    """
    if checkout == ROOT and (named := os.environ.get("DPFUSE_COMMIT")):
        return named

    def ask_git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=checkout, capture_output=True, text=True, check=True).stdout

    but_results = [":(exclude)benchmarks/results", ":(exclude)experiments/*/results.json"]
    changed = ask_git("diff", "--name-only", "HEAD", "--", ".", *but_results)
    return ask_git("rev-parse", "HEAD").strip() + ("-dirty" if changed.strip() else "")


def hardware(devices: Sequence[str] | None = None) -> dict[str, Any]:
    """Cores, processor, and what JAX computes on: by default the devices of this process."""
    if devices is None:
        import jax

        devices = sorted({device.device_kind for device in jax.devices()})
    return {"cores": os.cpu_count(), "processor": _processor(), "devices": list(devices)}


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
