"""`dpfuse sweep`: every design of a grid, on this machine or on a Ray cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpfuse.cli._options import AsJson

if TYPE_CHECKING:
    from dpfuse.sweeps import SweepResult


def sweep(
    file: Annotated[Path, typer.Argument(help="The sweep as a TOML file.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for designs, tables and figures; by default the file's `out`, else out/NAME."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="A Ray cluster: auto, or HOST:PORT. By default this machine, without Ray."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes on this machine; by default one for each core, none on a GPU.")
    ] = None,
    cores: Annotated[int, typer.Option(min=1, help="Cores for each group of designs.")] = 1,
    gpus: Annotated[
        float,
        typer.Option(min=0, help="GPUs for each group; 0.5 puts two groups on one. Without a cluster, this machine's."),
    ] = 0.0,
    group_size: Annotated[
        int | None,
        typer.Option(min=1, help="Most designs trained side by side; by default 8, on a GPU all that share a program."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and test every design of a grid of recordings, guarantees, settings and seeds.

    The file says what to train; a list is a choice, and every combination is trained:

        seeds = [0, 1, 2]
        recordings.road = "road.dpfuse-data"
        guarantees.budget = [0.15, 0.5, 1.5]
        guarantees.adjacency = "remove-one"
        guarantees.floor = true              # also without a guarantee
        common.horizon = 100                 # arguments of `dpfuse.train`
        common.num_updates = 1000
        settings.classical.spending = "constant"
        settings.adaptive.recurrent_filter = ["gru", "guided"]

    The folder gets table.csv (one row a design), summary.csv (means over seeds), designs
    and figures. If a run is stopped, give the same command again: it goes on where it
    was. With more seeds or budgets in the file only the new designs are trained.

    Example: dpfuse sweep sweep.toml

    Example: dpfuse sweep sweep.toml --address auto
    """
    from dpfuse.evaluation.figures import save_figures
    from dpfuse.sweeps import read_plan
    from dpfuse.sweeps import sweep as run_sweep

    plan = read_plan(file).to_arguments()
    folder = out or plan.pop("out") or Path("out") / file.stem
    result = run_sweep(
        **plan | {"out": folder},
        address=address,
        workers=workers,
        cores=cores,
        gpus=gpus,
        group_size=group_size,
        progress=True,
    )
    result.save_tables()
    if result.rows:
        save_figures(result.figures(), folder / "figures")
    typer.echo(json.dumps(_answer(result)) if as_json else _text(result))
    if result.failures:
        raise typer.Exit(1)


def _answer(result: SweepResult) -> dict[str, Any]:
    return {
        "folder": str(result.folder),
        "designs": result.rows,
        "summary": result.summary(),
        "failures": [failure._asdict() for failure in result.failures],
    }


def _text(result: SweepResult) -> str:
    lines = [result.to_text()] if result.rows else []
    lines += [f"\nfailed: {failure.design}\n  {failure.reason}" for failure in result.failures]
    if result.failures:
        lines.append("\nDesigns that failed are tried again when the same command is given again.")
    lines.append(f"\nTables, designs and figures are in {result.folder}/")
    return "\n".join(lines)
