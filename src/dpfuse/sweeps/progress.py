"""One display for a whole sweep, on stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class SweepDisplay:
    """Shows how many designs are done and how many have failed.

    Args:
        num_designs: of the sweep; `num_done`: those that were found in its folder.
        where: in words.
    """

    def __init__(self, num_designs: int, num_done: int, where: str, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("designs{task.fields[failed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._num_failed = 0
        self._task = self._progress.add_task(where, total=num_designs, completed=num_done, failed="")

    def __enter__(self) -> SweepDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self, num_done: int, num_failed: int) -> None:
        """Count the designs of a group."""
        self._num_failed += num_failed
        failed = f", {self._num_failed} failed" if self._num_failed else ""
        self._progress.update(self._task, advance=num_done, failed=failed)
