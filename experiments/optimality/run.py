"""Compare learned designs with the optimum of Theorem 1: `make optimality`.

For each preset this solves even spending, the best schedule and the optimal closed loop, checks the closed loop by a
second discretisation and by simulation, trains designs on recordings, and measures their gap to the optimum. It writes
results.json and gaps.png beside this file. With presets of three states (`--presets incident`) or whole collections
(`--presets single`) alone it keeps the rest of results.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import dpfuse
from dpfuse import optimal
from dpfuse.systems import hidden_markov
from experiments.optimality.crosscheck import crosscheck
from experiments.optimality.figures import plot_gaps
from tools.experiment_quotes import SPENDING
from tools.results import results_path, write_results

# The presets of the structured release; `single` is for whole collections.
TWO_STATES = ("slow", "onset", "scarce")
THREE_STATES = ("incident",)


def main() -> None:
    """Solve, train, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--presets", nargs="+", default=[*TWO_STATES, *THREE_STATES, "single"], help="which to solve and learn"
    )
    parser.add_argument("--out", type=Path, default=results_path("optimality").parent, help="folder for results")
    parser.add_argument("--designs", type=Path, default=Path("out/optimality"), help="folder that keeps the designs")
    parser.add_argument("--updates", type=int, default=3000, help="gradient steps for each adaptive design")
    parser.add_argument("--runs", type=int, default=40_000, help="simulated runs for each comparison")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    path = given.out / "results.json"
    command = f"python -m experiments.optimality.run --presets {' '.join(given.presets)}"
    began = time.perf_counter()
    results: dict[str, Any] = {"settings": {"updates": given.updates, "runs": given.runs}}
    for part, presets in [("presets", TWO_STATES), ("three_states", THREE_STATES)]:
        results[part] = {name: compare(name, given) for name in presets if name in given.presets}
    results["general"] = solve_collections(given) if "single" in given.presets else {}
    results["seconds"] = round(time.perf_counter() - began)
    if results["presets"]:
        write_results(path, results, command=command, seeds=[given.seed])
    else:
        for part in ("three_states", "general"):
            if results[part]:
                write_results(path, results[part], command=command, seeds=[given.seed], part=part)
    written = json.loads(path.read_text())["results"]
    plot_gaps(written["presets"] | written["three_states"]).savefig(given.out / "gaps.png", dpi=120)


def compare(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """One preset: solved, checked and learned."""
    problem = optimal.PRESETS[name]
    started = time.process_time()
    solution = optimal.solve(problem)
    solved_s = time.process_time() - started
    schedule = optimal.best_schedule(problem)
    simulated = solution.simulate(num_runs=given.runs, seed=given.seed)
    second = crosscheck(problem)
    learned = {}
    for spending, design in train(name, problem, given).items():
        learned[spending] = optimal.measure_gap(design, solution, num_runs=given.runs).to_dict()
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


def train(name: str, problem: optimal.Problem, given: argparse.Namespace) -> dict[str, dpfuse.Design]:
    """Designs learned from recordings, by spending rule; f is the solution's own, the measurement itself."""
    data = hidden_markov.simulate(problem.system, num_runs=40_000, num_steps=problem.horizon, seed=given.seed + 1)
    highest = problem.system.output_probabilities.shape[2] - 1.0
    updates = {spending: given.updates if spending == "adaptive" else given.updates // 3 for spending in SPENDING}
    settings = {
        spending: {
            "spending": spending,
            "recurrent_filter": "affine",
            "measurement_range": (0.0, highest),
            "num_updates": updates[spending],
            "patience": updates[spending],
            "batch_size": 128,
            "learning_rate": 1e-2,
            "validate_every": 200,
            "validation_windows": 2000,
        }
        for spending in SPENDING
    }
    found = dpfuse.sweep(
        {name: data.split((0.9, 0.05, 0.05), by="run")},
        dpfuse.Guarantee(order=problem.order, budget=problem.budget, adjacency="replace-one"),
        seeds=[given.seed],
        settings=settings,
        out=given.designs,
        progress=True,
    )
    if found.failures:
        raise SystemExit("not every design was made; run the same command again for what is missing")
    return {row["setting"]: design for row, design in zip(found.rows, found.designs(), strict=True)}


def solve_collections(given: argparse.Namespace) -> dict[str, Any]:
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


if __name__ == "__main__":
    main()
