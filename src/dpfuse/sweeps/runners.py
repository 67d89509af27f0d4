"""Where groups are run: in this process, or in others of this machine. `on_ray.py` has the third way, a cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from multiprocessing.connection import wait as wait_for_end
from pathlib import Path
from typing import Any

from dpfuse.sweeps.grid import RecordingParts
from dpfuse.sweeps.worker import GroupOutcome, GroupWork, environment_of, run_group

MOST_TRIES = 4
"""How often a group is started whose process ends before it has answered."""


class Runner(ABC):
    """Runs groups; each answer comes as soon as it is there, with the number of its group."""

    @abstractmethod
    def share(self, parts: RecordingParts) -> Any:
        """What a group names the recording by."""

    @abstractmethod
    def run(self, groups: Sequence[tuple[Any, GroupWork]]) -> Iterator[tuple[int, GroupOutcome]]:
        """The outcome of every group, in the order in which they end."""

    @abstractmethod
    def close(self) -> None:
        """End what was started for the groups."""


class InlineRunner(Runner):
    """One group after the other in this process, with the JAX devices that it has."""

    def share(self, parts: RecordingParts) -> RecordingParts:
        return parts

    def run(self, groups: Sequence[tuple[Any, GroupWork]]) -> Iterator[tuple[int, GroupOutcome]]:
        for number, (parts, work) in enumerate(groups):
            yield number, run_group(parts, work)

    def close(self) -> None:
        pass


class ProcessRunner(Runner):
    """Several groups at a time, each in a process of its own. One that is killed is started again.

    Args:
        num_workers: groups at a time.
        cores: JAX devices of each.
        on_gpu: whether they share the GPU of this machine instead.
    """

    def __init__(self, num_workers: int, cores: int, *, on_gpu: bool = False) -> None:
        if multiprocessing.parent_process() is not None:
            raise RuntimeError(
                "a sweep must not start again in its own workers: call it under `if __name__ == '__main__':`, or with "
                "workers=0 to train in this process"
            )
        self._num_workers, self._environment = num_workers, environment_of(cores, on_gpu)
        self._folder = tempfile.TemporaryDirectory(prefix="dpfuse-sweep-")
        self._num_shared = 0

    def share(self, parts: RecordingParts) -> Path:
        path = Path(self._folder.name) / f"recording-{self._num_shared}.pickle"
        self._num_shared += 1
        with path.open("wb") as file:
            pickle.dump(tuple(parts), file, protocol=5)
        return path

    def run(self, groups: Sequence[tuple[Any, GroupWork]]) -> Iterator[tuple[int, GroupOutcome]]:
        waiting = deque((number, 1) for number in range(len(groups)))
        idle = [self._start() for _ in range(min(self._num_workers, len(groups)))]
        running: dict[Future[GroupOutcome], tuple[ProcessPoolExecutor, int, int]] = {}
        try:
            while waiting or running:
                while waiting and idle:
                    process, (number, tries) = idle.pop(), waiting.popleft()
                    running[process.submit(_run_shared, *groups[number])] = process, number, tries
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    process, number, tries = running.pop(ended)
                    try:
                        outcome = ended.result()
                    except BrokenProcessPool:
                        process.shutdown()
                        process = self._start()
                        if tries < MOST_TRIES:
                            waiting.appendleft((number, tries + 1))
                        else:
                            count = len(groups[number][1].pairs)
                            yield number, GroupOutcome.failed(count, f"its process was ended {tries} times")
                    except Exception as error:  # it could not be sent there
                        yield number, GroupOutcome.failed(len(groups[number][1].pairs), repr(error))
                    else:
                        yield number, outcome
                    idle.append(process)
        finally:
            for process in [*idle, *(process for process, _, _ in running.values())]:
                process.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        """A process that has not imported JAX yet."""
        return ProcessPoolExecutor(
            1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(self._environment,),
        )

    def close(self) -> None:
        self._folder.cleanup()


def _begin(environment: dict[str, str]) -> None:
    """Set up a new process: its environment, and that it ends when its parent has ended."""
    os.environ.update(environment)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait_for_end([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _run_shared(path: Path, work: GroupWork) -> GroupOutcome:
    return run_group(_read_shared(path), work)


@lru_cache(maxsize=1)
def _read_shared(path: Path) -> RecordingParts:
    with path.open("rb") as file:
        return RecordingParts(*pickle.load(file))
