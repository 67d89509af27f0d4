"""Train and test the stationary design that comes with dpfuse: `make live-design`.

It is trained on simulated roads of every kind, see roads.py, and estimates the density for each lane. Beside it are
trained a floor, and a design on the road that SUMO simulates. Each is written to the folder when it is trained; one
whose file exists is not trained again. Then all are tested, on roads of every kind, on the usual freeway, on SUMO's,
and on US-101 where DPFUSE_DATA names its folder; none of US-101 is in training. Writes results.json beside this file,
and the design to src/dpfuse/designs/freeway.dpfuse.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dpfuse
from dpfuse import Design, Trajectories
from dpfuse.data import us101
from dpfuse.errors import MissingExtra
from dpfuse.systems import freeway, sumo
from experiments.live import roads
from tools.results import describe_machine, results_path, write_results

SHIPPED = Path(dpfuse.__file__).parent / "designs/freeway.dpfuse"
# The demo's budget.
GUARANTEE = dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one", accounting="individual")
# Steps of a test window, ten minutes; and the share of the vehicles that report.
STEPS, SHARE = 3000, 0.3
TRAINING_SEED, VALIDATION_SEED, TEST_SEED = 20, 21, 22
US101_LANES, US101_CHOICES = 5, 16
TRAINED: dict[str, tuple[str, dpfuse.Guarantee | None, dict[str, Any]]] = {
    "design": ("roads", GUARANTEE, {"stationary": True}),
    "floor": ("roads", None, {"spending": "constant", "horizon": STEPS}),
    "sumo": ("sumo", GUARANTEE, {"stationary": True}),
}


def main() -> None:
    """Train what is missing, then test and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TRAINED, help="train this one and write nothing else")
    parser.add_argument("--updates", type=int, default=1200, help="gradient steps of each")
    parser.add_argument("--folder", type=Path, default=Path("out/live"), help="for the files of designs and recordings")
    parser.add_argument("--note", help="in what this run differs from the command")
    options = parser.parse_args()
    if needs_sumo(options.only, options.folder) and find_spec("libsumo") is None:
        raise MissingExtra("make live-design needs libsumo: pip install 'dpfuse[sumo]'")
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine()
    for name in [options.only] if options.only else TRAINED:
        if not path_of(name, options.folder).exists():
            train(name, options)
    if options.only:
        return
    designs = {name: dpfuse.load(path_of(name, options.folder)) for name in TRAINED}
    labels = ["density [veh/km/lane]"], ["position [m]", "speed [m/s]"], ["reporting_lanes [km]"]
    designs["design"].with_labels(*labels).save(SHIPPED)
    results = {"guarantee": GUARANTEE.to_dict(), "fingerprint": designs["design"].fingerprint}
    results |= {"training": designs["design"].training, "tests": test_all(designs)}
    write_results(
        results_path("live"),
        results,
        command="make live-design",
        seeds=[0, TRAINING_SEED, VALIDATION_SEED, TEST_SEED],
        machine=machine,
        note=options.note,
    )
    print(json.dumps(results["tests"], indent=1))


def path_of(name: str, folder: Path) -> Path:
    """Where a trained design is kept."""
    return folder / f"{name}.dpfuse"


def needs_sumo(only: str | None, folder: Path) -> bool:
    """Whether SUMO's road must be simulated: for its own design if it has no recordings yet, and for the tests."""
    if only is None:
        return True
    world = TRAINED[only][0]
    kept = (path_of_recording(f"{world}-{part}", folder) for part in ("training", "validation"))
    return world == "sumo" and not path_of(only, folder).exists() and not all(path.exists() for path in kept)


def path_of_recording(name: str, folder: Path) -> Path:
    """Where a simulated recording is kept."""
    return folder / f"{name}.dpfuse-data"


def train(name: str, options: argparse.Namespace) -> None:
    """Train one of the designs, and write it."""
    began = time.perf_counter()
    world, guarantee, kind = TRAINED[name]
    training, validation = recordings_of(world, options.folder)
    design = dpfuse.train(
        training,
        validation,
        guarantee,
        architecture=dpfuse.Architecture(estimator_size=64),
        optimisation=dpfuse.Optimisation(num_updates=options.updates, window=600, batch_size=48, validation_windows=48),
        progress=True,
        **kind,
    )
    design.save(path_of(name, options.folder))
    print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)


def recordings_of(world: str, folder: Path) -> tuple[Trajectories, Trajectories]:
    """Training and validation, simulated once and kept in files: a machine with a GPU may lack SUMO."""
    makers: dict[str, Callable[[], Trajectories]] = {
        "roads-training": lambda: roads.simulate(24, 6, 1500.0, TRAINING_SEED),
        "roads-validation": lambda: roads.simulate(12, 2, 900.0, VALIDATION_SEED),
        "sumo-training": lambda: sumo_traffic(6, 1800.0, TRAINING_SEED),
        "sumo-validation": lambda: sumo_traffic(1, 1800.0, VALIDATION_SEED),
    }
    parts = []
    for name in (f"{world}-training", f"{world}-validation"):
        path = path_of_recording(name, folder)
        if not path.exists():
            makers[name]().save(path)
        parts.append(Trajectories.load(path))
    return parts[0], parts[1]


def sumo_traffic(num_runs: int, duration_s: float, seed: int) -> Trajectories:
    """Reports of a share of the vehicles on SUMO's road."""
    road = sumo.SumoFreeway()
    traffic = sumo.simulate(road, num_runs=num_runs, duration_s=duration_s, seed=seed).sample_sensors(SHARE, seed)
    return roads.with_lanes(traffic.compact(), road.num_lanes, road.section_m, SHARE)


def usual_freeway(share: float | None = SHARE) -> Trajectories:
    """Reports of a share of the vehicles on the built-in freeway; with None the share is not told to the design."""
    road = freeway.Freeway()
    traffic = freeway.simulate(road, num_runs=8, duration_s=600.0, seed=TEST_SEED).sample_sensors(SHARE, TEST_SEED)
    return roads.with_lanes(traffic, road.num_lanes, road.section_m, share)


def on_us101() -> Trajectories:
    """All of US-101, of whose vehicles a share reports, chosen many times."""
    recording = us101()
    section_m = 400.0
    parts = [recording.sample_sensors(SHARE, seed) for seed in range(US101_CHOICES)]
    return roads.with_lanes(Trajectories.join(parts).compact(), US101_LANES, section_m, SHARE)


def test_all(designs: dict[str, Design]) -> dict[str, Any]:
    """The errors in each world, in (vehicles per km and lane) squared."""
    worlds: dict[str, Callable[[], Trajectories]] = {
        "roads of every kind": lambda: roads.simulate(12, 2, 600.0, TEST_SEED),
        "the usual freeway": usual_freeway,
        "the usual freeway, share not known": lambda: usual_freeway(None),
        "the road of SUMO": lambda: sumo_traffic(8, 600.0, TEST_SEED),
    }
    if os.environ.get("DPFUSE_DATA"):
        worlds["US-101"] = on_us101
    found: dict[str, Any] = {}
    for world, make in worlds.items():
        recording = make()
        tested = [name for name in TRAINED if name != "sumo" or world == "the road of SUMO"]
        found[world] = {name: summary(designs[name], recording) for name in tested}
    return found


def summary(design: Design, recording: Trajectories) -> dict[str, Any]:
    """What a test showed."""
    report = dpfuse.evaluate(design, recording, num_steps=STEPS, stride=STEPS, num_draws=2)
    return {
        "windows": len(report.window_errors),
        "mse": report.mse,
        "ci95": report.ci95,
        "prior_mse": report.prior_mse,
        "coverage": report.coverage,
        "budget_spent_max": report.budget_spent_max,
        "within_budget": report.within_budget,
    }


if __name__ == "__main__":
    main()
