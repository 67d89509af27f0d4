"""`dpfuse train`: a design from a recording and a guarantee."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpfuse.cli._options import AsJson, Force, Order, Period, SplitBy, read_period, refuse_overwrite
from dpfuse.cli._table_options import RecordingSource, or_table

if TYPE_CHECKING:
    from dpfuse.policy.design import Design
    from dpfuse.trajectories import Trajectories


@or_table
def train(
    recording: Annotated[
        RecordingSource,
        typer.Argument(help="A recording from `dpfuse simulate`, `dpfuse data` or `Trajectories.save`."),
    ],
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
    period: Period = None,
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
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Number of releases that the budget is for; where the split is by run, by default a whole run."
        ),
    ] = None,
    stationary: Annotated[
        bool, typer.Option("--stationary", help="A design without end; needs individual accounting, or --period.")
    ] = False,
    epoch_s: Annotated[
        float | None,
        typer.Option(
            help="Seconds from one boundary to the next of the bank that will lend to the centre (`dpfuse bank`): a "
            "sensor's first contribution waits for one to two of them."
        ),
    ] = None,
    updates: Annotated[int, typer.Option(help="Largest number of gradient steps.")] = 2000,
    faults: Annotated[
        float | None,
        typer.Option(
            help="Share of the training windows that have a fault of live streams: steps skipped, sensors silent or "
            "fewer, wrong values, readers who join late. By default 0.25 with --stationary, else 0."
        ),
    ] = None,
    floor: Annotated[
        bool,
        typer.Option("--floor", help="Train the floor too, for as long, and print its error: what no noise gives."),
    ] = False,
    split_by: SplitBy = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a coordinate of the state, for page and metrics; repeat it for more.", metavar="NAME [UNIT]"
        ),
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="Name of a channel of the measurements; repeat it for more.", metavar="NAME [UNIT]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and noise; equal seeds give equal designs.")] = 0,
    out: Annotated[Path, typer.Option(help="The design to write.")] = Path("design.dpfuse"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train a design for a guarantee and write it to a file.

    The first 80% of the recording are for training and the next 10% for validation.
    The last 10% are left for `dpfuse evaluate`.

    Example: dpfuse train road.dpfuse-data --budget 0.5 --adjacency remove-one --horizon 100

    Example: dpfuse train cars.csv --time t --sensor id --values speed --state density --non-private --horizon 100
    """
    refuse_overwrite(out, force)
    if non_private == (budget is not None) or (budget is not None and adjacency is None):
        raise typer.BadParameter("give --budget and --adjacency, or --non-private alone")
    import dpfuse
    from dpfuse._split import usual_split

    dpfuse.use_all_cores()
    data = recording.read()
    by = split_by or usual_split(data.num_runs, data.num_steps)
    typer.echo(f"{data.num_runs} run{'s' * (data.num_runs > 1)} of {data.num_steps} steps, split by {by}", err=True)
    training, validation, _ = data.split(by=by)
    guarantee = None
    if budget is not None and adjacency is not None:
        guarantee = dpfuse.Guarantee(
            order=order, budget=budget, adjacency=adjacency, accounting=accounting, period=read_period(period)
        )
    design = dpfuse.train(
        training,
        validation,
        guarantee,
        spending=spending,
        method=method,
        horizon=horizon,
        stationary=stationary,
        epoch_s=epoch_s,
        architecture=dpfuse.Architecture(recurrent_filter=recurrent_filter),
        optimisation=dpfuse.Optimisation(num_updates=updates, faults=faults),
        seed=seed,
        progress=True,
    )
    design.with_labels(label or (), channel or ()).save(out)
    summary: dict[str, Any] = {"file": str(out)}
    told = ("validation_mse", "prior_mse", "starts_mse")
    summary |= {name: design.training[name] for name in told if name in design.training}
    constants = design.policy.constants
    summary["measurement_range"] = [constants.measurement_low.tolist(), constants.measurement_high.tolist()]
    if floor and guarantee is not None:
        summary["floor_mse"] = _train_floor(training, validation, design, updates, seed)
    if as_json:
        typer.echo(json.dumps(summary | {"fingerprint": design.fingerprint}))
    else:
        typer.echo(_compared(summary), err=True)
        typer.echo(f"{out}: squared error {summary['validation_mse']:.4g} on the validation part")


def _train_floor(training: Trajectories, validation: Trajectories, design: Design, updates: int, seed: int) -> float:
    """The validation error of the floor, trained and validated on windows as long as those of the design."""
    import dpfuse

    window = design.training["window"]
    looks = dpfuse.Optimisation(num_updates=updates, window=window)
    horizon = design.structure.horizon
    end: dict[str, Any] = {"stationary": True} if horizon is None else {"horizon": horizon}
    floor = dpfuse.train(training, validation, None, optimisation=looks, seed=seed, progress=True, **end)
    return float(floor.training["validation_mse"])


def _compared(summary: dict[str, Any]) -> str:
    """The ranges that were chosen and, where it was trained, the floor."""
    bounds = zip(*summary["measurement_range"], strict=True)
    lines = [f"channel {n} is read from {low:g} to {high:g}" for n, (low, high) in enumerate(bounds)]
    if "floor_mse" in summary:
        lines.append(f"without noise (floor): {summary['floor_mse']:.4g}")
    return "\n".join(lines)
