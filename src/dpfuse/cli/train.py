"""`dpfuse train`: a design from a recording and a guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpfuse.cli._options import AsJson, Force, Order, SplitBy, refuse_overwrite


def train(
    recording: Annotated[Path, typer.Argument(help="A recording from `dpfuse simulate` or `Trajectories.save`.")],
    budget: Annotated[
        float | None, typer.Option(help="Rényi budget B of the guarantee; `dpfuse account` explains it.")
    ] = None,
    adjacency: Annotated[
        Literal["replace-one", "remove-one"] | None,
        typer.Option(
            help="How neighbouring data differ. remove-one: one sensor is missing in one of them; replace-one: one "
            "sensor has another trajectory."
        ),
    ] = None,
    non_private: Annotated[
        bool,
        typer.Option("--non-private", help="No guarantee and no noise: a floor to compare with, never to release."),
    ] = False,
    order: Order = 2.0,
    accounting: Annotated[
        Literal["total", "individual"], typer.Option(help="One budget for the stream, or one for each sensor.")
    ] = "total",
    spending: Annotated[
        Literal["constant", "schedule", "adaptive"],
        typer.Option(help="Spend the budget evenly, by step, or by past releases."),
    ] = "adaptive",
    method: Annotated[
        Literal["pathwise", "ppo"], typer.Option(help="Gradients through the whole loop, or the paper's Algorithm 2.")
    ] = "pathwise",
    recurrent_filter: Annotated[
        Literal["gru", "guided"] | None,
        typer.Option(
            help="What f reads. gru: the sensor's own history, as in the paper; guided: past releases too. By default "
            "guided for adaptive spending that is trained pathwise and for the floor, else gru."
        ),
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="Number of releases; by default the length of a run.")] = None,
    stationary: Annotated[
        bool, typer.Option("--stationary", help="A design without end; needs individual accounting.")
    ] = False,
    updates: Annotated[int, typer.Option(help="Largest number of gradient steps.")] = 2000,
    split_by: SplitBy = "time",
    seed: Annotated[int, typer.Option(help="Seed of weights and noise; equal seeds give equal designs.")] = 0,
    out: Annotated[Path, typer.Option(help="The design to write.")] = Path("design.dpfuse"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a design for a guarantee and write it to a file.

    The first 80% of the recording are for training and the next 10% for validation.
    The last 10% are left for `dpfuse evaluate`.

    Example: dpfuse train road.dpfuse-data --budget 0.5 --adjacency remove-one --horizon 100
    """
    refuse_overwrite(out, force)
    if non_private == (budget is not None) or (budget is not None and adjacency is None):
        raise typer.BadParameter("give --budget and --adjacency, or --non-private alone")
    import dpfuse

    dpfuse.use_all_cores()
    training, validation, _ = dpfuse.Trajectories.load(recording).split(by=split_by)
    guarantee = None
    if budget is not None and adjacency is not None:
        guarantee = dpfuse.Guarantee(order=order, budget=budget, adjacency=adjacency, accounting=accounting)
    design = dpfuse.train(
        training,
        validation,
        guarantee,
        spending=spending,
        method=method,
        horizon=horizon,
        stationary=stationary,
        architecture=dpfuse.Architecture(recurrent_filter=recurrent_filter),
        optimisation=dpfuse.Optimisation(num_updates=updates),
        seed=seed,
        progress=True,
    )
    design.save(out)
    summary: dict[str, Any] = {"file": str(out), "validation_mse": design.training["validation_mse"]}
    if as_json:
        typer.echo(json.dumps(summary | {"fingerprint": design.fingerprint}))
    else:
        typer.echo(f"{out}: squared error {summary['validation_mse']:.4g} on the validation part")
