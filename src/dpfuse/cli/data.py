"""`dpfuse data`: read a table or a published recording, and write a recording to train on."""

from __future__ import annotations

import typer

from dpfuse.cli.ngsim import ROADS, make_command
from dpfuse.cli.recordings import highd, meters, sumo
from dpfuse.cli.table import table

data = typer.Typer(
    help="Read a table of your own or a published recording, and write a recording to train on.\n\n"
    "Example: dpfuse data table meters.csv --time t --sensor id --values power --state sum:power "
    "--save meters.dpfuse-data",
    no_args_is_help=True,
)
data.command()(table)
for road in ROADS:
    data.command(road.command)(make_command(road))
for command in (sumo, highd, meters):
    data.command()(command)
