"""Household meters with a budget for each day: `make meters`.

Trains a design for simulated meters whose budget is renewed at midnight, and one with the same accounting whose budget
is for all time. Both are tested over 30 days. The first then runs as a live centre with a ledger for 30 days of a
simulated clock, and every account of every day is compared with the budget. Writes results.json beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import dpfuse
from dpfuse.evaluation.simulate import simulate_windows
from dpfuse.privacy.budget import as_loss
from experiments.meters.households import INTERVAL_S, STEPS_PER_DAY, simulate
from tools.results import results_path, write_results

NUM_DAYS, HOUSEHOLDS, BUDGET = 30, 100, 0.1
FIRST_DAY = 20_000
"""The number of the simulated clock's first day since 1970."""


def main() -> None:
    """Train the designs, test them, run the centre and write results.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=300)
    parser.add_argument("--runs", type=int, default=16, help="test runs of 30 days")
    parser.add_argument("--out", type=Path, default=results_path("meters"))
    options = parser.parse_args()
    dpfuse.use_all_cores()
    training, validation = (simulate(runs, 8, HOUSEHOLDS, seed) for seed, runs in ((1, 16), (2, 4)))
    test = simulate(options.runs, NUM_DAYS, HOUSEHOLDS, 3)
    daily = dpfuse.Guarantee(order=2.0, budget=BUDGET, adjacency="remove-one", accounting="individual", period="day")
    optimisation = dpfuse.Optimisation(num_updates=options.updates, batch_size=8, window=2 * STEPS_PER_DAY)
    results: dict[str, Any] = {"households": HOUSEHOLDS, "days": NUM_DAYS, "budget": BUDGET}
    designs = {}
    for name, guarantee in (("day", daily), ("all_time", replace(daily, period=None))):
        designs[name] = design = dpfuse.train(
            training, validation, guarantee, stationary=True, optimisation=optimisation, progress=True
        )
        results[name] = _errors_by_day(design, test)
        print(name, {key: value for key, value in results[name].items() if key != "mse_by_day"})
    results["prior_mse"] = float(np.square(test.state - training.state.mean()).mean())
    results["live"] = _run_live(designs["day"], simulate(1, NUM_DAYS, HOUSEHOLDS, 4))
    print(results["live"])
    write_results(options.out, results, command="make meters", seeds=[0])


def _errors_by_day(design: dpfuse.Design, test: dpfuse.Trajectories) -> dict[str, Any]:
    """The squared error of each day, and that of day 30 over that of day 2 with a 95% interval over the runs."""
    errors = []
    for batch in simulate_windows(design, test, num_draws=1, seed=5):
        squared = np.square(np.asarray(batch.result.mean) - np.asarray(batch.windows.state)).mean(-1)
        errors.append(squared.reshape(NUM_DAYS, STEPS_PER_DAY, -1).mean(1))
    by_day = np.concatenate(errors, axis=1)
    rng = np.random.default_rng(0)
    drawn = by_day[:, rng.integers(by_day.shape[1], size=(2000, by_day.shape[1]))].mean(-1)
    ratios = drawn[-1] / drawn[1]
    return {
        "mse": float(by_day.mean()),
        "mse_by_day": by_day.mean(1).tolist(),
        "day_30_over_day_2": float(by_day[-1].mean() / by_day[1].mean()),
        "interval": np.quantile(ratios, [0.025, 0.975]).tolist(),
        "report": _spending(design, test.runs(np.arange(4))),
    }


def _spending(design: dpfuse.Design, data: dpfuse.Trajectories) -> dict[str, Any]:
    report = dpfuse.evaluate(design, data, num_draws=1)
    return {"largest_loss_of_a_household": report.budget_spent_max, "within_budget": report.within_budget}


def _run_live(design: dpfuse.Design, data: dpfuse.Trajectories) -> dict[str, Any]:
    """30 days of a centre; after each day every account is read from the ledger."""
    assert design.guarantee is not None
    now_s = [FIRST_DAY * 86_400.0]
    largest, errors = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "meters.db"
        with dpfuse.Ledger.create(path, design) as ledger:
            centre = dpfuse.FusionCentre(design, ledger, wall_clock=lambda: now_s[0])
            for step in range(data.num_steps):
                reports = dict(enumerate(data.measurements[0, step].tolist()))
                published = centre.step(reports)
                errors.append(float(np.square(np.array(published.mean) - data.state[0, step]).mean()))
                now_s[0] += INTERVAL_S
                if (step + 1) % STEPS_PER_DAY == 0:
                    assert published.row.period == FIRST_DAY + step // STEPS_PER_DAY
                    largest.append(int(ledger.spent_of(np.arange(HOUSEHOLDS)).max()))
        from dpfuse.ledger import verify

        found = verify(path)
        num_bytes = path.stat().st_size
    by_day = np.array(errors).reshape(NUM_DAYS, -1).mean(1)
    return {
        "releases": found.streams["main"].num_rows,
        "days_begun": found.num_commits - found.streams["main"].num_rows,
        "largest_loss_of_a_household_in_a_day": as_loss(design.guarantee.order, max(largest)),
        "least_of_the_days": as_loss(design.guarantee.order, min(largest)),
        "days_above_budget": sum(one > found.terms.mechanism.budget for one in largest),
        "mse": float(np.mean(errors)),
        "mse_by_day": by_day.tolist(),
        "ledger_bytes": num_bytes,
    }


if __name__ == "__main__":
    main()
