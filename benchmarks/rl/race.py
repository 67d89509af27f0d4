"""Our PPO against Stable-Baselines3 on the spending problem, f and E fixed: `make bench-rl`.

Three settings of Stable-Baselines3, the peer, are tried for some minutes each, the best one runs for twenty minutes,
and ours runs for two minutes with each of three seeds. Both are judged by the same error, with the clock stopped. A run
that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.rl.problem import GUARANTEE, REPORTING, STEPS, data_name
from benchmarks.timing import keep
from tools.results import ROOT

SETTINGS = ("PPO, defaults", "PPO, tuned", "RecurrentPPO")
SEEDS = (0, 1, 2)
CLOCKS = ("wall_s", "cpu_s")

Curve = list[dict[str, float]]


def main() -> None:
    """Race, and write results/rl.json and docs/img/rl-race.png."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trial-s", type=float, default=200, help="seconds for each setting of the peer")
    parser.add_argument("--race-s", type=float, default=1200, help="seconds for the best of them")
    parser.add_argument("--ours-s", type=float, default=120, help="seconds for each seed of ours")
    options = parser.parse_args()
    out = ROOT / "out/rl" / data_name()
    trials = {
        name: run(out, "peers", f"trial-{number}", options.trial_s, "--setting", name)
        for number, name in enumerate(SETTINGS)
    }
    best = min(SETTINGS, key=lambda name: lowest(trials[name]))
    peer = run(out, "peers", "peer", options.race_s, "--setting", best)
    ours = [run(out, "ours", f"ours-{seed}", options.ours_s, "--seed", str(seed)) for seed in SEEDS]
    results = {"problem": setting(), **summarise(trials, best, peer, ours)}
    packages = ("gymnasium", "torch", "stable-baselines3", "sb3-contrib")
    keep("rl", results, seeds=SEEDS, command="make bench-rl", packages=packages)
    plot(results)
    shutil.rmtree(out)


def setting() -> dict[str, Any]:
    """The problem that both learn."""
    return {"data": data_name(), "steps": STEPS, "reporting": REPORTING, "guarantee": GUARANTEE.to_dict()}


def run(out: Path, script: str, name: str, seconds: float, *arguments: str) -> Curve:
    """The curve of one learner, in a process of its own."""
    out.mkdir(parents=True, exist_ok=True)
    path, done = out / f"{name}.part.json", out / f"{name}.json"
    if not done.exists():
        print(f"{script} {' '.join(arguments)}: {seconds:.0f} s", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", f"benchmarks.rl.{script}", "--folder", str(out), "--curve", str(path)]
        subprocess.run([*command, "--seconds", str(seconds), *arguments], check=True, cwd=ROOT)
        path.rename(done)
    return list(json.loads(done.read_text()))


def lowest(curve: Curve) -> float:
    return min(point["error"] for point in curve)


def reached(curve: Curve, error: float, clock: str) -> float | None:
    """When the curve was first at or below the error; None if never."""
    return next((point[clock] for point in curve if point["error"] <= error), None)


def thin(curve: Curve) -> dict[str, list[float]]:
    """The curve to keep: every point that was the best so far, and about fifty others."""
    every, best, kept = -(-len(curve) // 50), math.inf, []
    for number, point in enumerate(curve):
        if point["error"] < best or number % every == 0 or number == len(curve) - 1:
            kept.append(point)
        best = min(best, point["error"])
    return {name: [round(point[name], 2) for point in kept] for name in curve[0]}


def summarise(trials: dict[str, Curve], best: str, peer: Curve, ours: list[Curve]) -> dict[str, Any]:
    """Every curve, and when ours reached what the peer had at the end of its time, and at its best."""
    last = [point["error"] for point in peer if point["wall_s"] >= peer[-1]["wall_s"] - 60]
    whole = {clock: peer[-1][clock] for clock in CLOCKS}
    return {
        "trials": {name: {"error": lowest(curve), "curve": thin(curve)} for name, curve in trials.items()},
        "peer": {"setting": best, "error": lowest(peer), **whole, "curve": thin(peer)},
        "ours": [
            {"seed": seed, "error": lowest(curve), "curve": thin(curve)}
            for seed, curve in zip(SEEDS, ours, strict=True)
        ],
        "even_spending": ours[0][0]["error"],
        "targets": {
            "after its whole time (last minute)": compare(sum(last) / len(last), peer, ours),
            "within 2% of its best": compare(1.02 * lowest(peer), peer, ours),
            "at its best": compare(lowest(peer), peer, ours),
        },
    }


def compare(error: float, peer: Curve, ours: list[Curve]) -> dict[str, Any]:
    """When each seed of ours, and the peer itself, reached the error; and the peer's whole time over ours."""
    result: dict[str, Any] = {"error": error}
    for clock in CLOCKS:
        times = [reached(curve, error, clock) for curve in ours]
        ratios = [peer[-1][clock] / at if at else None for at in times]
        result[clock] = {"ours": times, "peer": reached(peer, error, clock), "times_sooner": ratios}
    return result


def plot(results: dict[str, Any]) -> None:
    """The learning curves over time, on a logarithmic scale."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for number, ours in enumerate(results["ours"]):
        draw(axes, ours["curve"], "tab:blue", "dpfuse, three seeds" if number == 0 else None)
    peer = results["peer"]
    draw(axes, peer["curve"], "tab:orange", f"Stable-Baselines3 ({peer['setting']})")
    axes.axhline(peer["error"], color="tab:orange", linewidth=0.8, linestyle=":")
    axes.axhline(results["even_spending"], color="grey", linewidth=0.8, linestyle=":")
    axes.annotate("even spending", (0.01, results["even_spending"]), xycoords=("axes fraction", "data"), va="bottom")
    axes.set(xscale="log", xlabel="time spent learning, compilation included [s]")
    axes.set_ylabel("validation error [(veh/km)$^2$]")
    axes.legend(frameon=False, loc=(0.5, 0.72), title="best so far (pale: each point)", alignment="left")
    axes.spines[["top", "right"]].set_visible(False)
    path = ROOT / "docs/img/rl-race.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)


def draw(axes: Any, curve: dict[str, list[float]], colour: str, label: str | None) -> None:
    seconds = [max(at, 1.0) for at in curve["wall_s"]]
    axes.step(seconds, list(accumulate(curve["error"], min)), where="post", color=colour, label=label)
    axes.step(seconds, curve["error"], where="post", color=colour, linewidth=0.8, alpha=0.3)


if __name__ == "__main__":
    main()
