"""`dpfuse data table`: a recording from a CSV or Parquet file with one row for each report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import AsJson, Force, SampleSeed, SensorShare, refuse_overwrite
from dpfuse.cli._table_options import (
    Interval,
    Public,
    Region,
    Resampling,
    Run,
    Sensor,
    State,
    States,
    Steps,
    TableOptions,
    Time,
    Values,
)


def table(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file with one row for each report.")],
    time: Time,
    sensor: Sensor,
    values: Values,
    state: State,
    save: Annotated[Path, typer.Option(help="The recording to write.")] = Path("recording.dpfuse-data"),
    run: Run = None,
    states: States = None,
    region: Region = None,
    interval: Interval = None,
    resample: Resampling = None,
    steps: Steps = None,
    public: Public = None,
    share: SensorShare = 1.0,
    seed: SampleSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a table, print what was found, and write a recording.

    Rows may be in any order and have gaps. Rows that are left out are counted. The
    state of a step is unknown if no row has it, and runs are cut there. docs/own-system.md
    explains the rules.

    Example: dpfuse data table cars.csv --time t --sensor id --values position,speed --state density
    """
    refuse_overwrite(save, force)
    made, summary = TableOptions(
        time=time,
        sensor=sensor,
        values=values,
        state=state,
        run=run,
        states=states,
        region=region,
        interval=interval,
        resample=resample,
        steps=steps,
        public=public,
    ).read(file)
    (made if share == 1 else made.sample_sensors(share, seed)).save(save)
    if as_json:
        typer.echo(json.dumps({"file": str(save), "share": share} | asdict(summary)))
    else:
        typer.echo(f"{file}: {summary.to_text()}\n{save}: the recording, {share:.0%} of the sensors reporting")
