"""Attack the worst f at several budgets and the designs of the demo: `make audit`.

Writes results.json beside this file and two figures of the docs: what a budget means for one driver, and the audit of
the demo's individual design.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import beta

import dpfuse
from dpfuse.audit import Claim, attack, plot_audit
from dpfuse.audit.worlds import NUM_ROWS, make_worlds, with_worst_filter, worst_pair
from dpfuse.policy import ExactStep
from dpfuse.privacy import chance_to_tell, gdp_epsilon
from tools.results import ROOT, results_path, write_results

IMAGES = ROOT / "docs/img"
BUDGETS = (0.07, 0.15, 0.5, 1.5, 5.0)
ORDER, DELTA, CONFIDENCE, NUM_STEPS, SEED = 2.0, 1e-5, 0.95, 10, 0


def main() -> None:
    """Attack, write the results and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--designs", type=Path, default=ROOT / "out/demo", help="designs of `make demo`")
    parser.add_argument("--runs", type=int, default=4000, help="runs in each world, for the worst f")
    parser.add_argument("--design-runs", type=int, default=1000, help="runs in each world, for each design")
    options = parser.parse_args()
    sweep = [attack_budget(budget, options.runs) for budget in BUDGETS]
    designs = {}
    for path in sorted(options.designs.glob("*.dpfuse")):
        design = dpfuse.load(path)
        if design.guarantee is None:
            continue
        began = time.process_time()
        result = dpfuse.audit_design(design, num_runs=options.design_runs, confidence=CONFIDENCE, progress=True)
        designs[path.stem] = result.to_dict() | {"cpu_seconds": round(time.process_time() - began, 1)}
        if path.stem == "individual":
            plot_audit(result).savefig(IMAGES / "audit.png", dpi=120)
    settings = {"order": ORDER, "delta": DELTA, "confidence": CONFIDENCE, "steps": NUM_STEPS}
    settings |= {"runs": options.runs, "design_runs": options.design_runs}
    write_results(
        results_path("audit"),
        {"settings": settings, "budgets": sweep, "designs": designs},
        command=f"python -m experiments.audit.run --runs {options.runs} --design-runs {options.design_runs}",
        seeds=[SEED],
        packages=["scipy"],
    )
    plot_one_driver(sweep).savefig(IMAGES / "one_driver.png", dpi=120)


def attack_budget(budget: float, num_runs: int) -> dict[str, Any]:
    """The attack on a canary that spends all of this budget."""
    guarantee = dpfuse.Guarantee(order=ORDER, budget=budget, adjacency="remove-one", accounting="individual")
    design = with_worst_filter(make_design(guarantee))
    claim = gdp_epsilon(ORDER, budget, DELTA, NUM_STEPS)
    worlds = make_worlds(design, *worst_pair(design, NUM_STEPS), seed=SEED)
    found = attack("the worst f", ExactStep(design, NUM_ROWS), worlds, num_runs, Claim(DELTA, CONFIDENCE, claim))
    assert all(check.passed for check in found.checks if not check.false_alarm)
    right, all_runs = found.attack.accuracy * 2 * num_runs, 2 * num_runs
    row = {
        "budget": budget,
        "epsilon_claimed": claim,
        "epsilon_bound": found.attack.epsilon_bound,
        "share": found.attack.epsilon_bound / claim,
        "reach": found.attack.reach,
        "chance_claimed": chance_to_tell(ORDER, budget),
        "chance_found": found.attack.accuracy,
        "chance_ci95": [
            float(beta.ppf(0.025, right, all_runs - right + 1)),
            float(beta.ppf(0.975, right + 1, all_runs - right)),
        ],
    }
    print(json.dumps(row))
    return row


def make_design(guarantee: dpfuse.Guarantee) -> dpfuse.Design:
    """A road's design before training, spending evenly: f is replaced and E has no part in what leaks."""
    return dpfuse.Design.untrained(
        guarantee,
        measurement_range=(0.0, [400.0, 30.0]),
        interval_s=0.2,
        num_states=1,
        num_channels=2,
        features="ball",
        dimension=1,
        spending="constant",
        horizon=NUM_STEPS,
        expected_stay=float(NUM_STEPS),
        expected_sensors=30.0,
    )


def plot_one_driver(sweep: list[dict[str, Any]]) -> Figure:
    """How often the best observer is right about one driver, against the budget."""
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axis = figure.subplots()
    budgets = np.geomspace(0.03, 10, 200)
    axis.semilogx(budgets, [100 * chance_to_tell(ORDER, b) for b in budgets], color="black", label="guarantee: at most")
    found = np.array([[100 * row["chance_found"], *(100 * np.array(row["chance_ci95"]))] for row in sweep])
    bars = np.abs(found[:, 1:].T - found[:, 0])
    axis.errorbar(BUDGETS, found[:, 0], bars, fmt="o", color="#D55E00", capsize=3, label="found by the audit (95%)")
    for row in sweep:
        text = f"epsilon {row['epsilon_claimed']:.1f}\naudit ≥ {row['epsilon_bound']:.1f}"
        place = row["budget"], 100 * row["chance_claimed"]
        axis.annotate(text, place, xytext=(9, -24), textcoords="offset points", fontsize=8, color="0.25")
    axis.axhline(50, color="0.6", linewidth=0.8, linestyle="--")
    axis.text(9.5, 50.8, "a coin toss", ha="right", fontsize=8, color="0.4")
    axis.set(
        xlabel="Rényi budget at order 2: everything ever published about one driver",
        ylabel="right guesses in 100",
        title='"Was this car on the road?" How often the best-informed stranger is right',
        ylim=(48, 100),
        xlim=(0.03, 10),
        xticks=BUDGETS,
        xticklabels=[f"{budget:g}" for budget in BUDGETS],
    )
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="upper left")
    return figure


if __name__ == "__main__":
    main()
