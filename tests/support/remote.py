"""What a design releases, and the estimates that the centre makes of it."""

from __future__ import annotations

import copy
import json

import numpy as np

import dpfuse
from dpfuse.audit.worlds import make_inputs
from dpfuse.public.rows import Row, release_message, to_bytes
from dpfuse.public.signed_estimator import sign_estimator
from dpfuse.public_inputs import pack

NUM_STEPS = 6


def releases_of(design, num_steps=NUM_STEPS, skipped=(), seed=0):
    """The rows that a centre with a ledger in memory publishes, and its own estimates."""
    rng = np.random.default_rng(seed)
    step = dpfuse.ExactStep(design, num_rows=4)
    carry, last = step.init(), bytes(32)
    inputs = make_inputs(design, num_steps, seed)
    rows, estimates = [], []
    for number in range(1, num_steps + 1):
        if number in skipped:
            nothing = np.zeros((1, design.structure.dimension), np.int64)
            held = None if inputs is None else np.zeros((1, inputs.shape[1]), np.float32)
            carry, _ = step.estimate_many(carry, nothing[:, 0], nothing, True, held)
            continue
        carry, charged = step.contribute(carry, np.arange(4), rng.uniform(-1, 1, (4, design.structure.num_channels)))
        released = step.release(charged)
        now = None if inputs is None else inputs[number - 1]
        carry, (mean, std) = step.estimate(carry, released, now)
        left, cost = released.budget_left, None if released.budget_left is None else 7
        content = to_bytes(released), int(released.fusion_weight), cost, left
        row = Row.after(last, "main", number, *content, inputs=None if now is None else pack(now))
        last = row.hash
        rows.append(row)
        estimates.append((np.asarray(mean)[0], np.asarray(std)[0]))
    return rows, estimates


class Run:
    """The releases of a design, the centre's estimates, and the remote estimator, compiled once."""

    def __init__(self, design, folder, signer=None, **options):
        self.rows, self.estimates = releases_of(design, **options)
        to_message = release_message if signer is None else signer.to_message
        self.messages = [json.loads(to_message(row).content) for row in self.rows]
        self.path, self.unsigned_path = folder / "e.estimator", folder / "unsigned.estimator"
        design.export_estimator(self.unsigned_path)
        design.export_estimator(self.path)
        if signer is not None:
            sign_estimator(self.path, signer)
        self._estimator = dpfuse.RemoteEstimator.load(self.path)

    def estimator(self):
        """An estimator that has read nothing."""
        fresh = copy.copy(self._estimator)
        fresh._streams = {}
        return fresh


def assert_close(estimate, expected):
    np.testing.assert_allclose([estimate.mean, estimate.std], expected, rtol=1e-5)
