"""`dpfuse simulate`: a recording of a built-in system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpfuse.cli._options import AsJson, Force, Share, refuse_overwrite

if TYPE_CHECKING:
    from dpfuse.trajectories import Trajectories

System = Literal["freeway", "sumo", "linear-gaussian", "hidden-markov", "tracking", "growth"]


def simulate(
    system: Annotated[System, typer.Argument(help="The system to simulate.")] = "freeway",
    out: Annotated[Path, typer.Option(help="The recording to write.")] = Path("recording.dpfuse-data"),
    runs: Annotated[int, typer.Option(help="Number of independent runs.")] = 4,
    minutes: Annotated[float, typer.Option(help="Length of a run in minutes; freeway and sumo only.")] = 45.0,
    steps: Annotated[int, typer.Option(help="Length of a run in steps; other systems only.")] = 100,
    share: Share = 0.3,
    seed: Annotated[int, typer.Option(help="Seed; equal seeds give equal recordings.")] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Simulate a system and write a recording.

    The freeway has five lanes and stop-and-go waves, calibrated to US Highway 101. Its
    state is the density of a 400 m section in vehicles per km. Each vehicle that
    reports measures its position in m and its speed in m/s every 0.2 s. sumo is another
    freeway with the same state and measurements, of four lanes with trucks and lane
    changes, simulated by SUMO (extra `sumo`). The
    linear-gaussian system is a random walk, and the hidden-markov system a chain with
    two states; both have 20 sensors. In tracking, six stations measure how far away a
    target in the plane is. In growth, ten sensors measure the square of a state whose
    sign must be found from its past.

    Example: dpfuse simulate freeway --runs 4 --out road.dpfuse-data
    """
    refuse_overwrite(out, force)
    data = _simulate(system, runs, minutes, steps, share, seed)
    data.save(out)
    summary = {
        "file": str(out),
        "system": system,
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
            f"sensors at a time; the state has mean {summary['state_mean']:.4g} and standard deviation "
            f"{summary['state_std']:.4g}"
        )


def _simulate(system: System, runs: int, minutes: float, steps: int, share: float, seed: int) -> Trajectories:
    import numpy as np

    from dpfuse.systems import freeway, growth, hidden_markov, linear_gaussian, sumo, tracking

    if system == "freeway":
        traffic = freeway.simulate(duration_s=60 * minutes, num_runs=runs, seed=seed)
        return traffic.sample_sensors(share, seed)
    if system == "sumo":
        return sumo.simulate(duration_s=60 * minutes, num_runs=runs, seed=seed).sample_sensors(share, seed)
    if system == "linear-gaussian":
        walk = linear_gaussian.LinearGaussian.random_walk()
        return linear_gaussian.simulate(walk, num_runs=runs, num_steps=steps, seed=seed)
    if system == "tracking":
        return tracking.simulate(tracking.Tracking(), num_runs=runs, num_steps=steps, seed=seed)
    if system == "growth":
        return growth.simulate(growth.Growth(), num_runs=runs, num_steps=steps, seed=seed)
    chain = hidden_markov.HiddenMarkov(
        transition=np.array([[0.95, 0.05], [0.05, 0.95]]),
        sensor_probabilities=np.array([0.2, 0.8]),
        initial=np.array([0.5, 0.5]),
        num_sensors=20,
    )
    return hidden_markov.simulate(chain, num_runs=runs, num_steps=steps, seed=seed)
