"""What a worker of a sweep does: it trains and tests one group of designs, and hands the results back.

The function is pure: equal arguments give equal designs and reports, so a group that is run again does no harm. Nothing
here knows who calls it: this process, another one, or a task of Ray.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfuse.errors import TrainingDiverged
from dpfuse.guarantee import Guarantee
from dpfuse.sweeps.fingerprints import plain
from dpfuse.sweeps.grid import OwnTest, RecordingParts
from dpfuse.sweeps.reports import report_to_dict

Pair = tuple[Guarantee | None, int]
# Columns of the table of which the worker knows nothing.
_TABLE = {"recording", "setting", "order", "budget", "adjacency", "accounting", "period", "seed", "design"}


@dataclass(frozen=True, kw_only=True)
class GroupWork:
    """Designs to train side by side.

    Attributes:
        pairs: guarantee and seed of each.
        options: arguments of `dpfuse.train`; `evaluation`: arguments of `dpfuse.evaluate`.
        test: of the user's own; None for none.
        cores: devices that share a batch; 0 to use JAX as it is in this process.
        on_gpu: whether to use a GPU.
    """

    pairs: Sequence[Pair]
    options: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    test: OwnTest | None = None
    cores: int = 0
    on_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """What became of each design of a group.

    Attributes:
        designs: bytes of each design file; None for one that failed.
        reports: as `report_to_dict` gives them.
        rows: numbers about the training of each.
        errors: why a design failed; empty for the others.
        warned: warnings of training.
    """

    designs: Sequence[bytes | None]
    reports: Sequence[dict[str, Any] | None]
    rows: Sequence[dict[str, Any]]
    errors: Sequence[str]
    warned: Sequence[str] = ()

    @classmethod
    def failed(cls, count: int, reason: str) -> GroupOutcome:
        """None of the designs came about."""
        return cls(designs=[None] * count, reports=[None] * count, rows=[{}] * count, errors=[reason] * count)


def environment_of(cores: int, on_gpu: bool) -> dict[str, str]:
    """Environment variables of a worker process, which JAX reads when it is imported.

    XLA's own threads are off: how many there are changes sums in their last bits, and each group has its own core.
    """
    if on_gpu:
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(cores),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip(),
    }


def keep_programs() -> None:
    """Let this user's processes share compiled programs: groups of one size need the same one."""
    import jax

    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(home / "dpfuse" / "programs"))  # type: ignore[no-untyped-call]
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)  # type: ignore[no-untyped-call]


def run_group(parts: RecordingParts, work: GroupWork) -> GroupOutcome:
    """Train and test the designs. An error becomes the reason why they failed; it is not raised."""
    try:
        if work.cores:
            keep_programs()
            _check_devices(work)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = _train_and_test(parts, work)
        warned = [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]
        return GroupOutcome(**vars(outcome) | {"warned": warned})
    except Exception as error:
        return GroupOutcome.failed(len(work.pairs), _reason(error))


def _check_devices(work: GroupWork) -> None:
    import jax

    if not work.on_gpu and jax.local_device_count() != work.cores:
        raise RuntimeError(
            f"a worker must have {work.cores} JAX devices, got {jax.local_device_count()}; start it in a new process"
        )


def _train_and_test(parts: RecordingParts, work: GroupWork) -> GroupOutcome:
    try:
        return _together(parts, work)
    except TrainingDiverged as error:
        if len(work.pairs) == 1:
            return GroupOutcome.failed(1, _reason(error))
    # One that diverges stops its whole group. Trained alone, it stops only itself.
    each = [_train_and_test(parts, GroupWork(**vars(work) | {"pairs": [pair]})) for pair in work.pairs]
    return GroupOutcome(
        designs=[one.designs[0] for one in each],
        reports=[one.reports[0] for one in each],
        rows=[one.rows[0] for one in each],
        errors=[one.errors[0] for one in each],
    )


def _together(parts: RecordingParts, work: GroupWork) -> GroupOutcome:
    import jax

    from dpfuse.evaluation import evaluate
    from dpfuse.training.train import train_pairs

    began = time.perf_counter()
    designs = train_pairs(parts.training, parts.validation, work.pairs, **work.options)
    trained = time.perf_counter()
    reports = [evaluate(design, parts.test, **work.evaluation) for design in designs]
    own = [{} if work.test is None else plain(dict(work.test(design, parts.test))) for design in designs]
    tested = time.perf_counter()
    device = f"{jax.local_device_count()} x {jax.devices()[0].device_kind}"
    rows, files = [], []
    with tempfile.TemporaryDirectory() as folder:
        for design, report, columns in zip(designs, reports, own, strict=True):
            path = Path(folder) / "design.dpfuse"
            design.save(path)
            files.append(path.read_bytes())
            structure = design.structure
            rows.append(
                {
                    "spending": structure.spending,
                    "method": design.training["method"],
                    "horizon": structure.horizon,
                    "recurrent_filter": structure.recurrent_filter,
                    "features": structure.features,
                    "dimension": structure.dimension,
                    "validation_mse": design.training["validation_mse"],
                    "design_fingerprint": design.fingerprint,
                    "trained_with": len(designs),
                    "training_s": round((trained - began) / len(designs), 3),
                    "test_s": round((tested - trained) / len(designs), 3),
                    "device": device,
                }
            )
            _check_columns(columns, {*rows[-1], *report.to_row(), *_TABLE})
            rows[-1] |= columns
    return GroupOutcome(
        designs=files,
        reports=[report_to_dict(report) for report in reports],
        rows=rows,
        errors=[""] * len(designs),
    )


def _check_columns(columns: Mapping[str, Any], taken: set[str]) -> None:
    if doubled := sorted(taken & set(columns)):
        raise ValueError(f"test must return names that the table does not have yet, got {doubled[0]!r}")
    try:
        json.dumps(columns)
    except TypeError as error:
        raise TypeError(f"test must return numbers, text or other values that JSON has: {error}") from error


def _reason(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
