"""The spending of a rollout, recomputed in the integers that a live centre would debit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.policy.design import Design
from dpfuse.policy.rollout import PackedWindows, Rollout
from dpfuse.privacy.budget import as_loss
from dpfuse.privacy.release import to_grid


class SpendingSummary(NamedTuple):
    """Debits of a rollout; private if its recordings are.

    Attributes:
        per_step: Rényi loss of each step, shape (K,): the mean over windows (total) or present sensors (individual).
        largest: the largest sum of debits of one window (total) or sensor (individual), in squared grid steps.
    """

    per_step: Floats
    largest: int


def exact_spending(design: Design, windows: PackedWindows, result: Rollout) -> SpendingSummary:
    """The debits of a rollout, computed in integers from its weights or contributions."""
    assert design.guarantee is not None  # a design without a guarantee has no accounts
    factor, order = design.structure.charge_factor, design.guarantee.order
    if design.guarantee.accounting == "total":
        costs = factor * to_grid(np.asarray(result.fusion_weight)[..., None])[..., 0] ** 2
        return SpendingSummary(as_loss(order, costs).mean(1), int(costs.sum(0).max()))
    rows = to_grid(np.asarray(result.contributions))
    costs = factor * (rows * rows).sum(-1)
    # Several sensors may use a row, one after the other. Each stay is an account of its own.
    stay = np.cumsum(windows.arrived, axis=0)
    per_stay = np.zeros((int(stay.max(initial=0)) + 1, costs.shape[1]), np.int64)
    np.add.at(per_stay, (stay, np.arange(costs.shape[1])), costs)
    num_present = np.maximum(windows.present.sum(1), 1)
    return SpendingSummary(as_loss(order, costs).sum(1) / num_present, int(per_stay.max(initial=0)))
