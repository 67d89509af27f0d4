"""Options that several commands share, and the rule that --force is needed to overwrite a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output file if it exists.")]
FigureFolder = Annotated[Path | None, typer.Option(help="Folder for figures; without it none are drawn.")]

Order = Annotated[float, typer.Option(help="Rényi order alpha of the guarantee, above 1.")]
Delta = Annotated[float, typer.Option(help="Delta of the (epsilon, delta) guarantee, between 0 and 1.")]
SplitBy = Annotated[
    Literal["time", "run"],
    typer.Option(help="Split the recording 80/10/10 along time, or by whole runs if they are independent."),
]

Share = Annotated[float, typer.Option(help="Share of the vehicles that report, in (0, 1].")]
Traffic = Annotated[
    Path | None,
    typer.Option("--data", help="Folder with the files of US-101, or a recording; by default the built-in freeway."),
]
Loss = Annotated[float, typer.Option(help="Probability that a report is lost.")]
Garbage = Annotated[float, typer.Option(help="Probability that a report is replaced by invalid data.")]

Stream = Annotated[str, typer.Option(help="Name of the stream.")]
Certificates = Annotated[
    Path | None, typer.Option(help="File with the certificates to trust, for a self-signed centre or broker.")
]
Secret = Annotated[Path, typer.Option(help="The centre's secret, from `dpfuse token --new`. Keep it private.")]
SensorIds = Annotated[
    list[str] | None, typer.Argument(help="Sensor ids, single or as ranges: 17 100-199.", metavar="[ID]...")
]


def refuse_overwrite(path: Path, force: bool) -> None:
    """Stop with exit 2 if the file exists and --force was not given."""
    if path.exists() and not force:
        raise typer.BadParameter(f"{path} exists; give --force to overwrite it, or another path")
