"""The spending of a rollout, recomputed in the integers that a live centre would debit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Floats, Integers
from dpfuse.policy.design import Design
from dpfuse.policy.rollout import PackedWindows, Rollout
from dpfuse.privacy.budget import as_loss
from dpfuse.privacy.release import to_grid


class SpendingSummary(NamedTuple):
    """Debits of a rollout; private if its recordings are.

    Attributes:
        per_step: Rényi loss of each step, shape (K,): the mean over windows (total) or present sensors (individual).
        largest: the largest sum of debits of one window (total) or sensor (individual), in squared grid steps; within
            one period, if the guarantee has periods.
    """

    per_step: Floats
    largest: int


def exact_spending(design: Design, windows: PackedWindows, result: Rollout) -> SpendingSummary:
    """The debits of a rollout, computed in integers from its weights or contributions."""
    assert design.guarantee is not None  # a design without a guarantee has no accounts
    factor, order = design.structure.charge_factor, design.guarantee.order
    if design.guarantee.accounting == "total":
        costs = factor * to_grid(np.asarray(result.fusion_weight)[..., None])[..., 0] ** 2
        is_new = np.zeros_like(costs, bool) if windows.renewed is None else np.asarray(windows.renewed) > 0
        return SpendingSummary(as_loss(order, costs).mean(1), _largest_sum(costs, np.cumsum(is_new, axis=0)))
    rows = to_grid(np.asarray(result.contributions))
    costs = factor * (rows * rows).sum(-1)
    # Several sensors may use a row, one after the other. Each stay, and each period of it, is an account of its own.
    num_present = np.maximum(windows.present.sum(1), 1)
    largest = _largest_sum(costs, np.cumsum(windows.arrived, axis=0))
    return SpendingSummary(as_loss(order, costs).sum(1) / num_present, largest)


def _largest_sum(costs: Integers, account: Integers) -> int:
    """The largest sum of costs, shape (K, columns), over the steps of a column with one number in `account`."""
    sums = np.zeros((int(account.max(initial=0)) + 1, costs.shape[1]), np.int64)
    np.add.at(sums, (account, np.arange(costs.shape[1])), costs)
    return int(sums.max(initial=0))
