"""`dpfuse evaluate`: error, spending and promise of designs on data they have not seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli.train import SplitBy


def evaluate(
    recording: Annotated[Path, typer.Argument(help="The recording; its last 10% are the test.")],
    designs: Annotated[list[Path], typer.Argument(help="Designs; the first is the one that others are compared to.")],
    split_by: Annotated[SplitBy, typer.Option(help="How the recording was split for training.")] = SplitBy.time,
    whole: Annotated[
        bool, typer.Option("--whole", help="Test on the whole recording, if it was not trained on.")
    ] = False,
    draws: Annotated[int, typer.Option(help="How often each window runs with fresh noise.")] = 4,
    delta: Annotated[float, typer.Option(help="The delta of the (epsilon, delta) statement.")] = 1e-5,
    seed: Annotated[int, typer.Option(help="Of the simulated noise.")] = 0,
    figures: Annotated[Path | None, typer.Option(help="A folder for figures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Evaluate designs on the test part of a recording.

    Errors come with 95% intervals by block bootstrap over time; spending is
    recomputed in the integers that a live centre would debit.

    Example: dpfuse evaluate road.dpfuse-data classical.dpfuse adaptive.dpfuse
    """
    import dpfuse
    from dpfuse.evaluation import figures as drawn
    from dpfuse.evaluation.text import to_text

    data = dpfuse.Trajectories.load(recording)
    test = data if whole else data.split(by=split_by.value)[2]
    if len({path.stem for path in designs}) < len(designs):
        raise typer.BadParameter("designs must have names of their own; rename one")
    loaded = {path.stem: dpfuse.load(path) for path in designs}
    reports = {
        name: dpfuse.evaluate(design, test, num_draws=draws, delta=delta, seed=seed) for name, design in loaded.items()
    }
    reference, *others = reports
    paired = {name: dpfuse.compare(reports[name], reports[reference]) for name in others}
    if figures:
        drawn.save_figures({"budget": drawn.plot_budget(reports), "error": drawn.plot_error(reports)}, figures)
    if as_json:
        answer = {
            "designs": {name: report.to_dict() for name, report in reports.items()},
            "paired": {name: comparison._asdict() for name, comparison in paired.items()},
        }
        typer.echo(json.dumps(answer))
        return
    typer.echo(to_text(reports, paired, reference))
    for name, report in reports.items():
        typer.echo(f"\n{name}: {report.statement}")
