"""Theorem 1 for the structured release Z_k = g_k sum_k + N(0, 1): the optimal loss by budget left and belief.

The feature of a sensor is its measurement, scaled to [0, 1], and sum_k is their sum: of binary sensors, the number that
measure 1. The loss is alpha g^2 / 2 (`dpfuse.privacy.loss`). A release depends on the present measurements only. So the
belief p(X_k, Y^k | Z^{k-1}) of the theorem reduces to the distribution of the state, b = p(X_k | Z^{k-1}):

    J_k(s, b) = min over L <= s of E[ var(pi) + J_{k+1}(s - L, T pi) ],    g = sqrt(2 L / alpha),
    pi = p(X_k | Z^k) by Bayes' rule,    T pi = p(X_{k+1} | Z^k),    J_{K+1} = 0.

**Coordinates.** J is smooth in s and in b, and bends most where s is small and where b is near an edge. So the nodes
are evenly spaced in sqrt(s) and in the angles of b (`dpfuse.optimal.beliefs`). In these coordinates J is an even
function at every edge except that of the full budget, so cubic interpolation keeps its order up to the edges. The
integral over Z is a sum over evenly spaced values, which converges exponentially for analytic integrands like this one.

**Induction.** The distribution of pi for given b and loss does not depend on k. It is stored as one matrix from nodes
to nodes for each loss, and every step of the induction is a matrix product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpfuse import _check
from dpfuse._arrays import Floats
from dpfuse.optimal.beliefs import (
    at_prior,
    nodes_of_belief,
    product,
    variance_of_state,
    weights_by_angle,
    weights_of_nodes,
)
from dpfuse.optimal.interpolation import weights_at
from dpfuse.optimal.problem import Problem
from dpfuse.optimal.solution import Solution
from dpfuse.privacy.loss import largest_weight

# The noise has less than 1e-8 of its probability beyond this many standard deviations.
_TAIL = 6.0
# Distance between two values of a release, in standard deviations of the noise.
_VALUE_STEP = 0.5
# By the number of states: nodes of each angle of belief, nodes of the budget, and candidate losses for each interval of
# the budget grid. The error is of second order in the distance of losses. The matrices take about 1 GB for three or
# four states.
_NODES = {2: (81, 61), 3: (41, 25), 4: (13, 17)}
_LOSSES_PER_BUDGET = {2: 4, 3: 2, 4: 2}
# Log likelihood ratios are clipped to this.
_LARGEST_LOG_RATIO = 600.0
# Among losses of equal cost, up to this relative difference, the smallest is chosen.
_TIE = 1e-10


@dataclass(frozen=True)
class Grid:
    """The size of the grid: nodes of each angle of belief and of the budget, candidate losses, values of a release."""

    num_beliefs: int
    num_budgets: int
    num_losses: int
    num_values: int


class Tables(NamedTuple):
    """The matrices that every step of the induction uses.

    Attributes:
        spread: for each loss and each belief before the release, the weights of the nodes in the mean over beliefs
            after it.
        move: for each belief about X_k, the weights of the nodes in the value at the belief about X_{k+1}.
        variance: the variance of the state at each belief.
    """

    spread: Float[Array, "losses beliefs nodes"]
    move: Float[Array, "beliefs nodes"]
    variance: Float[Array, " beliefs"]


def solve(problem: Problem, *, num_beliefs: int | None = None, num_budgets: int | None = None) -> Solution:
    """J* and the optimal spending over budget left and belief, with an estimate of the grid's error.

    The problem is also solved on a grid with half as many nodes, losses and values. The difference bounds the error of
    the finer grid where refinement converges. `Solution.simulate` checks the value without a grid.

    Args:
        problem: the problem to solve.
        num_beliefs: nodes of each of the S - 1 angles of belief, an odd number. By default 81 for two states, 41 for
            three, 13 for four.
        num_budgets: nodes of budget left, an odd number. By default 61, 25 and 17.
    """
    grid = make_grid(problem, num_beliefs, num_budgets)
    coarse_grid = make_coarser(problem, grid)
    with jax.enable_x64(True):
        value, spending = _solve_on(problem, grid)
        coarse, _ = _solve_on(problem, coarse_grid)
        angles = problem.num_states - 1
        by_angle = value[0].reshape(-1, *[grid.num_beliefs] * angles)
        shared = by_angle[(slice(None, None, 2),) * (1 + angles)].reshape(coarse[0].shape)
        return Solution(
            problem=problem,
            budgets=problem.budget * np.linspace(0, 1, grid.num_budgets) ** 2,
            beliefs=np.asarray(nodes_of_belief(grid.num_beliefs, problem.num_states)),
            cost_to_go=value,
            spending=spending,
            value=at_prior(problem, value[0, -1], grid.num_beliefs),
            coarse_value=at_prior(problem, coarse[0, -1], coarse_grid.num_beliefs),
            largest_difference=float(np.abs(shared - coarse[0]).max() / value[0].max()),
        )


def check_grid(num_beliefs: int, num_budgets: int) -> None:
    """Refuse numbers of nodes from which no coarser grid can be made."""
    for name, count in [("num_beliefs", num_beliefs), ("num_budgets", num_budgets)]:
        if _check.is_count(name, count, minimum=9) % 2 == 0:
            raise ValueError(f"{name} must be odd, got {count}; every second node belongs to the coarser grid")


def make_grid(problem: Problem, num_beliefs: int | None, num_budgets: int | None) -> Grid:
    """The grid of a problem; numbers of nodes that are not given depend on the number of states."""
    beliefs, budgets = _NODES[problem.num_states]
    beliefs, budgets = beliefs if num_beliefs is None else num_beliefs, budgets if num_budgets is None else num_budgets
    check_grid(beliefs, budgets)
    return _grid(problem, beliefs, budgets, _VALUE_STEP)


def make_coarser(problem: Problem, grid: Grid) -> Grid:
    """The grid of every second node, loss and value."""
    return _grid(problem, grid.num_beliefs // 2 + 1, grid.num_budgets // 2 + 1, 2 * _VALUE_STEP)


def _grid(problem: Problem, num_beliefs: int, num_budgets: int, value_step: float) -> Grid:
    """The values of Z are at most `value_step` apart and cover six standard deviations on both sides."""
    width = largest_weight(problem.order, 1, problem.budget) * problem.feature_sums[-1] + 2 * _TAIL
    num_losses = _LOSSES_PER_BUDGET[problem.num_states] * (num_budgets - 1) + 1
    return Grid(num_beliefs, num_budgets, num_losses, math.ceil(width / value_step) + 1)


class ProblemArrays(NamedTuple):
    """The numbers of a problem for compiled code, as `Problem` describes them."""

    transition: Float[Array, "S S"]
    feature_sums: Float[Array, " sums"]
    sum_probabilities: Float[Array, "S sums"]
    budget: Float[Array, ""]
    order: Float[Array, ""]


def as_arrays(problem: Problem) -> ProblemArrays:
    return ProblemArrays(*(jnp.asarray(getattr(problem, name)) for name in ProblemArrays._fields))


def _solve_on(problem: Problem, grid: Grid) -> tuple[Floats, Floats]:
    value, spending = _induct(as_arrays(problem), horizon=problem.horizon, grid=grid)
    return np.asarray(value), np.asarray(spending)


@partial(jax.jit, static_argnames=("horizon", "grid"))
def _induct(
    problem: ProblemArrays, *, horizon: int, grid: Grid
) -> tuple[Float[Array, "K budgets nodes"], Float[Array, "K budgets nodes"]]:
    """Cost to go and spending at every step, by induction from the last to the first."""
    budget, tables = problem.budget, make_tables(problem, grid, jnp.linspace(0, 1, grid.num_losses))
    losses = budget * jnp.linspace(0, 1, grid.num_losses) ** 2
    left = budget * jnp.linspace(0, 1, grid.num_budgets)[:, None] ** 2 - losses
    # The nodes are squares of fractions: where all is spent, the budget left is 0 only up to rounding.
    allowed = left > -1e-12 * budget
    place = jnp.sqrt(jnp.maximum(left, 0) / budget) * (grid.num_budgets - 1)
    place = weights_at(place, grid.num_budgets, high="free")

    def step_back(value: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        rest = tables.variance + value @ tables.move.T
        after_spending = jnp.einsum("sln,nb->lsb", place, rest)
        cost = jnp.einsum("lsn,lbn->slb", after_spending, tables.spread)
        cost = jnp.where(allowed[..., None], cost, jnp.inf)
        value = cost.min(axis=1)
        best = jnp.argmax(cost <= value[:, None] + _TIE * value.max(), axis=1)
        return value, (value, losses[best])

    nothing = jnp.zeros((grid.num_budgets, len(tables.variance)))
    return jax.lax.scan(step_back, nothing, None, length=horizon, reverse=True)[1]


def make_tables(problem: ProblemArrays, grid: Grid, roots: Float[Array, " losses"]) -> Tables:
    """The matrices of the induction; `roots` are the square roots of the losses as shares of the budget."""
    weights = jnp.sqrt(2 * problem.budget / problem.order) * roots
    belief = nodes_of_belief(grid.num_beliefs, len(problem.transition))
    return Tables(
        spread=jax.lax.map(partial(_spread, problem, grid), weights),
        move=weights_of_nodes(belief @ problem.transition, grid.num_beliefs),
        variance=variance_of_state(belief),
    )


def _spread(problem: ProblemArrays, grid: Grid, weight: Array) -> Float[Array, "beliefs nodes"]:
    """For each belief before a release of this fusion weight, the weights of the nodes after it."""
    belief = nodes_of_belief(grid.num_beliefs, len(problem.transition))
    at = weight * problem.feature_sums
    z = jnp.linspace(-_TAIL, at[-1] + _TAIL, grid.num_values)
    chance = problem.sum_probabilities
    log_density = jax.nn.logsumexp(-0.5 * (z[:, None, None] - at) ** 2, b=chance, axis=-1)
    log_ratio = jnp.maximum(log_density - log_density.max(-1, keepdims=True), -_LARGEST_LOG_RATIO)
    density = belief @ jnp.exp(log_density).T
    first, *others = weights_by_angle(belief[:, None] * jnp.exp(log_ratio), grid.num_beliefs)
    first = first * (density / density.sum(1, keepdims=True))[..., None]
    # The sum over Z is a product of two matrices, so that no array holds the weights of all nodes for each Z.
    rest = product(jnp.ones((*density.shape, 1)), others)
    return jnp.einsum("bzi,bzj->bij", first, rest).reshape(len(belief), -1)
