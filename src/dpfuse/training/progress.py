"""A progress bar with the validation error, on stderr."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dpfuse._arrays import Floats, Floats32


class ProgressBar:
    """Shows updates made and validation errors, in the state's own squared units.

    Args:
        variance: of each coordinate of the state, by which errors in standard units are scaled.
    """

    def __init__(self, name: str, num_updates: int, variance: Floats32, *, shown: bool) -> None:
        self._variance = variance
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("validation error {task.fields[error]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._progress.add_task(name, total=num_updates, error="...")

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, number: int, errors: Floats, best: Floats) -> None:
        """Show that `number` updates are done, and the errors of the first few designs, now and at their best."""
        self._progress.update(self._task, completed=number, error=f"{self._text(errors)} (best {self._text(best)})")

    def _text(self, errors: Floats) -> str:
        own_units = (errors * self._variance).mean(1)
        return " ".join(f"{error:.4g}" for error in own_units[:3]) + (" ..." if len(own_units) > 3 else "")
