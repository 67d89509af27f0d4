"""`dpfuse evaluate`: error, spending and guarantee of designs on data that they were not trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dpfuse.cli._options import AsJson, Delta, FigureFolder, SplitBy
from dpfuse.cli._table_options import RecordingSource, or_table


@or_table
def evaluate(
    recording: Annotated[RecordingSource, typer.Argument(help="The recording. Its last 10% are the test part.")],
    designs: Annotated[list[Path], typer.Argument(help="Designs. The others are compared with the first.")],
    split_by: SplitBy = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Test on the whole recording, if the designs were not trained on it.")
    ] = False,
    draws: Annotated[int, typer.Option(help="Draws of noise for each window.")] = 4,
    delta: Delta = 1e-5,
    seed: Annotated[int, typer.Option(help="Seed of the simulated noise.")] = 0,
    fault: Annotated[
        str | None,
        typer.Option(
            help="What goes wrong in every window: skipped (every other step), silent (half of the sensors), "
            "all-silent, joined (a reader who joins late), thinned (a third of the sensors), share-10 (a tenth), "
            "glitches (wrong values)."
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the errors into the card of each design, see `dpfuse card`.")
    ] = False,
    figures: FigureFolder = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate designs on the test part of a recording.

    Errors have 95% intervals, by block bootstrap over time. Spending is computed in
    the integers that a live centre would debit. Give the same --split-by as for
    `dpfuse train`, so that no test data was used in training.

    Example: dpfuse evaluate road.dpfuse-data classical.dpfuse adaptive.dpfuse

    Example: dpfuse evaluate cars.csv cars.dpfuse --time t --sensor id --values speed --state density --figures figures
    """
    import dpfuse
    from dpfuse.evaluation import figures as drawn
    from dpfuse.evaluation.bootstrap import MIN_BLOCKS
    from dpfuse.evaluation.text import to_text

    data = recording.read()
    test = data if whole else data.split(by=split_by)[2]
    if len({path.stem for path in designs}) < len(designs):
        raise typer.BadParameter("designs must have different file names; rename one")
    loaded = {path.stem: dpfuse.load(path) for path in designs}
    reports = {
        name: dpfuse.evaluate(design, test, num_draws=draws, delta=delta, seed=seed, fault=fault)
        for name, design in loaded.items()
    }
    reference, *others = reports
    paired = {name: dpfuse.compare(reports[name], reports[reference]) for name in others}
    if record:
        for path in designs:
            loaded[path.stem].save(path, report=reports[path.stem])
    if figures:
        plots = {
            "budget": drawn.plot_budget(reports),
            "calibration": drawn.plot_calibration(reports),
            "error": drawn.plot_error(reports),
            "estimates": drawn.plot_estimates(loaded, test),
            "training": drawn.plot_training(loaded),
        }
        drawn.save_figures(plots, figures)
    if as_json:
        answer = {
            "designs": {name: report.to_dict() for name, report in reports.items()},
            "paired": {name: comparison._asdict() for name, comparison in paired.items()},
        }
        typer.echo(json.dumps(answer))
        return
    typer.echo(to_text(reports, paired, reference))
    if (num_blocks := len(set(reports[reference].blocks.tolist()))) < MIN_BLOCKS:
        typer.echo(
            f"no 95% intervals: they need test data of {MIN_BLOCKS} independent blocks, and it has {num_blocks}; give "
            f"a longer recording, or one that was not used in training, with --whole",
            err=True,
        )
    for name, report in reports.items():
        typer.echo(f"\n{name}: {report.statement}")
