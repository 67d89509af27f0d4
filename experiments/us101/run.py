"""The US-101 case study: `make us101 DATA=DIR`, or `make us101-quick` for one budget and seed.

`make us101-guided` does a part that two cores can do, and leaves the rest of the results of record as it is.

Pieces that have been trained are kept in the folder and not trained again, so a run that was stopped goes on where it
was. On a GPU many designs train at once, and several pieces beside each other (`--jobs`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpfuse
from experiments.us101 import pieces, traffic
from experiments.us101.pieces import CANDIDATES, WHO_REPORTS, Piece, path_of

RECORDING = "recording.dpfuse-data"
# Patience without end: the running average of the weights is at its best when the learning rate has come down.
OPTIMISATION = dpfuse.Optimisation(num_updates=1000, batch_size=32, decay=0.99, patience=10**6, exploration=1.0)
QUICK = replace(OPTIMISATION, num_updates=600, batch_size=16)
# Guided designs learn faster: in a short trial half as many updates did as well on validation.
GUIDED = replace(OPTIMISATION, num_updates=500)
# With simulated traffic there is twice as much to learn from: on validation 2,000 updates do better, for every kind.
ENLARGED = replace(OPTIMISATION, num_updates=2000)


def main() -> None:
    """Train and test what is missing, then write the report."""
    arguments = read_arguments()
    folder: Path = arguments.out
    (folder / "pieces").mkdir(parents=True, exist_ok=True)
    if not (folder / RECORDING).exists():
        from dpfuse import data

        recording = data.us101(arguments.data, section=traffic.SECTION, interval_s=traffic.INTERVAL_S, progress=True)
        recording.save(folder / RECORDING)
    if arguments.piece is not None:
        everything = pieces.quick() if arguments.quick else [piece for stage in stages() for piece in stage]
        (piece,) = (piece for piece in everything if piece.name == arguments.piece)
        dpfuse.use_all_cores()
        train_and_test(piece, folder, QUICK if arguments.quick else optimisation_of(piece))
        return
    plan = [pieces.quick()] if arguments.quick else stages(guided_alone=arguments.guided)
    for stage in plan:
        run_all([piece for piece in stage if arguments.only in piece.name], arguments)
    if not arguments.only:
        if not arguments.quick:
            retest([*([] if arguments.guided else pieces.retested()), *pieces.guided_retested()], folder)
        from experiments.us101.report import write_report

        write_report(folder, quick=arguments.quick, guided_alone=arguments.guided)


def stages(*, guided_alone: bool = False) -> list[list[Piece]]:
    """The full study: first the candidates, whose best features the others take; in these what matters most first."""
    if guided_alone:
        return [pieces.guided_candidates(), pieces.guided()]
    rest = [*pieces.headline(), *pieces.folds(), *pieces.sensitivity(), *pieces.enlarged(), *pieces.ablation()]
    return [[*pieces.candidates(), *pieces.guided_candidates()], [*rest, *pieces.guided()]]


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the NGSIM files; by default DPFUSE_DATA")
    parser.add_argument("--out", type=Path, default=Path("out/us101"), help="where pieces and report go")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="one budget, one seed, every design: a few minutes")
    part.add_argument("--guided", action="store_true", help="only features that follow the releases, on 2 cores too")
    parser.add_argument("--jobs", type=int, default=1, help="pieces trained beside each other; 8 on a large GPU")
    parser.add_argument("--only", default="", help="only pieces with this in their name, no report")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_all(plan: list[Piece], arguments: argparse.Namespace) -> None:
    """Each piece in a process of its own, `--jobs` at a time."""
    waiting = [piece for piece in plan if not path_of(piece, arguments.out).exists()]
    total, running, began = len(waiting), {}, time.perf_counter()
    failed: list[str] = []
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            piece = waiting.pop(0)
            command = [sys.executable, "-m", "experiments.us101.run", "--out", arguments.out, "--piece", piece.name]
            command += ["--quick"] if arguments.quick else []
            running[piece.name] = subprocess.Popen(command, stderr=None if arguments.jobs == 1 else subprocess.PIPE)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                failed += [name] if process.returncode else []
                done, minutes = total - len(waiting) - len(running), (time.perf_counter() - began) / 60
                print(f"{done} of {total} pieces, {minutes:.1f} min: {name}", file=sys.stderr, flush=True)
                if process.returncode and process.stderr:
                    print(process.stderr.read().decode()[-2000:], file=sys.stderr)
        time.sleep(0.1)
    if failed:
        raise SystemExit(f"these pieces failed: {', '.join(failed)}; run the same command again for what is missing")


def optimisation_of(piece: Piece) -> dpfuse.Optimisation:
    """How a piece of the full study is trained."""
    if piece.is_enlarged:
        return ENLARGED
    usual = GUIDED if piece.guided else OPTIMISATION
    # The validation part of a fold has some three minutes. If they are calm, weights that hardly know more than the
    # mean look best: so there are two looks only, at half time and at the end.
    return usual if piece.fold is None else replace(usual, validate_every=usual.num_updates // 2)


def train_and_test(piece: Piece, folder: Path, optimisation: dpfuse.Optimisation) -> None:
    """The piece's designs, tested, in a file of its own."""
    began = time.perf_counter()
    chosen = piece if piece.features or piece.kind == "floor" else choose(piece, folder)
    recording = dpfuse.Trajectories.load(folder / RECORDING)
    parts = (
        traffic.paper_split(recording, piece.share)
        if piece.fold is None
        else traffic.fold(recording, piece.share, piece.fold)
    )
    if piece.spread is not None:
        parts = traffic.with_freeways(parts, piece.share, piece.spread, on_us101=piece.on_us101)
    designs = dpfuse.train_many(
        parts.training,
        parts.validation,
        piece.guarantees,
        seeds=range(piece.num_seeds),
        spending=pieces.SPENDING.get(piece.kind, "adaptive"),
        method="ppo" if piece.kind == "ppo" else "pathwise",
        horizon=piece.horizon,
        stationary=piece.horizon is None,
        architecture=chosen.architecture,
        optimisation=optimisation,
        ppo=dpfuse.PPO(**piece.ppo),
        progress=True,
    )
    rows = [test(design, parts.test) for design in designs]
    for design in designs[:: piece.num_seeds]:
        budget = design.guarantee.budget if design.guarantee else 0
        design.save(design_path(piece, budget, folder))
    result = {
        "piece": piece.name,
        "features": chosen.features,
        "dimension": designs[0].structure.dimension,
        "device": jax.devices()[0].device_kind,
        "seconds": round(time.perf_counter() - began, 1),
        "designs": rows,
    }
    path_of(piece, folder / WHO_REPORTS).unlink(missing_ok=True)
    write(path_of(piece, folder), result)


def retest(plan: list[Piece], folder: Path) -> None:
    """The first seeds again, on more choices of the vehicles that report."""
    dpfuse.use_all_cores()
    elsewhere = folder / WHO_REPORTS
    (elsewhere / "pieces").mkdir(parents=True, exist_ok=True)
    waiting = [piece for piece in plan if not path_of(piece, elsewhere).exists()]
    (share,) = {piece.share for piece in plan}
    again = traffic.paper_split(dpfuse.Trajectories.load(folder / RECORDING), share, traffic.MORE_TESTS).test
    for number, piece in enumerate(waiting, 1):
        designs = [dpfuse.load(design_path(piece, budget, folder)) for budget in pieces.LONG]
        write(path_of(piece, elsewhere), {"piece": piece.name, "designs": [test(design, again) for design in designs]})
        print(f"{number} of {len(waiting)} tested again: {piece.name}", file=sys.stderr, flush=True)


def test(design: dpfuse.Design, recording: dpfuse.Trajectories) -> dict[str, Any]:
    """What the report needs to know about one design."""
    report = dpfuse.evaluate(design, recording)
    figures = report.to_dict()
    kept = ("mse", "mse_per_step", "budget_per_step", "budget_spent_max", "within_budget", "coverage", "prior_mse")
    return {
        "budget": design.guarantee.budget if design.guarantee else None,
        "seed": design.training["seed"],
        "validation_mse": design.training["validation_mse"],
        "epsilon": report.epsilon.get("gdp"),
        **{name: _rounded(figures[name]) for name in kept},
        "window_errors": _rounded(report.window_errors.tolist()),
        "window_starts": [window.start for window in report.origins],
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write(path: Path, result: dict[str, Any]) -> None:
    """All or nothing: what is there counts as done."""
    whole = path.with_suffix(".part")
    whole.write_text(json.dumps(result))
    whole.replace(path)


def design_path(piece: Piece, budget: float, folder: Path) -> Path:
    """Where the design of the first seed is."""
    return folder / "designs" / f"{piece.name}_B{budget:g}.dpfuse"


def choose(piece: Piece, folder: Path) -> Piece:
    """The piece with the features that did best on validation, among those of its kind and traffic."""
    rivals = [
        rival
        for rival in [*pieces.candidates(), *pieces.guided_candidates()]
        if (rival.adjacency, rival.accounting, rival.is_enlarged, rival.guided)
        == (piece.adjacency, piece.accounting, piece.is_enlarged, piece.guided)
    ]
    assert len(rivals) == len(CANDIDATES[piece.adjacency, piece.accounting])
    best = min(rivals, key=lambda rival: validation_error(path_of(rival, folder)))
    return replace(piece, features=best.features, dimension=best.dimension)


def validation_error(path: Path) -> float:
    """The geometric mean over budgets and seeds: each budget counts alike."""
    designs = json.loads(path.read_text())["designs"]
    return float(np.exp(np.mean([np.log(design["validation_mse"]) for design in designs])))


if __name__ == "__main__":
    main()
