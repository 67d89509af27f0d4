"""The value of the structured release by a second method: an independent check of `dpfuse.optimal.solve`.

The two methods share the problem and nothing else. Here the budget is divided into equal quanta, and a release takes a
whole number of them, so that no interpolation over budgets is needed; this makes the value too high. Beliefs are evenly
spaced in their log-odds and interpolated linearly; the cost is concave, so this makes the value too low. The noise is
integrated by Gauss-Hermite quadrature around each count. Everything is NumPy.
"""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.optimal.problem import Problem

_LARGEST_LOG_ODDS = 12.0


def crosscheck(problem: Problem, *, num_quanta: int = 80, num_beliefs: int = 241, num_points: int = 12) -> float:
    """J*_1 at the full budget and the prior.

    Args:
        problem: the problem to solve.
        num_quanta: parts of the budget.
        num_beliefs: nodes of belief.
        num_points: points of the quadrature around each count.
    """
    nodes = 1 / (1 + np.exp(-np.linspace(-_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS, num_beliefs)))
    spreads = np.stack(
        [_spread(problem, nodes, n * problem.budget / num_quanta, num_points) for n in range(num_quanta + 1)]
    )
    move = _linear(nodes, problem.transition[0, 1] * (1 - nodes) + problem.transition[1, 1] * nodes)
    value = np.zeros((num_quanta + 1, num_beliefs))
    for _ in range(problem.horizon):
        rest = nodes * (1 - nodes) + value @ move.T
        value = np.full_like(value, np.inf)
        for spent in range(num_quanta + 1):
            remaining = num_quanta + 1 - spent
            value[spent:] = np.minimum(value[spent:], rest[:remaining] @ spreads[spent].T)
    return float((_linear(nodes, problem.prior[1:]) @ value[-1])[0])


def _spread(problem: Problem, nodes: Floats, loss: float, num_points: int) -> Floats:
    """For each belief before a release of this loss, the probability of each node as the belief after it."""
    weight = np.sqrt(2 * loss / problem.order)
    points, quadrature = np.polynomial.hermite_e.hermegauss(num_points)
    counts = problem.count_probabilities
    count = np.arange(counts.shape[1])
    release = (weight * count[:, None] + points).ravel()
    # In each state, the probability of each point, and the density there up to a common factor.
    chance = (counts[:, :, None] * (quadrature / quadrature.sum())).reshape(2, -1)
    density = np.exp(-0.5 * (release[:, None] - weight * count) ** 2) @ counts.T
    spread = np.zeros((len(nodes), len(nodes)))
    for row, belief in enumerate(nodes):
        prior = np.array([1 - belief, belief])
        joint = density * prior
        after = joint[:, 1] / np.maximum(joint.sum(axis=1), 1e-300)
        spread[row] = (prior @ chance) @ _linear(nodes, after)
    return spread


def _linear(nodes: Floats, at: Floats) -> Floats:
    """The weight of each node in the linear interpolation at each belief, shape (points, nodes)."""
    right = np.clip(np.searchsorted(nodes, at), 1, len(nodes) - 1)
    share = np.clip((at - nodes[right - 1]) / (nodes[right] - nodes[right - 1]), 0, 1)
    weights = np.zeros((len(at), len(nodes)))
    weights[np.arange(len(at)), right - 1] = 1 - share
    weights[np.arange(len(at)), right] = share
    return weights
