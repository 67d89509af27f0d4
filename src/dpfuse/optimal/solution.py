"""A solved problem: the cost to go, the optimal spending, and simulations that follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.optimal.problem import Problem
from dpfuse.optimal.simulation import Simulation, simulate


@dataclass(frozen=True, eq=False)
class Solution:
    """The optimality equations of a problem, solved on a grid.

    Attributes:
        problem: the problem that was solved.
        value: J*_1 at the full budget and the prior. It is the least squared error, summed over the horizon, of any
            rule that spends by past releases.
        cost_to_go: J*_k at each step, budget left and belief, shape (K, budgets, beliefs).
        spending: the optimal loss of the release, same shape.
        budgets, beliefs: the nodes of the grid. A belief is p(X_k = 1 | Z^{k-1}), before the release.
        coarse_value: `value` on a grid with half as many nodes.
        largest_difference: the largest difference of J*_1 between the two grids at shared nodes, divided by the largest
            J*_1.
    """

    problem: Problem
    value: float
    cost_to_go: Floats
    spending: Floats
    budgets: Floats
    beliefs: Floats
    coarse_value: float
    largest_difference: float

    @property
    def discretisation_error(self) -> float:
        """The relative difference between the values on the two grids."""
        return abs(self.value / self.coarse_value - 1)

    def spend(self, step_index: int, budget_left: Floats, belief: Floats) -> Floats:
        """The loss to spend at a step, counted from 0, for each budget left and belief, shape (n,).

        Between nodes the share of the budget left is interpolated, so the loss is never above the budget left.
        """
        share = np.empty_like(self.spending[step_index])
        share[1:] = self.spending[step_index, 1:] / self.budgets[1:, None]
        share[0] = share[1]
        row = np.sqrt(budget_left / self.problem.budget) * (len(self.budgets) - 1)
        column = np.arcsin(np.sqrt(belief)) * (2 / np.pi) * (len(self.beliefs) - 1)
        return np.minimum(_bilinear(share, row, column), 1.0) * budget_left

    def simulate(self, *, num_runs: int = 50_000, seed: int = 0) -> Simulation:
        """Runs that follow `spend`, with exact beliefs."""
        return simulate(self.problem, self.spend, num_runs=num_runs, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """The value and its error as JSON values."""
        return {
            "value": self.value,
            "discretisation_error": self.discretisation_error,
            "largest_difference": self.largest_difference,
            "num_beliefs": len(self.beliefs),
            "num_budgets": len(self.budgets),
        }


def _bilinear(values: Floats, row: Floats, column: Floats) -> Floats:
    i = np.clip(row.astype(np.int64), 0, values.shape[0] - 2)
    j = np.clip(column.astype(np.int64), 0, values.shape[1] - 2)
    down, right = row - i, column - j
    upper = (1 - right) * values[i, j] + right * values[i, j + 1]
    lower = (1 - right) * values[i + 1, j] + right * values[i + 1, j + 1]
    return np.asarray((1 - down) * upper + down * lower)
