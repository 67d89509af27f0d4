"""A progress bar that shows the validation error, on stderr."""

from __future__ import annotations

from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class ProgressBar:
    """Shows updates made and the best validation error of the first design, in the state's own squared units."""

    def __init__(self, name: str, num_updates: int, unit: float, *, shown: bool) -> None:
        self._unit = unit
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

    def update(self, number: int, best: np.ndarray) -> None:
        """Show that `number` updates are done."""
        errors = " ".join(f"{error * self._unit:.4g}" for error in best[:4]) + (" ..." if len(best) > 4 else "")
        self._progress.update(self._task, completed=number, error=errors)
