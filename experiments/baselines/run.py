"""Baselines and designs at equal guarantees on three systems: `make baselines`, results beside this file."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from systems import SYSTEMS, Parts

import dpfuse
from dpfuse import baselines

HERE = Path(__file__).parent
BUDGETS = (0.15, 0.5, 1.5)
PROMISE = dpfuse.Guarantee(order=2.0, budget=1.0, adjacency="remove-one")
DESIGNS = {
    "classical": ("constant", "total"),
    "adaptive": ("adaptive", "total"),
    "individual": ("adaptive", "individual"),
}


def design(system: str, parts: Parts, updates: int, folder: Path) -> dict[str, dict[float, dpfuse.Design]]:
    """Our designs by name and budget; those already in the folder are read."""
    designs: dict[str, dict[float, dpfuse.Design]] = {}
    for name, (policy, accounting) in DESIGNS.items():
        files = {budget: folder / f"{system}-{name}-{budget}.dpfuse" for budget in BUDGETS}
        if not all(file.exists() for file in files.values()):
            made = dpfuse.train_many(
                parts.training,
                parts.validation,
                [replace(PROMISE, budget=budget, accounting=accounting) for budget in BUDGETS],
                policy=policy,
                horizon=SYSTEMS[system].horizon,
                optimisation=dpfuse.Optimisation(num_updates=updates, patience=updates),
                progress=True,
            )
            for file, each in zip(files.values(), made, strict=True):
                each.save(file)
        designs[name] = {budget: dpfuse.load(file) for budget, file in files.items()}
    return designs


if __name__ == "__main__":
    out = Path("out/baselines")
    out.mkdir(parents=True, exist_ok=True)
    for system in ("freeway", "random walk", "hidden Markov chain"):
        start = time.time()
        for name, made in design(system, SYSTEMS[system].simulate(), 1000, out).items():
            print(system, name, [d.training["validation_mse"] for d in made.values()], time.time() - start, flush=True)
