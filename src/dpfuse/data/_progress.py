"""A progress bar for files, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpfuse.data._layouts import Advance


@contextmanager
def progress_bar(paths: Sequence[Path], shown: bool) -> Iterator[Callable[[Path], Advance]]:
    """Gives a function to call when a file is begun, which returns one to call with the bytes read."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("reading", total=sum(path.stat().st_size for path in paths))

        def begin(path: Path) -> Advance:
            bar.update(task, description=path.name)
            return lambda count: bar.advance(task, count)

        yield begin
