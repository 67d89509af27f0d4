"""`dpfuse data sumo`, `highd` and `meters`: recordings in published layouts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpfuse.cli._options import (
    AsJson,
    Force,
    RecordingFolder,
    RunLength,
    SampleSeed,
    SaveRecording,
    SensorShare,
    refuse_overwrite,
)

if TYPE_CHECKING:
    from dpfuse.data import RecordingRead

Figures = Annotated[Path, typer.Option("--out", help="Folder for the figures.")]


def sumo(
    section: Annotated[tuple[float, float], typer.Option(help="Start and end of the section in m, by x or on --edge.")],
    folder: RecordingFolder = None,
    edge: Annotated[
        str | None, typer.Option(help="Take vehicles on this edge of the network only, by their position on it.")
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Seconds between steps; by default those of the file.")] = None,
    steps: RunLength = None,
    out: Figures = Path("out/sumo"),
    save: SaveRecording = None,
    share: SensorShare = 1.0,
    seed: SampleSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read floating-car data of the traffic simulator SUMO, print what was found, and plot it.

    What `sumo --fcd-output FILE` writes: XML, CSV or Parquet, also with .gz. Each file
    of a folder is a run. The state is the density of a section in vehicles per km. Each
    vehicle measures its position on it in m and its speed in m/s. XML is read in
    bounded memory.

    Example: dpfuse data sumo --data fcd.xml --section 100 500 --save sumo.dpfuse-data
    """
    from dpfuse import data

    _refuse(save, force)
    read = data.sumo(folder, section=section, interval_s=interval, edge=edge, steps=steps, progress=not as_json)
    _finish(read, out, save, share, seed, as_json)


def highd(
    folder: RecordingFolder = None,
    section: Annotated[
        tuple[float, float], typer.Option(help="Start and end of the section in m along the picture.")
    ] = (0.0, 400.0),
    direction: Annotated[
        Literal["left", "right"], typer.Option(help="The way in which vehicles drive in the picture.")
    ] = "right",
    interval: Annotated[float, typer.Option(help="Seconds between steps.")] = 0.2,
    steps: RunLength = None,
    out: Figures = Path("out/highd"),
    save: SaveRecording = None,
    share: SensorShare = 1.0,
    seed: SampleSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read drone recordings in the layout of highD, print what was found, and plot it.

    Files such as 01_tracks.csv, 01_tracksMeta.csv and 01_recordingMeta.csv; each recording
    is a run. The state is the density of a section in vehicles per km, one direction.
    Each vehicle measures its position on it in m and its speed in m/s.

    Example: dpfuse data highd --data DIR --section 0 400 --save highd.dpfuse-data
    """
    from dpfuse import data

    _refuse(save, force)
    read = data.highd(
        folder, section=section, interval_s=interval, direction=direction, steps=steps, progress=not as_json
    )
    _finish(read, out, save, share, seed, as_json)


def meters(
    folder: RecordingFolder = None,
    state: Annotated[
        Literal["mean", "sum"], typer.Option(help="Demand of the households that report: their mean or sum, in kW.")
    ] = "mean",
    start: Annotated[str | None, typer.Option(help="First day that is read, such as 2013-01-01.")] = None,
    stop: Annotated[str | None, typer.Option(help="Day before which reading stops, such as 2013-02-01.")] = None,
    households: Annotated[int | None, typer.Option(help="Read no more households than this.")] = None,
    tariff: Annotated[
        Literal["Std", "ToU"] | None, typer.Option(help="Households with the standard tariff, or with times of use.")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between steps, a multiple of 1800.")] = 1800.0,
    steps: RunLength = None,
    out: Figures = Path("out/meters"),
    save: SaveRecording = None,
    share: SensorShare = 1.0,
    seed: SampleSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read household meters in the layout of Low Carbon London, print what was found, and plot it.

    CSV or Parquet files with the columns LCLid, stdorToU, DateTime and KWH/hh (per half
    hour). The state is the demand of the group, and each household measures its own, in
    kW. Memory is taken for the days and households that are chosen.

    Example: dpfuse data meters --data DIR --start 2013-01-01 --stop 2013-02-01 --save meters.dpfuse-data
    """
    from dpfuse import data

    _refuse(save, force)
    read = data.meters(
        folder,
        state=state,
        interval_s=interval,
        start=start,
        stop=stop,
        households=households,
        tariff=tariff,
        steps=steps,
        progress=not as_json,
    )
    _finish(read, out, save, share, seed, as_json)


def _refuse(save: Path | None, force: bool) -> None:
    if save:
        refuse_overwrite(save, force)


def _finish(read: RecordingRead, out: Path, save: Path | None, share: float, seed: int, as_json: bool) -> None:
    """Plot, save and print a recording."""
    from dpfuse.data import figures

    made = read.trajectories
    out.mkdir(parents=True, exist_ok=True)
    figures.plot_state(made).savefig(out / "state.png", dpi=120)
    figures.plot_reports(made).savefig(out / "reports.png", dpi=120)
    if save:
        (made if share == 1 else made.sample_sensors(share, seed)).save(save)
    if as_json:
        files = [file._asdict() | {"path": str(file.path)} for file in read.files]
        found = {"files": files, "figures": str(out), "file": str(save) if save else None, "share": share}
        typer.echo(json.dumps(found | asdict(read.summary)))
        return
    for file in read.files:
        typer.echo(f"{file.path}: {file.num_rows:,} rows, {file.num_kept:,} of them kept")
    typer.echo(read.summary.to_text())
    low, high = made.state.min(), made.state.max()
    name = made.labels.state[0] if made.labels else "state"
    typer.echo(f"State {name}: mean {made.state.mean():.4g}, from {low:.4g} to {high:.4g}. Figures are in {out}/")
    if save:
        typer.echo(f"{save}: the recording, {share:.0%} of the sensors reporting")
