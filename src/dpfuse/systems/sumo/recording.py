"""Traffic that SUMO simulates, recorded as `Trajectories`. Needs the extra `sumo`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse._slots import in_slots
from dpfuse.errors import MissingExtra
from dpfuse.systems.sumo.road import SumoFreeway
from dpfuse.trajectories import Origin, Trajectories

STEP_S = 0.2
_WARM_UP_S = 300.0
_PROGRAM = Path(__file__).with_name("run_libsumo.py")
_LIBRARIES = "libx11-6 libxext6 libxrender1 libgl1 libatomic1"


def simulate(
    road: SumoFreeway | None = None,
    *,
    duration_s: float = 2700.0,
    interval_s: float = STEP_S,
    num_runs: int = 1,
    seed: int = 0,
) -> Trajectories:
    """Traffic on the section, simulated by SUMO: its density, and position and speed of every vehicle on it.

    Args:
        road: by default `SumoFreeway()`.
        duration_s: recorded time, after five minutes in which the road fills.
        interval_s: time between recorded steps, a multiple of 0.2 s. The traffic is the same for every interval.
        num_runs: independent runs. A run is the same for every number of runs.
        seed: equal seeds give equal traffic, with the same version of SUMO.

    Returns:
        `state` (N, K, 1) is the density in vehicles per km, all lanes together. `measurements` (N, K, m, 2) are the
        position in metres from the start of the section and the speed in m/s. Ids number the vehicles of a run in
        the order in which they are seen.
    """
    if find_spec("libsumo") is None:
        raise MissingExtra("a simulation by SUMO needs libsumo: pip install 'dpfuse[sumo]'")
    road = SumoFreeway() if road is None else road
    each = round(_check.is_positive("interval_s", interval_s) / STEP_S)
    if each < 1 or abs(each * STEP_S - interval_s) > 1e-9:
        raise ValueError(f"interval_s must be a multiple of {STEP_S}, got {interval_s}")
    steps = round(_check.is_positive("duration_s", duration_s) / interval_s)
    if steps < 1:
        raise ValueError(f"duration_s must be at least interval_s, {interval_s}, got {duration_s}")
    _check.is_count("seed", seed, minimum=0)
    runs = range(_check.is_count("num_runs", num_runs))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(partial(run_once, road, steps, each, seed), runs))
    return Trajectories.join([_record(road, table, steps, interval_s, run) for run, table in enumerate(found)])


def run_once(road: SumoFreeway, steps: int, each: int, seed: int, run: int, options: Sequence[str] = ()) -> Floats:
    """Step, vehicle, position on the road and speed of all sightings on the section, shape (sightings, 4).

    Args:
        each: SUMO's steps in a recorded step.
        options: further arguments of SUMO.
    """
    rng = np.random.default_rng([seed, run])
    own_seed = rng.integers(2**31)  # before the demand, so that a longer run begins like a shorter one
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "road.net.xml").write_text(road.network())
        (folder / "road.rou.xml").write_text(road.demand(_WARM_UP_S + steps * each * STEP_S, rng))
        arguments: list[Any] = ["-n", folder / "road.net.xml", "-r", folder / "road.rou.xml", "--step-length", STEP_S]
        arguments += ["--seed", own_seed, "--time-to-teleport", -1, "--no-internal-links"]
        arguments += ["--no-step-log", "--no-warnings", "--xml-validation", "never", *options]
        job = {
            "arguments": [str(argument) for argument in arguments],
            "section": [road.section_start_m, road.section_start_m + road.section_m],
            "warm_up": round(_WARM_UP_S / STEP_S),
            "each": each,
            "steps": steps,
        }
        (folder / "job.json").write_text(json.dumps(job))
        result = folder / "sightings.npy"
        command = [sys.executable, str(_PROGRAM), str(folder / "job.json"), str(result)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
            if "ImportError" in reason:
                raise MissingExtra(f"SUMO cannot be loaded ({reason}); Debian: apt-get install {_LIBRARIES}")
            raise RuntimeError(f"SUMO failed: {reason}")
        found: Floats = np.load(result, allow_pickle=False)
        return found


def _record(road: SumoFreeway, table: Floats, steps: int, interval_s: float, run: int) -> Trajectories:
    values = (table[:, 2:] - [road.section_start_m, 0.0]).astype(np.float32)
    step, vehicle = table[:, :2].astype(np.int64).T
    measurements, present, sensors = in_slots(step, vehicle, values, steps)
    return Trajectories(
        state=(present.sum(-1, keepdims=True) * (1000 / road.section_m))[None],
        measurements=measurements[None],
        present=present[None],
        sensors=sensors[None],
        interval_s=interval_s,
        origins=[Origin(run, 0)],
    )
