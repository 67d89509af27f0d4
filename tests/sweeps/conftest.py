"""A sweep whose designs cost nothing: groups give back one ready design with made-up errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import dpfuse
from dpfuse.errors import TrainingDiverged
from dpfuse.sweeps import worker
from dpfuse.sweeps.reports import report_to_dict
from support.designs import make_design


class Pretended:
    """Takes the place of training; `calls` and `work` say what it was asked for, `diverges` which designs do."""

    def __init__(self, folder) -> None:
        self.calls: list[list[tuple[float | None, int]]] = []
        self.work: list[worker.GroupWork] = []
        self.diverges = lambda guarantee, seed: False
        self._path = folder / "ready.dpfuse"
        self._design = make_design()
        self._design.save(self._path)

    def __call__(self, parts, work):
        self.work.append(work)
        self.calls.append([(guarantee and guarantee.budget, seed) for guarantee, seed in work.pairs])
        if any(self.diverges(*pair) for pair in work.pairs):
            raise TrainingDiverged("not finite")
        reports = [pretend_report(*pair) for pair in work.pairs]
        names = ("spending", "method", "horizon", "recurrent_filter", "features", "dimension")
        row = dict.fromkeys(names, "usual") | {"validation_mse": 1.0, "training_s": 0.5}
        return worker.GroupOutcome(
            designs=[self._path.read_bytes()] * len(reports),
            reports=[report_to_dict(report) for report in reports],
            rows=[row] * len(reports),
            errors=[""] * len(reports),
        )


def pretend_report(guarantee, seed):
    """Errors that fall with the budget and depend on the seed, with twenty windows in ten blocks."""
    level = 1.0 if guarantee is None else 1 + 1 / guarantee.budget
    errors = level + 0.1 * seed + np.linspace(-0.2, 0.2, 20)
    return dpfuse.Report(
        mse=float(errors.mean()),
        mse_per_step=np.array([errors.mean()]),
        coverage=0.9,
        prior_mse=4.0,
        guarantee=guarantee,
        interval_s=1.0,
        budget_per_step=None if guarantee is None else np.array([0.1]),
        budget_spent_max=guarantee and 0.1,
        within_budget=guarantee and True,
        epsilon={} if guarantee is None else {"zcdp": 2 * guarantee.budget, "gdp": guarantee.budget},
        ci95=(0.5, 5.0),
        ci95_per_step=np.array([[0.5], [5.0]]),
        calibration={0.5: 0.4, 0.95: 0.9},
        window_errors=errors,
        blocks=np.arange(20) // 2,
        origins=tuple(dpfuse.trajectories.Origin(0, 10 * start) for start in range(20)),
    )


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    made = Pretended(tmp_path)
    monkeypatch.setattr(worker, "_together", made)
    return made


@pytest.fixture
def parts(walks):
    """Small recordings; what is in them does not matter where nothing is trained."""
    return tuple(part.runs(np.arange(4)) for part in walks)


@pytest.fixture
def guarantees():
    base = dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one")
    return [base, replace(base, budget=1.5), replace(base, accounting="individual"), None]
