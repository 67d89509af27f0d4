"""Learned designs against the optimum: Theorem 1 solved, and what pathwise training makes of the same systems.

For each preset: even spending, the best schedule and the optimal closed loop, solved; the closed loop checked by a
second discretisation and by simulation; and designs learned from recordings, with their gap to the optimum. `make
optimality` runs it; results.json, table.md, collections.md and gaps.png beside this file are what it left. With
`--presets single`, whole collections alone are solved again, and what else the results hold is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

import dpfuse
from dpfuse import optimal
from dpfuse.optimal.figures import SPENDING, plot_gaps
from dpfuse.systems import hidden_markov

HERE = Path(__file__).parent
# The presets of the structured release; `single` is for whole collections.
STRUCTURED = ("slow", "onset", "scarce")


def main() -> None:
    """Solve, train, compare, and keep the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=[*STRUCTURED, "single"], help="which to solve and learn")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for results")
    parser.add_argument("--updates", type=int, default=3000, help="gradient steps for each adaptive design")
    parser.add_argument("--runs", type=int, default=40_000, help="simulated runs for each comparison")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    began = time.perf_counter()
    presets = {name: compare(name, given) for name in given.presets if name in STRUCTURED}
    solved = {"general": general(given)} if "single" in given.presets else {}
    kept = given.out / "results.json"
    if presets or not kept.exists():
        results = origin(given) | {"presets": presets, "general": {}} | solved
        results["seconds"] = round(time.perf_counter() - began)
    else:
        results = json.loads(kept.read_text()) | solved | {"origin of general": origin(given)}
    given.out.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(results, indent=2) + "\n")
    draw(results, given.out)


def origin(given: argparse.Namespace) -> dict[str, Any]:
    """Which command, code and machine the results are from."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return {
        "command": f"python experiments/optimality/run.py --presets {' '.join(given.presets)}",
        "commit": subprocess.run(describe, capture_output=True, text=True, cwd=HERE).stdout.strip(),
        "seed": given.seed,
        "updates": given.updates,
        "runs": given.runs,
        "machine": {"cores": os.cpu_count(), "device": jax.devices()[0].device_kind},
        "versions": {package: version(package) for package in ("jax", "equinox", "optax", "numpy")},
    }


def draw(results: dict[str, Any], out: Path) -> None:
    """Tables and figure from the results."""
    if results["presets"]:
        (out / "table.md").write_text(table(results["presets"]))
        plot_gaps(results["presets"]).savefig(out / "gaps.png", dpi=120)
        print(table(results["presets"]))
    if results["general"]:
        (out / "collections.md").write_text(collections(results["general"]))
        print(collections(results["general"]))


def compare(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """One preset: solved, checked and learned."""
    problem = optimal.PRESETS[name]
    started = time.process_time()
    solution = optimal.solve(problem)
    solved_s = time.process_time() - started
    schedule = optimal.best_schedule(problem)
    simulated = solution.simulate(num_runs=given.runs, seed=given.seed)
    second = optimal.crosscheck(problem)
    learned = {}
    for spending in SPENDING:
        print(f"{name}: training {spending}", flush=True)
        learned[spending] = optimal.measure_gap(
            train(problem, spending, given), solution, num_runs=given.runs
        ).to_dict()
        print(f"{name}: {spending} is {learned[spending]['total']:.2%} above the optimum", flush=True)
    return {
        "problem": problem.to_dict(),
        "solved": {"constant": schedule.even_value, "schedule": schedule.value, "adaptive": solution.value},
        "closed_loop_gain": 1 - solution.value / schedule.value,
        "solution": solution.to_dict() | {"cpu_seconds": round(solved_s, 1)},
        "schedule_starts": schedule.start_values.tolist(),
        "simulated": {"value": simulated.value, "ci95": simulated.ci95},
        "crosscheck": {"value": second, "difference": second / solution.value - 1},
        "learned": learned,
    }


def train(problem: optimal.Problem, spending: str, given: argparse.Namespace) -> dpfuse.Design:
    """A design learned from recordings, with the solution's own feature: the measurement itself."""
    data = hidden_markov.simulate(problem.system, num_runs=40_000, num_steps=problem.horizon, seed=given.seed + 1)
    training, validation, _ = data.split((0.9, 0.05, 0.05), by="run")
    updates = given.updates if spending == "adaptive" else given.updates // 3
    return dpfuse.train(
        training,
        validation,
        dpfuse.Guarantee(order=problem.order, budget=problem.budget, adjacency="replace-one"),
        spending=spending,
        architecture=dpfuse.Architecture(recurrent_filter="affine", measurement_range=(0.0, 1.0)),
        optimisation=dpfuse.Optimisation(
            num_updates=updates,
            batch_size=128,
            learning_rate=1e-2,
            validate_every=200,
            validation_windows=2000,
            patience=updates,
        ),
        seed=given.seed,
    )


def general(given: argparse.Namespace) -> dict[str, Any]:
    """Whole collections on one sensor: two symbols and four, against the structured release."""
    problem = optimal.PRESETS["single"]
    solutions: dict[str, optimal.Solution | optimal.GeneralSolution] = {"gaussian": optimal.solve(problem)}
    for num_symbols in (2, 4):
        solutions[f"{num_symbols} symbols"] = optimal.solve_general(problem, num_symbols=num_symbols)
    values = {}
    for name, solution in solutions.items():
        simulated = solution.simulate(num_runs=given.runs, seed=given.seed)
        values[name] = solution.to_dict() | {"simulated": {"value": simulated.value, "ci95": simulated.ci95}}
    return values


def table(presets: dict[str, Any]) -> str:
    """The comparison, a row for each preset and way to spend."""
    lines = [
        "| preset | spending | solved | over the optimum | learned over the optimum (95%) | spending / estimator |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for name, preset in presets.items():
        for spending, value in preset["solved"].items():
            own = preset["learned"][spending]
            low, high = own["ci95"]
            lines.append(
                f"| {name} | {SPENDING[spending]} | {value:.4f} | {value / preset['solved']['adaptive'] - 1:.1%} | "
                f"{own['total']:.1%} ({low:.1%} to {high:.1%}) | {own['spending']:.1%} / {own['estimator']:.1%} |"
            )
    return "\n".join(lines) + "\n"


def collections(general: dict[str, Any]) -> str:
    """Whole collections against Gaussian noise, a row for each."""
    lines = ["| release | solved | against Gaussian noise | on the grid half as fine | simulated (95%) |"]
    lines.append("|---|---|---|---|---|")
    for name, solved in general.items():
        low, high = solved["simulated"]["ci95"]
        kind = "Gaussian noise" if name == "gaussian" else f"any, on {name}"
        lines.append(
            f"| {kind} | {solved['value']:.4f} | {solved['value'] / general['gaussian']['value'] - 1:.1%} | "
            f"{solved['discretisation_error']:.3%} away | "
            f"{solved['simulated']['value']:.4f} ({low:.4f} to {high:.4f}) |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
