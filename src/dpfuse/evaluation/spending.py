"""What a rollout spent, recomputed in the integers that a live centre would have debited."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.policy.design import Design
from dpfuse.policy.rollout import PackedWindows, Rollout
from dpfuse.privacy.budget import as_loss
from dpfuse.privacy.release import to_grid


class Spending(NamedTuple):
    """What was debited; as private as the recordings that it was debited for.

    Attributes:
        per_step: Rényi loss of each step, shape (K,): of a window (total) or a sensor that is present (individual),
            on average.
        largest: the most that one window, or one sensor, spent in all, in squared grid steps.
    """

    per_step: Floats
    largest: int


def exact_spending(design: Design, windows: PackedWindows, result: Rollout) -> Spending:
    """The debits of every step in integers, whatever the floating-point bookkeeping said."""
    assert design.guarantee is not None  # the floor promises nothing and spends nothing
    factor, order = design.structure.charge_factor, design.guarantee.order
    if design.guarantee.accounting == "total":
        costs = factor * to_grid(np.asarray(result.fusion_weight)[..., None])[..., 0] ** 2
        return Spending(as_loss(order, costs).mean(1), int(costs.sum(0).max()))
    rows = to_grid(np.asarray(result.contributions))
    costs = factor * (rows * rows).sum(-1)
    # A row holds one sensor after the other; each stay is an account of its own.
    stay = np.cumsum(windows.arrived, axis=0)
    per_stay = np.zeros((int(stay.max(initial=0)) + 1, costs.shape[1]), np.int64)
    np.add.at(per_stay, (stay, np.arange(costs.shape[1])), costs)
    num_present = np.maximum(windows.present.sum(1), 1)
    return Spending(as_loss(order, costs).sum(1) / num_present, int(per_stay.max(initial=0)))
