"""Theorem 1 for the structured release Z_k = g_k count_k + N(0, 1): the optimal loss by budget left and belief.

The feature of a sensor is its measurement. A release is therefore g times the number of sensors that measure 1, plus
noise, and its loss is alpha g^2 / 2 (`dpfuse.privacy.loss`). It depends on the present measurements only. So the belief
p(X_k, Y^k | Z^{k-1}) of the theorem reduces to one number, b = p(X_k = 1 | Z^{k-1}):

    J_k(s, b) = min over L <= s of E[ pi (1 - pi) + J_{k+1}(s - L, T pi) ],    g = sqrt(2 L / alpha),
    pi = p(X_k = 1 | Z^k) by Bayes' rule,    T pi = p(X_{k+1} = 1 | Z^k),    J_{K+1} = 0.

**Coordinates.** J is smooth in s and in b, and bends most where s is small and where b is near 0 or 1. So the nodes are
evenly spaced in sqrt(s) and in the angle theta of b = sin(theta / 2)^2. In these coordinates J is an even function at
every edge except that of the full budget, so cubic interpolation keeps its order up to the edges. The integral over Z
is a sum over evenly spaced values, which converges exponentially for analytic integrands like this one.

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
from dpfuse.optimal.interpolation import interpolate, weights_at
from dpfuse.optimal.problem import Problem
from dpfuse.optimal.solution import Solution
from dpfuse.privacy.loss import largest_weight

# The noise has less than 1e-8 of its probability beyond this many standard deviations.
_TAIL = 6.0
# Distance between two values of a release, in standard deviations of the noise.
_VALUE_STEP = 0.5
# Candidate losses for each interval of the budget grid. The error is of second order in their distance.
_LOSSES_PER_BUDGET = 4
# Log likelihood ratios are clipped to this.
_LARGEST_LOG_RATIO = 600.0
# Among losses of equal cost, up to this relative difference, the smallest is chosen.
_TIE = 1e-10


@dataclass(frozen=True)
class Grid:
    """The size of the grid: nodes of belief and budget, candidate losses, values of a release."""

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


def solve(problem: Problem, *, num_beliefs: int = 81, num_budgets: int = 61) -> Solution:
    """J* and the optimal spending over budget left and belief, with an estimate of the grid's error.

    The problem is also solved on a grid with half as many nodes, losses and values. The difference bounds the error of
    the finer grid where refinement converges. `Solution.simulate` checks the value without a grid.

    Args:
        problem: the problem to solve.
        num_beliefs, num_budgets: nodes of the grid, odd numbers.
    """
    check_grid(num_beliefs, num_budgets)
    with jax.enable_x64(True):
        value, spending = _solve_on(problem, make_grid(problem, num_beliefs, num_budgets, _VALUE_STEP))
        coarse, _ = _solve_on(problem, make_grid(problem, num_beliefs // 2 + 1, num_budgets // 2 + 1, 2 * _VALUE_STEP))
        beliefs = np.asarray(nodes_of_belief(num_beliefs))
        return Solution(
            problem=problem,
            budgets=problem.budget * np.linspace(0, 1, num_budgets) ** 2,
            beliefs=beliefs,
            cost_to_go=value,
            spending=spending,
            value=at_prior(problem, value[0, -1]),
            coarse_value=at_prior(problem, coarse[0, -1]),
            largest_difference=float(np.abs(value[0, ::2, ::2] - coarse[0]).max() / value[0].max()),
        )


def check_grid(num_beliefs: int, num_budgets: int) -> None:
    """Refuse numbers of nodes from which no coarser grid can be made."""
    for name, count in [("num_beliefs", num_beliefs), ("num_budgets", num_budgets)]:
        if _check.is_count(name, count, minimum=9) % 2 == 0:
            raise ValueError(f"{name} must be odd, got {count}; every second node belongs to the coarser grid")


def make_grid(problem: Problem, num_beliefs: int, num_budgets: int, value_step: float = _VALUE_STEP) -> Grid:
    """The grid whose values of Z are at most `value_step` apart and cover six standard deviations on both sides."""
    assert problem.num_sensors is not None  # filled in on construction
    width = largest_weight(problem.order, 1, problem.budget) * problem.num_sensors + 2 * _TAIL
    return Grid(num_beliefs, num_budgets, _LOSSES_PER_BUDGET * (num_budgets - 1) + 1, math.ceil(width / value_step) + 1)


def _solve_on(problem: Problem, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    value, spending = _induct(
        *(jnp.asarray(array) for array in (problem.transition, problem.count_probabilities, problem.budget)),
        jnp.asarray(problem.order),
        horizon=problem.horizon,
        grid=grid,
    )
    return np.asarray(value), np.asarray(spending)


@partial(jax.jit, static_argnames=("horizon", "grid"))
def _induct(
    transition: Array, counts: Array, budget: Array, order: Array, *, horizon: int, grid: Grid
) -> tuple[Float[Array, "K budgets beliefs"], Float[Array, "K budgets beliefs"]]:
    """Cost to go and spending at every step, by induction from the last to the first."""
    tables = make_tables(transition, counts, budget, order, grid)
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

    nothing = jnp.zeros((grid.num_budgets, grid.num_beliefs))
    return jax.lax.scan(step_back, nothing, None, length=horizon, reverse=True)[1]


def make_tables(transition: Array, counts: Array, budget: Array, order: Array, grid: Grid) -> Tables:
    """The matrices of the induction, for losses evenly spaced in their square root."""
    weights = jnp.sqrt(2 * budget / order) * jnp.linspace(0, 1, grid.num_losses)
    belief = nodes_of_belief(grid.num_beliefs)
    moved = jnp.stack([1 - belief, belief], axis=1) @ transition
    return Tables(
        spread=jax.lax.map(partial(_spread, counts, grid), weights),
        move=weights_at(position(moved[:, 1], moved[:, 0], grid.num_beliefs), grid.num_beliefs),
        variance=belief * (1 - belief),
    )


def _spread(counts: Float[Array, "2 counts"], grid: Grid, weight: Array) -> Float[Array, "beliefs nodes"]:
    """For each belief before a release of this fusion weight, the weights of the nodes after it."""
    belief = nodes_of_belief(grid.num_beliefs)[:, None]
    count = jnp.arange(counts.shape[1])
    z = jnp.linspace(-_TAIL, weight * count[-1] + _TAIL, grid.num_values)
    log_density = jax.nn.logsumexp(-0.5 * (z[:, None] - weight * count) ** 2, b=counts[:, None, :], axis=-1)
    log_ratio = jnp.clip(log_density[1] - log_density[0], -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    density = (1 - belief) * jnp.exp(log_density[0]) + belief * jnp.exp(log_density[1])
    at = position(belief * jnp.exp(log_ratio), 1 - belief, grid.num_beliefs)
    return jnp.einsum("bz,bzn->bn", density / density.sum(1, keepdims=True), weights_at(at, grid.num_beliefs))


def nodes_of_belief(num_beliefs: int) -> Float[Array, " beliefs"]:
    """Beliefs evenly spaced in their angle theta."""
    return jnp.sin(jnp.linspace(0, jnp.pi / 2, num_beliefs)) ** 2


def position(one: Array, zero: Array, num_beliefs: int) -> Array:
    """The place among the nodes, counted from 0, of the belief with odds one : zero."""
    angle = jnp.arctan2(jnp.sqrt(one), jnp.sqrt(zero))
    return angle * (2 / jnp.pi) * (num_beliefs - 1)


def at_prior(problem: Problem, value: np.ndarray | Array) -> float:
    """The value at the prior, interpolated between the nodes of belief."""
    at = position(jnp.asarray(problem.prior[1]), jnp.asarray(problem.prior[0]), len(value))
    return float(interpolate(jnp.asarray(value), at))
