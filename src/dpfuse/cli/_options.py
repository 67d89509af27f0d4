"""Options that several commands share, and the rule that --force is needed to overwrite a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpfuse._logs import LogFormat, LogLevel

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")]
FigureFolder = Annotated[Path | None, typer.Option(help="Folder for figures; without it none are drawn.")]

Order = Annotated[float, typer.Option(help="Rényi order alpha of the guarantee, above 1.")]
Delta = Annotated[float, typer.Option(help="Delta of the (epsilon, delta) guarantee, between 0 and 1.")]
Period = Annotated[
    str | None,
    typer.Option(
        "--period",
        help="Renew the budget with each period: day (a calendar day in UTC), hour, or a number of seconds. By default "
        "the budget is for all time.",
    ),
]
SplitBy = Annotated[
    Literal["time", "run"] | None,
    typer.Option(
        help="Split the recording 80/10/10 along time, or by whole runs if they are independent. By default by run "
        "where runs are many and short: at least 30, and more than a quarter of their steps."
    ),
]

Share = Annotated[float, typer.Option(help="Share of the vehicles that report, in (0, 1].")]
Lanes = Annotated[int, typer.Option(min=1, help="Lanes of the road: the true density is divided by them.")]
SensorShare = Annotated[float, typer.Option("--share", help="Share of the sensors that report, in (0, 1].")]
Traffic = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the files of US-101, or a recording; by default the built-in freeway."),
]
RecordingFolder = Annotated[
    Path | None, typer.Option("--data", envvar="DPFUSE_DATA", help="Folder with the published files, or one file.")
]
SaveRecording = Annotated[
    Path | None, typer.Option("--save", help="Also write a recording for `dpfuse train` to this file.")
]
SampleSeed = Annotated[int, typer.Option("--seed", help="Seed of the choice of sensors that report.")]
Section = Annotated[
    tuple[float, float] | None,
    typer.Option("--section", help="Start and end of the section in m along the road; docs/data.md has the defaults."),
]
RunLength = Annotated[
    int | None,
    typer.Option("--steps", help="Length of the runs that are made; by default the one that keeps the most steps."),
]
Loss = Annotated[float, typer.Option(help="Probability that a report is lost.")]
Garbage = Annotated[float, typer.Option(help="Probability that a report is replaced by invalid data.")]

Stream = Annotated[str, typer.Option(help="Name of the stream.")]
Certificates = Annotated[
    Path | None, typer.Option(help="File with the certificates to trust, for a self-signed centre or broker.")
]
PER_ADDRESS = 256
PerAddress = Annotated[
    int,
    typer.Option(min=0, help="Connections of one reader's address that are served; 0 for any number, behind a proxy."),
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", help="Lines of the log as text or as JSON objects.")
]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="The least level of lines in the log.")]
KeyPath = Annotated[
    Path, typer.Option("--keys", help="The centre's key file, from `dpfuse keys new`. Keep it private.")
]
SensorIds = Annotated[list[str], typer.Argument(help="Sensor ids, single or as ranges: 17 100-199.", metavar="ID...")]


def read_period(period: str | None) -> str | float | None:
    """The period of a guarantee: a name as it is, and digits as a number of seconds."""
    try:
        return period if period is None else float(period)
    except ValueError:
        return period


def refuse_overwrite(path: Path, force: bool) -> None:
    """Stop with exit 2 if the file exists and --force was not given."""
    if path.exists() and not force:
        raise typer.BadParameter(f"{path} exists; give --force to overwrite it, or another path")
