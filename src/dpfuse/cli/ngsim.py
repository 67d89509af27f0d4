"""`dpfuse data us101`, `i80`, `lankershim` and `peachtree`: recordings of the NGSIM program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from dpfuse.cli._options import (
    AsJson,
    Force,
    RecordingFolder,
    RunLength,
    SampleSeed,
    SaveRecording,
    Section,
    Share,
    refuse_overwrite,
)

if TYPE_CHECKING:
    from rich.table import Table

    from dpfuse.data import Recording
    from dpfuse.data.sites import Site
    from dpfuse.trajectories import Trajectories


class Road(NamedTuple):
    """The command of a site, the site's name in the files, and what it is."""

    command: str
    site: str
    title: str


ROADS = (
    Road("us101", "us-101", "US Highway 101 southbound in Los Angeles on 15 June 2005, 07:50 to 08:35"),
    Road("i80", "i-80", "Interstate 80 in Emeryville on 13 April 2005, 16:00 to 16:15 and 17:00 to 17:30"),
    Road("lankershim", "lankershim", "Lankershim Boulevard in Los Angeles on 16 June 2005, 08:30 to 09:00"),
    Road("peachtree", "peachtree", "Peachtree Street in Atlanta on 8 November 2006, 12:45 to 13:00 and 16:00 to 16:15"),
)


def make_command(road: Road) -> Callable[..., None]:
    """The command that reads a road."""

    def command(
        folder: RecordingFolder = None,
        out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out", road.command),
        save: SaveRecording = None,
        share: Share = 0.3,
        seed: SampleSeed = 0,
        section: Section = None,
        direction: Annotated[
            Literal["north", "south"] | None,
            typer.Option(help="On a street, the traffic that counts; by default north."),
        ] = None,
        interval: Annotated[float, typer.Option(help="Seconds between steps, a multiple of 0.1.")] = 0.2,
        steps: RunLength = None,
        cache: Annotated[
            Path | None, typer.Option(help="Folder for compact copies of text files; by default in the user's cache.")
        ] = None,
        force: Force = False,
        as_json: AsJson = False,
    ) -> None:
        from dpfuse.data import read

        if save:
            refuse_overwrite(save, force)
        recording = read(folder, site=road.site, direction=direction, cache=cache, progress=not as_json)
        section = section or recording.site.section
        runs = [(part.seen_in_full(section), part.run(section, interval)) for part in recording.parts()]
        made = runs[0][1] if len(runs) == 1 and steps is None else recording.trajectories(section, interval, steps)
        summary = _summarise(recording, section, runs) | {
            "runs": made.num_runs,
            "steps": made.num_steps,
            "figures": str(out),
            "file": str(save) if save else None,
        }
        _plot(recording, section, runs, out)
        if save:
            made.sample_sensors(share, seed).save(save)
        if as_json:
            typer.echo(json.dumps(summary))
        else:
            _show(summary, recording, share)

    command.__doc__ = f"""Read the recording of {road.site}, print what was found, and plot it.

    {road.title} (NGSIM), in any
    published layout; docs/data.md says where the files are. The state is the
    density of a section in vehicles per km. Each vehicle measures its position in m
    and its speed in m/s. --share is for --save only.

    Example: dpfuse data {road.command} --data DIR --save {road.command}.dpfuse-data
    """
    return command


# The first and the last tick of each run, and the run.
Runs = list[tuple[tuple[int, int], "Trajectories"]]


def _summarise(recording: Recording, section: tuple[float, float], runs: Runs) -> dict[str, Any]:
    from dpfuse.data import periods

    found = [period._asdict() for (first, _), run in runs for period in periods(run, first, recording.site)]
    return {
        **_found(recording),
        "section_m": list(section),
        "interval_s": runs[0][1].interval_s,
        "run_ticks": [tick for ticks, _ in runs for tick in ticks],
        "periods": found,
    }


def _plot(recording: Recording, section: tuple[float, float], runs: Runs, out: Path) -> None:
    from dpfuse.data import figures

    out.mkdir(parents=True, exist_ok=True)
    for number, ((first, _), run) in enumerate(runs, 1):
        mark = f"-{number}" if len(runs) > 1 else ""
        figures.plot_density(run, first, recording.site).savefig(out / f"density{mark}.png", dpi=120)
    figures.plot_space_time(recording, section).savefig(out / "space-time.png", dpi=120)


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

    clock = recording.site.clock
    console = Console(soft_wrap=True)
    console.print(_files(summary))
    for note in _notes(summary):
        console.print(note)
    start, stop = clock(int(recording.tick.min())), clock(int(recording.tick.max()))
    console.print(f"{summary['vehicles']:,} vehicles from {start} to {stop}, {summary['sightings']:,} sightings.")
    console.print(_periods(summary, recording.site))
    bounds = [clock(tick) for tick in summary["run_ticks"]]
    tracked = " and ".join(f"from {opens} to {closes}" for opens, closes in zip(bounds[::2], bounds[1::2], strict=True))
    runs = "one run" if summary["runs"] == 1 else f"{summary['runs']} runs"
    console.print(
        f"All vehicles on the section were tracked {tracked}: {runs} of {summary['steps']:,} steps of "
        f"{summary['interval_s']:g} s. Figures are in {summary['figures']}/"
    )
    if summary["file"]:
        console.print(f"{summary['file']}: {runs}, {share:.0%} of the vehicles reporting.")


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
            yield f"{file['path']}: {file['num_elsewhere']:,} rows of other sites or directions were left out."
    for path in summary["passed_over"]:
        yield f"{path} holds no vehicle trajectories and was passed over."
    if summary["seen_twice"]:
        yield f"{summary['seen_twice']:,} vehicles are in two overlapping periods; each is counted once."


def _periods(summary: dict[str, Any], site: Site) -> Table:
    from rich.table import Table

    start, end = summary["section_m"]
    lanes = f"going {site.direction}" if site.direction else f"lanes {site.lanes[0]} to {site.lanes[1]}"
    title = f"Section from {start:g} to {end:g} m, {lanes}"
    columns = "period", "vehicles", "veh/km", "std", "min", "max", "m/s", "veh/h"
    table = Table(*columns, title=title, title_justify="left")
    for period in summary["periods"]:
        name, vehicles, *density, speed, flow = period.values()
        table.add_row(name, f"{vehicles:,}", *(f"{value:.1f}" for value in (*density, speed)), f"{flow:,.0f}")
    return table
