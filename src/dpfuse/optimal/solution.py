"""A solved problem: the cost to go, the optimal spending, and simulations that follow it."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse._frames import to_frame, write_columns
from dpfuse.optimal.beliefs import position
from dpfuse.optimal.problem import Problem
from dpfuse.optimal.simulation import Simulation, simulate


@dataclass(frozen=True, eq=False)
class Solution:
    """The optimality equations of a problem, solved on a grid.

    Attributes:
        problem: the problem that was solved.
        value: J*_1 at the full budget and the prior. It is the least squared error, summed over the horizon, of any
            rule that spends by past releases, if the feature is the measurement. Other features may do better.
        cost_to_go: J*_k at each step, budget left and belief, shape (K, budgets, beliefs).
        spending: the optimal loss of the release, same shape.
        budgets: the nodes of the budget left, shape (budgets,).
        beliefs: the nodes of belief, shape (beliefs, S). A belief is p(X_k | Z^{k-1}), before the release.
        coarse_value: `value` on a grid with half as many nodes of the budget and of each angle of belief.
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

    @property
    def num_beliefs(self) -> int:
        """The nodes of each angle of belief."""
        return int(round(len(self.beliefs) ** (1 / (self.problem.num_states - 1))))

    def spend(self, step_index: int, budget_left: Floats, belief: Floats) -> Floats:
        """The loss to spend at a step, counted from 0, for each budget left, shape (n,), and belief, shape (n, S).

        Between nodes the share of the budget left is interpolated, so the loss is never above the budget left.
        """
        share = np.empty_like(self.spending[step_index])
        share[1:] = self.spending[step_index, 1:] / self.budgets[1:, None]
        share[0] = share[1]
        row = np.sqrt(budget_left / self.problem.budget) * (len(self.budgets) - 1)
        place = np.concatenate([row[:, None], position(belief, self.num_beliefs)], axis=1)
        by_angle = share.reshape(-1, *[self.num_beliefs] * (belief.shape[-1] - 1))
        return np.minimum(_multilinear(by_angle, place), 1.0) * budget_left

    def simulate(self, *, num_runs: int = 50_000, seed: int = 0) -> Simulation:
        """Runs that follow `spend`, with exact beliefs."""
        return simulate(self.problem, self.spend, num_runs=num_runs, seed=seed)

    def to_columns(self) -> dict[str, Any]:
        """Columns with one row for each step, budget left and belief: cost to go and spending there."""
        step, budget, node = (index.ravel() for index in np.indices(self.cost_to_go.shape))
        probabilities = {f"p_state_{x}": self.beliefs[node, x].tolist() for x in range(self.problem.num_states)}
        return {
            "step": (step + 1).tolist(),
            "budget_left": self.budgets[budget].tolist(),
            **probabilities,
            "cost_to_go": self.cost_to_go.ravel().tolist(),
            "spending": self.spending.ravel().tolist(),
        }

    def to_frame(self) -> Any:
        """The columns as a DataFrame, of polars or else of pandas."""
        return to_frame(self.to_columns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the columns to a .csv, .json or .parquet file."""
        write_columns(self.to_columns(), path)

    def to_dict(self) -> dict[str, Any]:
        """The value and its error as JSON values."""
        return {
            "value": self.value,
            "discretisation_error": self.discretisation_error,
            "largest_difference": self.largest_difference,
            "num_states": self.problem.num_states,
            "num_beliefs": self.num_beliefs,
            "num_budgets": len(self.budgets),
        }


def _multilinear(values: Floats, place: Floats) -> Floats:
    """The values at each place, shape (n,), from places counted in nodes along each axis, shape (n, axes)."""
    node = np.clip(place.astype(np.int64), 0, np.array(values.shape) - 2)
    beyond = place - node
    total = np.zeros(len(place))
    for corner in itertools.product((0, 1), repeat=values.ndim):
        weight = np.where(corner, beyond, 1 - beyond).prod(axis=1)
        total += weight * values[tuple((node + corner).T)]
    return total
