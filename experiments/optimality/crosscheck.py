"""The value of the structured release by a second method: an independent check of `dpfuse.optimal.solve`.

The two methods share the problem and nothing else. Here the budget is divided into equal quanta, and a release takes a
whole number of them, so that no interpolation over budgets is needed; this makes the value too high. The nodes of
belief are a regular lattice of triangles (tetrahedra for four states) in the cube roots of the probabilities, and
values are linear inside each. The noise is integrated by Gauss-Hermite quadrature around each sum of features.
Everything is NumPy.
"""

from __future__ import annotations

import itertools

import numpy as np

from dpfuse._arrays import Floats, Integers
from dpfuse.optimal.problem import Problem

# Parts of an edge of the lattice, by the number of states.
_PARTS = {2: 240, 3: 40, 4: 18}


def crosscheck(problem: Problem, *, num_quanta: int = 80, num_parts: int | None = None, num_points: int = 8) -> float:
    """J*_1 at the full budget and the prior.

    Args:
        problem: the problem to solve.
        num_quanta: parts of the budget.
        num_parts: parts of an edge of the lattice of beliefs.
        num_points: points of the quadrature around each sum.
    """
    lattice = Lattice(problem.num_states, num_parts or _PARTS[problem.num_states])
    spreads = np.stack(
        [_spread(problem, lattice, n * problem.budget / num_quanta, num_points) for n in range(num_quanta + 1)]
    )
    nodes, number = lattice.nodes, np.arange(problem.num_states)
    variance = nodes @ number**2 - (nodes @ number) ** 2
    move = lattice.mean(np.ones((len(nodes), 1)), (nodes @ problem.transition)[:, None])
    value = np.zeros((num_quanta + 1, len(nodes)))
    for _ in range(problem.horizon):
        rest = variance + value @ move.T
        value = np.full_like(value, np.inf)
        for spent in range(num_quanta + 1):
            remaining = num_quanta + 1 - spent
            value[spent:] = np.minimum(value[spent:], rest[:remaining] @ spreads[spent].T)
    return float(lattice.mean(np.ones((1, 1)), problem.prior[None, None])[0] @ value[-1])


def _spread(problem: Problem, lattice: Lattice, loss: float, num_points: int) -> Floats:
    """For each belief before a release of this loss, the probability of each node as the belief after it."""
    weight = np.sqrt(2 * loss / problem.order)
    points, quadrature = np.polynomial.hermite_e.hermegauss(num_points)
    at, probabilities = weight * problem.feature_sums, problem.sum_probabilities
    release = (at[:, None] + points).ravel()
    # In each state, the probability of each point, and the density there up to a common factor.
    chance = (probabilities[:, :, None] * (quadrature / quadrature.sum())).reshape(problem.num_states, -1)
    density = np.exp(-0.5 * (release[:, None] - at) ** 2) @ probabilities.T
    joint = lattice.nodes[:, None] * density
    return lattice.mean(lattice.nodes @ chance, joint / np.maximum(joint.sum(axis=-1, keepdims=True), 1e-300))


class Lattice:
    """Beliefs whose cube roots, divided by their sum, are whole numbers of parts.

    A node is named by the sums of its parts from each state but the first to the last, which fall from state to state.
    """

    def __init__(self, num_states: int, num_parts: int) -> None:
        names = itertools.combinations_with_replacement(range(num_parts, -1, -1), num_states - 1)
        sums = np.array([(num_parts, *name, 0) for name in names])
        roots = -np.diff(sums, axis=1)
        self.nodes = roots**3 / (roots**3).sum(axis=1, keepdims=True)
        self.num_parts = num_parts
        self._index: Integers = np.zeros((num_parts + 1,) * (num_states - 1), np.int64)
        self._index[tuple(sums[:, 1:-1].T)] = np.arange(len(sums))

    def mean(self, chance: Floats, belief: Floats) -> Floats:
        """For each row of points, the weight of each node in the mean of the values at them, shape (rows, nodes).

        Args:
            chance: the probability of each point, shape (rows, points).
            belief: the belief at each point, shape (rows, points, S).
        """
        roots = np.cbrt(belief)
        place = np.cumsum((roots / np.maximum(roots.sum(-1, keepdims=True), 1e-300))[..., :0:-1], axis=-1)[..., ::-1]
        place = np.clip(place * self.num_parts, 0, self.num_parts)
        corner = np.floor(place).astype(np.int64)
        beyond = place - corner
        # From corner to corner of the triangle around a point, the coordinates grow by 1 in the order of their rests.
        order = np.argsort(-beyond, axis=-1, kind="stable")
        steps = np.concatenate([np.take_along_axis(beyond, order, -1), np.zeros((*chance.shape, 1))], axis=-1)
        rows = np.arange(len(chance))[:, None] * len(self.nodes)
        total, weight = np.zeros(len(chance) * len(self.nodes)), 1 - steps[..., 0]
        for i in range(steps.shape[-1]):
            name = tuple(np.moveaxis(np.minimum(corner, self.num_parts), -1, 0))
            total += np.bincount((rows + self._index[name]).ravel(), (chance * weight).ravel(), len(total))
            if i < order.shape[-1]:
                np.put_along_axis(
                    corner, order[..., i : i + 1], np.take_along_axis(corner, order[..., i : i + 1], -1) + 1, -1
                )
                weight = steps[..., i] - steps[..., i + 1]
        return total.reshape(len(chance), -1)
