"""`dpfuse train`: from a recording and a promise to a design."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from dpfuse.cli._files import refuse_overwrite


class Adjacency(StrEnum):
    """What a neighbouring data set is."""

    replace_one = "replace-one"
    remove_one = "remove-one"


class Accounting(StrEnum):
    """Who is charged."""

    total = "total"
    individual = "individual"


class Spending(StrEnum):
    """How the budget is spent."""

    constant = "constant"
    schedule = "schedule"
    adaptive = "adaptive"


class Method(StrEnum):
    """How the weights are found."""

    pathwise = "pathwise"
    ppo = "ppo"


class RecurrentFilter(StrEnum):
    """What f reads."""

    gru = "gru"
    guided = "guided"


class SplitBy(StrEnum):
    """How the recording is cut into training, validation and test."""

    time = "time"
    run = "run"


def train(
    recording: Annotated[Path, typer.Argument(help="A recording, see `dpfuse simulate` and `Trajectories.save`.")],
    budget: Annotated[
        float | None, typer.Option(help="The Rényi budget B of the promise; `dpfuse account` explains it.")
    ] = None,
    adjacency: Annotated[
        Adjacency | None, typer.Option(help="remove-one: a sensor is there or not; replace-one: its data is another's.")
    ] = None,
    non_private: Annotated[
        bool, typer.Option("--non-private", help="No promise and no noise: a floor to compare with, not to release.")
    ] = False,
    order: Annotated[float, typer.Option(help="The Rényi order alpha of the promise.")] = 2.0,
    accounting: Annotated[
        Accounting, typer.Option(help="One budget for the stream, or one for each sensor.")
    ] = Accounting.total,
    spending: Annotated[
        Spending, typer.Option(help="Spend evenly, by step, or by what was released so far.")
    ] = Spending.adaptive,
    method: Annotated[
        Method, typer.Option(help="Gradients through the whole loop, or the paper's Algorithm 2.")
    ] = Method.pathwise,
    recurrent_filter: Annotated[
        RecurrentFilter | None,
        typer.Option(
            help="What f reads: a sensor's own history, as in the paper (gru), or past releases too (guided). "
            "By default guided for adaptive policies that are trained pathwise and for the floor."
        ),
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="Releases in all; by default the length of a run.")] = None,
    stationary: Annotated[bool, typer.Option("--stationary", help="No end; needs individual accounting.")] = False,
    updates: Annotated[int, typer.Option(help="Gradient steps at most.")] = 2000,
    split_by: Annotated[
        SplitBy, typer.Option(help="80/10/10 along time, or by whole runs if they are independent.")
    ] = SplitBy.time,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal designs.")] = 0,
    out: Annotated[Path, typer.Option(help="The design to write.")] = Path("design.dpfuse"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train fusion policy and estimator for a guarantee and write the design.

    The first 80% of the recording train, the next 10% validate; the last 10% are
    left for `dpfuse evaluate`.

    Example: dpfuse train road.dpfuse-data --budget 0.5 --adjacency remove-one --horizon 100
    """
    refuse_overwrite(out, force)
    if non_private == (budget is not None) or (budget is not None and adjacency is None):
        raise typer.BadParameter("give --budget and --adjacency, or --non-private alone")
    import dpfuse

    dpfuse.use_all_cores()
    training, validation, _ = dpfuse.Trajectories.load(recording).split(by=split_by.value)
    guarantee = None
    if budget is not None and adjacency is not None:
        guarantee = dpfuse.Guarantee(order=order, budget=budget, adjacency=adjacency.value, accounting=accounting.value)
    design = dpfuse.train(
        training,
        validation,
        guarantee,
        spending=spending.value,
        method=method.value,
        horizon=horizon,
        stationary=stationary,
        architecture=dpfuse.Architecture(recurrent_filter=recurrent_filter.value if recurrent_filter else None),
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
