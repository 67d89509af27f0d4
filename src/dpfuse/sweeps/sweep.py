"""`sweep`: every design of a grid, trained and tested."""

from __future__ import annotations

import inspect
import os
import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpfuse import _check
from dpfuse.errors import TrainingWarning
from dpfuse.guarantee import Guarantee
from dpfuse.sweeps.grid import (
    Case,
    OwnTest,
    Recording,
    expand_settings,
    load_parts,
    make_cases,
    make_groups,
    resolve_recordings,
)
from dpfuse.sweeps.on_ray import RayRunner
from dpfuse.sweeps.progress import SweepDisplay
from dpfuse.sweeps.result import SweepFailure, SweepResult
from dpfuse.sweeps.runners import InlineRunner, ProcessRunner, Runner
from dpfuse.sweeps.store import SweepStore, TemporaryFolder
from dpfuse.sweeps.worker import GroupOutcome, GroupWork

# On a CPU the time of a group grows with its designs, and the groups must fill the cores.
_USUAL_GROUP = 8


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where groups run, and what each of them gets; decides no result but for the last bits."""

    address: str | None
    workers: int
    cores: int
    gpus: float
    group_size: int | None

    def make_runner(self) -> Runner:
        if self.address is not None:
            return RayRunner(self.address, self.cores, self.gpus)
        return ProcessRunner(self.workers, self.cores, on_gpu=self.gpus > 0) if self.workers else InlineRunner()

    @property
    def words(self) -> str:
        if self.address is not None:
            return f"sweep on Ray at {self.address}"
        return f"sweep in {self.workers} processes" if self.workers else "sweep"


def sweep(
    recordings: Recording | Mapping[str, Recording],
    guarantees: Guarantee | Sequence[Guarantee | None] | None,
    *,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    test: OwnTest | None = None,
    out: str | os.PathLike[str] | None = None,
    address: str | None = None,
    workers: int | None = None,
    cores: int = 1,
    gpus: float = 0.0,
    group_size: int | None = None,
    progress: bool = False,
) -> SweepResult:
    """Every design of a grid, trained on its recording and tested on the part that it was not trained on.

    Designs that differ in budget, order and seed alone share one compiled program, and are trained side by side in
    groups. Groups run in processes of this machine, or on a Ray cluster. A sweep that was stopped goes on where it was,
    if it is called again with the same `out`; one with more seeds, budgets or settings trains only what is new.
    Equal arguments give equal bits, wherever the groups run, on equal kinds of devices.

    Args:
        recordings: one, or several by name: `Trajectories` that are split 80/10/10 along time, the path of such a
            recording, its three parts (training, validation, test), or a function without arguments that makes them.
        guarantees: what the designs guarantee; None among them for the non-private floor.
        seeds: of weights and noise.
        settings: by name, the arguments of `dpfuse.train` and, by their own names, the fields of `Architecture` and
            `Optimisation`. A list is a choice: every value of it is trained. With `guarantees`, `seeds`,
            `recordings` (names) or `evaluation` a setting has others than the sweep. By default one setting with the
            defaults.
        evaluation: arguments of `dpfuse.evaluate`.
        test: a function of yours that is called with each design and the test part of its recording, and returns more
            columns of the table: by name, numbers, text or other values that JSON has.
        out: the folder for designs, reports and the table; by default a temporary one that lives with the result.
        address: of a Ray cluster: `auto`, or `HOST:PORT`. By default this machine, without Ray.
        workers: processes at a time on this machine; 0 to train in this process. By default one for every `cores`
            cores, and on a GPU 0.
        cores: that a group uses, each with its share of every batch. Processes that use JAX themselves keep the
            devices that they have, with `workers=0`.
        gpus: that a group uses; 0.5 puts two groups on a GPU. Without an address they are processes that share the GPU
            of this machine, by default 1 / `gpus` at a time.
        group_size: most designs that are trained side by side. By default 8 on CPUs, and on GPUs as many as share a
            program.
        progress: show one progress bar on stderr.

    Returns:
        The designs, their reports and a table of both. Designs that failed are named in its `failures`, with a
        warning.
    """
    if test is not None and not inspect.isfunction(test):
        raise TypeError(f"test must be a function of a design and a recording, got {test!r}; define one with def")
    expanded = expand_settings({"default": {}} if settings is None else settings, evaluation)
    wanted = [guarantees] if guarantees is None or isinstance(guarantees, Guarantee) else list(guarantees)
    named = resolve_recordings(recordings)
    if not wanted or not seeds or not expanded:
        raise ValueError("guarantees, seeds and settings must each have at least one entry")
    for setting in expanded:
        if unknown := set(setting.recordings or ()) - set(named):
            raise ValueError(f"recordings of settings {setting.base!r} must be among {sorted(named)}, got {unknown}")
    place = _make_place(address, workers, cores, gpus, group_size)
    if test is not None and place.workers:
        _check_processes_can_call(test)
    temporary = TemporaryFolder() if out is None else None
    store = SweepStore(temporary.path if temporary else Path(out or ""))
    cases: list[Case] = []
    groups: list[tuple[Any, list[Case]]] = []
    done = store.read()
    runner: Runner | None = None
    try:
        for name, given in named.items():
            parts = load_parts(given)
            own = make_cases(name, parts, expanded, wanted, seeds, test)
            cases += own
            # Groups are made of the whole grid, so that it does not matter to the bits when a sweep was stopped.
            missing = [[c for c in group if c.fingerprint not in done] for group in make_groups(own, place.group_size)]
            if missing := [group for group in missing if group]:
                runner = place.make_runner() if runner is None else runner
                shared = runner.share(parts)
                groups += [(shared, group) for group in missing]
        failures = _run(groups, runner, store, place, test, num_designs=len(cases), progress=progress) if runner else []
    finally:
        if runner is not None:
            runner.close()
    return SweepResult.collect(store, cases, failures, temporary)


def _run(
    groups: Sequence[tuple[Any, list[Case]]],
    runner: Runner,
    store: SweepStore,
    place: _Place,
    test: OwnTest | None,
    *,
    num_designs: int,
    progress: bool,
) -> list[SweepFailure]:
    """Run what is missing, and write each group when it is done."""
    is_inline = isinstance(runner, InlineRunner)
    work = [
        (
            shared,
            GroupWork(
                pairs=[(case.guarantee, case.seed) for case in group],
                options=group[0].setting.options,
                evaluation=group[0].setting.evaluation,
                test=test,
                cores=0 if is_inline else place.cores,
                on_gpu=place.gpus > 0,
            ),
        )
        for shared, group in groups
    ]
    failures: list[SweepFailure] = []
    messages: list[str] = []
    num_missing = sum(len(group) for _, group in groups)
    with SweepDisplay(num_designs, num_designs - num_missing, place.words, shown=progress) as display:
        for number, outcome in runner.run(work):
            group = groups[number][1]
            store.write(group, outcome)
            failed = _failures_of(group, outcome)
            failures += failed
            display.advance(len(group) - len(failed), len(failed))
            messages += [f"{text} ({group[0].recording}, {group[0].setting.name})" for text in outcome.warned]
    # At the end: where warnings are errors, one must not stop the sweep.
    for message in messages:
        warnings.warn(message, TrainingWarning, stacklevel=3)
    if failures:
        names = "; ".join(f"{failure.design}: {failure.reason}" for failure in failures)
        warnings.warn(f"{len(failures)} of {num_designs} designs failed: {names}", TrainingWarning, stacklevel=3)
    return failures


def _check_processes_can_call(test: OwnTest) -> None:
    try:
        pickle.dumps(test)
    except (pickle.PicklingError, AttributeError) as error:  # AttributeError: a function within another, to Python 3.13
        raise ValueError(f"test must be a function at the top of a module, or use workers=0, got {test!r}") from error


def _failures_of(group: Sequence[Case], outcome: GroupOutcome) -> list[SweepFailure]:
    return [SweepFailure(case.label, reason) for case, reason in zip(group, outcome.errors, strict=True) if reason]


def _make_place(address: str | None, workers: int | None, cores: int, gpus: float, group_size: int | None) -> _Place:
    _check.is_count("cores", cores)
    if group_size is not None:
        _check.is_count("group_size", group_size)
    if address is not None:
        if workers is not None:
            raise ValueError("workers must not come with an address: the cluster decides how many groups run at once")
        on_gpu, workers = gpus > 0, 0
    else:
        on_gpu, workers = _look_here(workers, cores, gpus)
    size = group_size if group_size is not None or on_gpu else _USUAL_GROUP
    return _Place(address=address, workers=workers, cores=cores, gpus=gpus, group_size=size)


def has_gpu() -> bool:
    """Whether this machine has a GPU, whether or not JAX can use it."""
    return Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists()


def _look_here(workers: int | None, cores: int, gpus: float) -> tuple[bool, int]:
    """Whether this machine has a GPU that JAX can use, and how many processes to start."""
    if workers is not None:
        _check.is_count("workers", workers, minimum=0)
    is_there = has_gpu()
    if gpus:
        if not is_there:
            raise ValueError(f"gpus must be 0 on a machine without a GPU, got {gpus}; or give the address of a cluster")
        return True, max(1, int(1 / gpus + 1e-9)) if workers is None else workers
    if is_there and not workers:
        import jax

        is_there = jax.default_backend() != "cpu"
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usual = 0 if is_there else max(1, num_cores // cores)
    return is_there and not workers, usual if workers is None else workers
