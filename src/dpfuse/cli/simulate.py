"""`dpfuse simulate`: recordings of a built-in system."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpfuse.cli._files import refuse_overwrite

if TYPE_CHECKING:
    from dpfuse.types import Trajectories


class System(StrEnum):
    """The systems that come with dpfuse."""

    freeway = "freeway"
    linear_gaussian = "linear-gaussian"
    hidden_markov = "hidden-markov"


def simulate(
    system: Annotated[System, typer.Argument(help="What to simulate.")] = System.freeway,
    out: Annotated[Path, typer.Option(help="The recording to write.")] = Path("recording.dpfuse-data"),
    runs: Annotated[int, typer.Option(help="Independent runs.")] = 4,
    minutes: Annotated[float, typer.Option(help="Length of a freeway run in minutes.")] = 45.0,
    steps: Annotated[int, typer.Option(help="Length of a run of the other systems in steps.")] = 100,
    share: Annotated[float, typer.Option(help="Share of the vehicles that report, in (0, 1].")] = 0.3,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal recordings.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a system and write the recording.

    The freeway has five lanes and stop-and-go waves, calibrated to US Highway 101;
    its state is the density of a 400 m section in vehicles per km, and each vehicle
    that reports measures its position and speed every 0.2 s.

    Example: dpfuse simulate freeway --runs 4 --out road.dpfuse-data
    """
    refuse_overwrite(out, force)
    data = _simulate(system, runs, minutes, steps, share, seed)
    data.save(out)
    summary = {
        "file": str(out),
        "system": str(system),
        "runs": data.num_runs,
        "steps": data.num_steps,
        "interval_s": data.interval_s,
        "slots": data.num_slots,
        "state_mean": float(data.state.mean()),
        "state_std": float(data.state.std()),
    }
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        typer.echo(
            f"{out}: {data.num_runs} runs of {data.num_steps} steps of {data.interval_s:g} s, up to {data.num_slots} "
            f"sensors at a time; state {summary['state_mean']:.4g} on average, standard deviation "
            f"{summary['state_std']:.4g}"
        )


def _simulate(system: System, runs: int, minutes: float, steps: int, share: float, seed: int) -> Trajectories:
    import numpy as np

    from dpfuse.systems import freeway, hidden_markov, linear_gaussian

    if system is System.freeway:
        traffic = freeway.simulate(duration_s=60 * minutes, num_runs=runs, seed=seed)
        return traffic.sample_sensors(share, seed)
    if system is System.linear_gaussian:
        walk = linear_gaussian.LinearGaussian.random_walk()
        return linear_gaussian.simulate(walk, num_runs=runs, num_steps=steps, seed=seed)
    chain = hidden_markov.HiddenMarkov(
        transition=np.array([[0.95, 0.05], [0.05, 0.95]]),
        sensor_probabilities=np.array([0.2, 0.8]),
        initial=np.array([0.5, 0.5]),
        num_sensors=20,
    )
    return hidden_markov.simulate(chain, num_runs=runs, num_steps=steps, seed=seed)
