"""`dpfuse data`: read a published recording, plot it, and write a recording to train on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpfuse.cli._options import AsJson, Force, Share, refuse_overwrite

if TYPE_CHECKING:
    from rich.table import Table

    from dpfuse.data import Recording


def data(
    dataset: Annotated[Literal["us101"], typer.Argument(help="The data set.")] = "us101",
    folder: Annotated[
        Path | None, typer.Option("--data", envvar="DPFUSE_DATA", help="Folder with the published files, or one file.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out/us101"),
    save: Annotated[Path | None, typer.Option(help="Also write a recording for `dpfuse train` to this file.")] = None,
    share: Share = 0.3,
    seed: Annotated[int, typer.Option(help="Seed of the choice of vehicles that report.")] = 0,
    section: Annotated[
        tuple[float, float], typer.Option(help="Start and end of the section in m along the recorded stretch.")
    ] = (120.0, 520.0),
    interval: Annotated[float, typer.Option(help="Seconds between steps, a multiple of 0.1.")] = 0.2,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for compact copies of text files; by default in the user's cache.")
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a published recording, print what was found, and plot it.

    us101 is US Highway 101 southbound on 15 June 2005, 07:50 to 08:35 (NGSIM), in
    any published layout; docs/data.md says where the files are. The state is the
    density of a section in vehicles per km, main lanes together. Each vehicle
    measures its position in m and its speed in m/s. --share is for --save only.

    Example: dpfuse data us101 --data DIR --save us101.dpfuse-data
    """
    from dpfuse.data import figures, periods, read

    if save:
        refuse_overwrite(save, force)
    recording = read(folder, cache=cache, progress=not as_json)
    run = recording.trajectories(section, interval)
    first, last = recording.seen_in_full(section)
    out.mkdir(parents=True, exist_ok=True)
    figures.plot_density(run, first).savefig(out / "density.png", dpi=120)
    figures.plot_space_time(recording, section).savefig(out / "space-time.png", dpi=120)
    if save:
        run.sample_sensors(share, seed).save(save)
    summary = {
        **_found(recording),
        "section_m": list(section),
        "interval_s": interval,
        "steps": run.num_steps,
        "run_ticks": [first, last],
        "periods": [period._asdict() for period in periods(run, first)],
        "figures": str(out),
        "file": str(save) if save else None,
    }
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        _show(summary, recording, share)


def _found(recording: Recording) -> dict[str, Any]:
    return {
        "files": [asdict(file) | {"path": str(file.path)} for file in recording.files],
        "passed_over": [str(path) for path in recording.passed_over],
        "sightings": len(recording.vehicle),
        "vehicles": recording.num_vehicles,
        "seen_twice": recording.num_seen_twice,
        "duration_s": recording.duration_s,
    }


def _show(summary: dict[str, Any], recording: Recording, share: float) -> None:
    from rich.console import Console

    from dpfuse.data.recording import clock

    console = Console(soft_wrap=True)
    console.print(_files(summary))
    for note in _notes(summary):
        console.print(note)
    start, stop = clock(int(recording.tick.min())), clock(int(recording.tick.max()))
    console.print(f"{summary['vehicles']:,} vehicles from {start} to {stop}, {summary['sightings']:,} sightings.")
    console.print(_periods(summary))
    opens, closes = (clock(tick) for tick in summary["run_ticks"])
    console.print(
        f"All vehicles on the section were tracked from {opens} to {closes}: one run of {summary['steps']:,} steps "
        f"of {summary['interval_s']:g} s. Figures are in {summary['figures']}/"
    )
    if summary["file"]:
        console.print(f"{summary['file']}: the same run, {share:.0%} of the vehicles reporting.")


def _files(summary: dict[str, Any]) -> Table:
    from rich.table import Table

    table = Table("file", "layout", "rows", "duplicates")
    for file in summary["files"]:
        layout = f"{file['layout']}, compact copy" if file["from_cache"] else file["layout"]
        table.add_row(Path(file["path"]).name, layout, f"{file['num_rows']:,}", f"{file['num_duplicates']:,}")
    return table


def _notes(summary: dict[str, Any]) -> Iterator[str]:
    """What was left out or counted once."""
    for file in summary["files"]:
        if file["num_conflicts"]:
            yield f"{file['path']}: {file['num_conflicts']:,} duplicates disagree with the first row, which is used."
        if file["num_elsewhere"]:
            yield f"{file['path']}: {file['num_elsewhere']:,} rows of other sites were left out."
    for path in summary["passed_over"]:
        yield f"{path} holds no vehicle trajectories and was passed over."
    if summary["seen_twice"]:
        yield f"{summary['seen_twice']:,} vehicles are in two overlapping periods; each is counted once."


def _periods(summary: dict[str, Any]) -> Table:
    from rich.table import Table

    start, end = summary["section_m"]
    title = f"Section from {start:g} to {end:g} m, lanes 1 to 5"
    columns = "period", "vehicles", "veh/km", "std", "min", "max", "m/s", "veh/h"
    table = Table(*columns, title=title, title_justify="left")
    for period in summary["periods"]:
        name, vehicles, *density, speed, flow = period.values()
        table.add_row(name, f"{vehicles:,}", *(f"{value:.1f}" for value in (*density, speed)), f"{flow:,.0f}")
    return table
