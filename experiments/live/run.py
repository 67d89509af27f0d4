"""Train and test the stationary design that comes with dpfuse: `make live-design`.

Writes src/dpfuse/designs/freeway.dpfuse, and results.json beside this file: the error over ten minutes of simulated
traffic that was not used in training, against the prior and a design without noise; and the error on US-101, where
DPFUSE_DATA names its folder. The design is trained on simulated traffic, so its weights depend on no real vehicle.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import dpfuse
from dpfuse.data import us101
from dpfuse.systems import freeway
from tools.results import results_path, write_results

DESIGNS = Path(dpfuse.__file__).parent / "designs"
# The demo's budget.
GUARANTEE = dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one", accounting="individual")
SHARE, STEPS, MINUTES, NUM_TESTS = 0.3, 3000, 10, 16
TRAINING_SEED, VALIDATION_SEED, TEST_SEED = 20, 21, 22


def main() -> None:
    """Train, test and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1200, help="gradient steps of the design and the floor")
    parser.add_argument("--out", type=Path, default=DESIGNS, help="folder of the design")
    options = parser.parse_args()
    began = time.process_time()
    # Only the road that the design is for.
    training, validation = traffic(8, TRAINING_SEED, 2700.0), traffic(1, VALIDATION_SEED, 1800.0)
    test = traffic(NUM_TESTS, TEST_SEED, 60.0 * MINUTES)
    plan: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "stationary": (GUARANTEE, options.updates, {"stationary": True}),
        "floor": (None, options.updates, {"spending": "constant", "horizon": STEPS}),
    }
    designs, reports = {}, {}
    for name, (guarantee, updates, kind) in plan.items():
        looks = dpfuse.Optimisation(num_updates=updates, window=300, validation_windows=48)
        designs[name] = dpfuse.train(training, validation, guarantee, optimisation=looks, progress=True, **kind)
        reports[name] = dpfuse.evaluate(designs[name], test, stride=STEPS, num_draws=2)
    labelled = designs["stationary"].with_labels(["density [veh/km]"], ["position [m]", "speed [m/s]"])
    labelled.save(options.out / "freeway.dpfuse")
    results = summary(designs["stationary"], reports) | {"cpu_seconds": round(time.process_time() - began)}
    write_results(
        results_path("live"),
        results,
        command=f"python -m experiments.live.run --updates {options.updates}",
        seeds=[0, TRAINING_SEED, VALIDATION_SEED, TEST_SEED],
    )
    print(json.dumps(results, indent=1))


def traffic(num_runs: int, seed: int, duration_s: float) -> dpfuse.Trajectories:
    """Runs of the built-in freeway, of whose vehicles a share reports."""
    return freeway.simulate(num_runs=num_runs, duration_s=duration_s, seed=seed).sample_sensors(SHARE, seed)


def on_us101(design: dpfuse.Design) -> dict[str, Any] | None:
    """The error on US-101, no part of which was used in training; None where DPFUSE_DATA is not set."""
    if not os.environ.get("DPFUSE_DATA"):
        return None
    report = dpfuse.evaluate(design, us101().sample_sensors(SHARE, 0), num_steps=STEPS, stride=STEPS, num_draws=2)
    return {
        "windows": len(report.window_errors),
        "mse": report.mse,
        "prior_mse": report.prior_mse,
        "coverage": report.coverage,
        "within_budget": report.within_budget,
    }


def summary(design: dpfuse.Design, reports: dict[str, dpfuse.Report]) -> dict[str, Any]:
    """The errors, also minute by minute, and the guarantee."""
    report, floor = reports["stationary"], reports["floor"]
    by_minute = report.mse_per_step.reshape(MINUTES, -1).mean(axis=1)
    return {
        "system": "the built-in freeway, dpfuse.systems.Freeway()",
        "share": SHARE,
        "guarantee": GUARANTEE.to_dict(),
        "epsilon": dict(report.epsilon),
        "delta": report.delta,
        "fingerprint": design.fingerprint,
        "test": {"runs": NUM_TESTS, "minutes": MINUTES, "seed": TEST_SEED, "draws": 2},
        "mse": report.mse,
        "ci95": report.ci95,
        "mse_by_minute": by_minute.tolist(),
        "coverage": report.coverage,
        "prior_mse": report.prior_mse,
        "non_private_mse": floor.mse,
        "non_private_ci95": floor.ci95,
        "budget_spent_max": report.budget_spent_max,
        "within_budget": report.within_budget,
        "us101": on_us101(design),
    }


if __name__ == "__main__":
    main()
