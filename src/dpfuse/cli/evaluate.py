"""`dpfuse evaluate`: error, spending and guarantee of designs on data that they were not trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import AsJson, Delta, FigureFolder, SplitBy


def evaluate(
    recording: Annotated[Path, typer.Argument(help="The recording. Its last 10% are the test part.")],
    designs: Annotated[list[Path], typer.Argument(help="Designs. The others are compared with the first.")],
    split_by: SplitBy = "time",
    whole: Annotated[
        bool, typer.Option("--whole", help="Test on the whole recording, if the designs were not trained on it.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Draws of noise for each window.")] = 4,
    delta: Delta = 1e-5,
    seed: Annotated[int, typer.Option(help="Seed of the simulated noise.")] = 0,
    figures: FigureFolder = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate designs on the test part of a recording.

    Errors have 95% intervals, by block bootstrap over time. Spending is computed in
    the integers that a live centre would debit. Give the same --split-by as for
    `dpfuse train`, so that no test data was used in training.

    Example: dpfuse evaluate road.dpfuse-data classical.dpfuse adaptive.dpfuse
    """
    import dpfuse
    from dpfuse.evaluation import figures as drawn
    from dpfuse.evaluation.text import to_text

    data = dpfuse.Trajectories.load(recording)
    test = data if whole else data.split(by=split_by)[2]
    if len({path.stem for path in designs}) < len(designs):
        raise typer.BadParameter("designs must have different file names; rename one")
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
