"""What a design releases, and the estimates that the centre makes of it."""

from __future__ import annotations

import copy
import json

import numpy as np

import dpfuse
from dpfuse.privacy.release import Release
from dpfuse.public.rows import Row, release_message, to_bytes

NUM_STEPS = 6


def releases_of(design, num_steps=NUM_STEPS, skipped=(), seed=0):
    """The rows that a centre with a ledger in memory publishes, and its own estimates."""
    rng = np.random.default_rng(seed)
    step = dpfuse.ExactStep(design, num_rows=4)
    carry, last = step.init(), bytes(32)
    rows, estimates = [], []
    for number in range(1, num_steps + 1):
        if number in skipped:
            nothing = Release(np.zeros(design.structure.dimension, np.int64), 0, None)
            carry, _ = step.estimate(carry, nothing)
            continue
        carry, charged = step.contribute(carry, np.arange(4), rng.uniform(-1, 1, (4, design.structure.num_channels)))
        released = step.release(charged)
        carry, (mean, std) = step.estimate(carry, released)
        left, cost = released.budget_left, None if released.budget_left is None else 7
        row = Row.after(last, "main", number, to_bytes(released), int(released.fusion_weight), cost, left)
        last = row.hash
        rows.append(row)
        estimates.append((np.asarray(mean)[0], np.asarray(std)[0]))
    return rows, estimates


class Run:
    """The releases of a design, the centre's estimates, and the remote estimator, compiled once."""

    def __init__(self, design, folder, **options):
        self.rows, self.estimates = releases_of(design, **options)
        self.messages = [json.loads(release_message(row)) for row in self.rows]
        self.path = folder / "e.estimator"
        design.export_estimator(self.path)
        self._estimator = dpfuse.RemoteEstimator.load(self.path)

    def estimator(self):
        """An estimator that has read nothing."""
        fresh = copy.copy(self._estimator)
        fresh._streams = {}
        return fresh


def assert_close(estimate, expected):
    np.testing.assert_allclose([estimate.mean, estimate.std], expected, rtol=1e-5)
