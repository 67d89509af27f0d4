"""Options that say what the columns of a table mean, and the reading of a recording or a table by them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    from dpfuse.data.table import TableRead
    from dpfuse.trajectories import Trajectories

Time = Annotated[str, typer.Option(help="Column of times: seconds, or dates with a time (ISO 8601).")]
Sensor = Annotated[str, typer.Option(help="Column of the sensors' ids, numbers or text.")]
Values = Annotated[str, typer.Option(help="Columns of the measurements, separated by commas.")]
State = Annotated[
    str,
    typer.Option(
        help="Columns of the state, separated by commas, or aggregates over the sensors of a step: count:COLUMN, "
        "mean:COLUMN, sum:COLUMN."
    ),
]
Run = Annotated[str | None, typer.Option(help="Column that names the run; by default all rows are one run.")]
States = Annotated[
    Path | None, typer.Option(help="File with the columns of time, run and state, one row for each time.")
]
Region = Annotated[
    list[str] | None,
    typer.Option(help="Aggregate over sensors with COLUMN=LOW:HIGH only, such as position=0:400.", metavar="BOUNDS"),
]
Interval = Annotated[
    float | None, typer.Option(help="Seconds between steps; by default the smallest difference of two times.")
]
Resampling = Annotated[
    Literal["last", "mean"] | None,
    typer.Option(help="What to take of several rows of a sensor in a step; by default times must lie on steps."),
]
Steps = Annotated[int | None, typer.Option(help="Length of the runs that are made.")]
Public = Annotated[
    str | None,
    typer.Option(help="Columns of public inputs, in the file of the state: one value for each time, or none."),
]

_TABLES = (".csv", ".tsv", ".txt", ".parquet")
_NEEDED = ("time", "sensor", "values", "state")


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What the columns of a table mean, as given on the command line."""

    time: Time
    sensor: Sensor
    values: Values
    state: State
    run: Run = None
    states: States = None
    region: Region = None
    interval: Interval = None
    resample: Resampling = None
    steps: Steps = None
    public: Public = None

    def read(self, file: Path) -> TableRead:
        """The recording in a CSV or Parquet file, and what was found there."""
        from dpfuse.data.table import AGGREGATES, read_table
        from dpfuse.data.table_file import read_file

        bounds = dict(_bounds(each) for each in self.region or ())
        own, wanted = self.values.split(","), self.state.split(",")
        public = self.public.split(",") if self.public else []
        sources = [name.partition(":")[2] for name in wanted if name.partition(":")[0] in AGGREGATES]
        ids = [self.sensor, *([self.run] if self.run else [])]
        names = [self.time, *ids, *own, *wanted, *public, *sources, *bounds]
        return read_table(
            read_file(file, names, ids),
            time=self.time,
            sensor=self.sensor,
            values=own,
            state=wanted,
            run=self.run,
            states=read_file(self.states, names, ids) if self.states else None,
            region=bounds,
            interval_s=self.interval,
            resample=self.resample,
            steps=self.steps,
            public=public,
        )


class RecordingSource:
    """A recording, or a table with the options that say what its columns mean. It is read when it is needed."""

    def __init__(self, path: Path, given: dict[str, Any]) -> None:
        self._path, self._given = path, given
        named, is_table = [name for name, value in given.items() if value], path.suffix.lower() in _TABLES
        if named and not is_table:
            raise typer.BadParameter(
                f"{path} must end in {', '.join(_TABLES[:-1])} or {_TABLES[-1]}, because --{named[0]} is for tables; "
                f"leave it out for a recording"
            )
        missing = [f"--{name}" for name in _NEEDED if not given[name]]
        if is_table and missing:
            raise typer.BadParameter(
                f"{path} is a table, so name its columns by --time, --sensor, --values and --state; "
                f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            )
        self._is_table = is_table

    def read(self) -> Trajectories:
        """The recording. What was found in a table is printed to stderr."""
        from dpfuse.trajectories import Trajectories

        if not self._is_table:
            return Trajectories.load(self._path)
        made, summary = TableOptions(**self._given).read(self._path)
        typer.echo(f"{self._path}: {summary.to_text()}", err=True)
        return made


def or_table(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `TableOptions`; its first argument `recording` may then be a table."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    about = hints["recording"].__metadata__[0].help
    path = Annotated[Path, typer.Argument(help=f"{about} Or a CSV or Parquet file with one row for each report.")]
    own = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    own[0] = own[0].replace(annotation=path)
    meanings = get_type_hints(TableOptions, include_extras=True)
    added = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_optional(meanings[each.name])
        )
        for each in fields(TableOptions)
    ]

    @functools.wraps(command)
    def with_table(recording: Path, **arguments: Any) -> None:
        given = {each.name: arguments.pop(each.name, None) for each in added}
        command(RecordingSource(recording, given), **arguments)

    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own[1:], *added]]
    parameters = [own[0], *options]
    with_table.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_table.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    del with_table.__wrapped__  # its annotations are not those of this command
    return with_table


def _optional(annotation: Any) -> Any:
    """The same option, in the help's part on tables, and without being required."""
    kind, option = annotation.__origin__, annotation.__metadata__[0]
    optional = typer.Option(help=option.help, metavar=option.metavar, rich_help_panel="If it is a table")
    return Annotated[kind | None, optional]


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, _, bounds = text.rpartition("=")
    low, _, high = bounds.partition(":")
    try:
        return name, (float(low), float(high))
    except ValueError:
        raise typer.BadParameter(f"region must be COLUMN=LOW:HIGH, got {text!r}") from None
