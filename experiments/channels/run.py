"""What missing channels cost: `make channels`.

Simulated traffic in which 30% of the vehicles report position and speed, and 30% of these channels are missing at
random. Compares designs that read which channels are missing with designs that drop such reports, and with designs for
complete reports. Writes results.json beside this file.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dpfuse
from dpfuse.systems import freeway
from tools.results import results_path, write_results

SHARE_OF_VEHICLES, MISSING = 0.3, 0.3
HORIZON, BUDGET = 100, 0.5


def only_complete(data: dpfuse.Trajectories) -> dpfuse.Trajectories:
    """The recording without the reports that lack a channel."""
    return replace(data, present=data.present & ~np.isnan(data.measurements).any(-1))


def main() -> None:
    """Train the designs, test them and write results.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=results_path("channels"))
    options = parser.parse_args()
    dpfuse.use_all_cores()
    traffic = freeway.simulate(num_runs=16, seed=0).sample_sensors(SHARE_OF_VEHICLES, 0)
    complete = traffic.split((0.5, 0.125, 0.375), by="run")
    partial = [part.drop_channels(MISSING, seed) for seed, part in enumerate(complete)]
    dropped = [only_complete(part) for part in partial]
    guarantee = dpfuse.Guarantee(order=2.0, budget=BUDGET, adjacency="remove-one", accounting="individual")
    optimisation = dpfuse.Optimisation(num_updates=options.updates)
    designs = {
        name: dpfuse.train_many(
            *parts[:2],
            [guarantee],
            seeds=range(options.seeds),
            horizon=HORIZON,
            optimisation=optimisation,
            progress=True,
        )
        for name, parts in (("complete", complete), ("partial", partial), ("dropped", dropped))
    }
    tests = {
        "complete": ("complete", complete[2]),
        "partial": ("partial", partial[2]),
        "dropped": ("dropped", dropped[2]),
        "complete_on_partial": ("complete", dropped[2]),
    }
    reports = {
        row: [dpfuse.evaluate(design, data, stride=HORIZON // 2) for design in designs[name]]
        for row, (name, data) in tests.items()
    }
    rows = {row: _row(own, reports["complete"]) for row, own in reports.items()}
    results = {
        "budget": BUDGET,
        "missing": MISSING,
        "reports_that_lack_a_channel": partial[2].num_partial / int(complete[2].present.sum()),
        "reports_that_lack_all": 1 - int(partial[2].present.sum()) / int(complete[2].present.sum()),
        "prior_mse": reports["complete"][0].prior_mse,
        "rows": rows,
    }
    write_results(options.out, results, command="make channels", seeds=range(options.seeds))
    for row, figures in rows.items():
        print(f"{row:20} {figures['mse']:8.1f}  {figures['ratio']:.3f} of the error for complete reports")


def _row(reports: list[dpfuse.Report], reference: list[dpfuse.Report]) -> dict[str, Any]:
    pairs = [dpfuse.compare(*pair) for pair in zip(reports, reference, strict=True)]
    mean = float(np.mean([report.mse for report in reports]))
    return {
        "mse": mean,
        "mse_of_seeds": [report.mse for report in reports],
        "ratio": mean / float(np.mean([report.mse for report in reference])),
        "ratio_of_seeds": [[pair.ratio, *(pair.ci95 or ())] for pair in pairs],
        "within_budget": all(report.within_budget for report in reports),
    }


if __name__ == "__main__":
    warnings.simplefilter("error", dpfuse.DataWarning)
    main()
