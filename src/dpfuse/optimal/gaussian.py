"""Theorem 1 for the structured release: what to spend on Z_k = g_k count_k + N(0, 1), given budget left and belief.

The sensors' feature is fixed, the measurement itself, so that a release is g times the number of sensors that say 1
plus noise, at a loss of alpha g^2 / 2 (`dpfuse.privacy.loss`). It depends on the present measurements alone, so the
belief p(X_k, Y^k | Z^{k-1}) of the theorem is needed only through one number, b = p(X_k = 1 | Z^{k-1}):

    J_k(s, b) = min over L <= s of E[ pi (1 - pi) + J_{k+1}(s - L, T pi) ],    g = sqrt(2 L / alpha),
    pi = p(X_k = 1 | Z^k) by Bayes' rule,    T pi = p(X_{k+1} = 1 | Z^k),    J_{K+1} = 0.

Coordinates: J is smooth in s and in b, and bends most where there is little budget and near certainty. So nodes are
evenly spaced in sqrt(s) and in the angle theta of b = sin(theta / 2)^2, in which J is an even function at every edge
but that of the full budget, and cubic interpolation keeps its order up to the edges. The integral over Z is a sum over
evenly spaced values, which for such analytic integrands converges exponentially.

How pi spreads from each b under each loss does not depend on k: it becomes one matrix from nodes to nodes for each
loss, and every step of the induction is a matrix product.
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

# Beyond this many standard deviations there is less than 1e-8 of the noise.
_TAIL = 6.0
# Between two values of a release, in standard deviations of the noise.
_VALUE_STEP = 0.5
# Losses to choose from, for each step of the budget grid; the error is of second order in their distance.
_LOSSES_PER_BUDGET = 4
# Likelihood ratios beyond exp() of this are certainty.
_LARGEST_LOG_RATIO = 600.0
# Of two losses that cost the same, up to rounding, the smaller one is spent.
_TIE = 1e-10


@dataclass(frozen=True)
class Grid:
    """How finely the problem is cut: nodes of belief and budget, losses to choose from, values of a release."""

    num_beliefs: int
    num_budgets: int
    num_losses: int
    num_values: int


class Tables(NamedTuple):
    """What every step of the induction needs.

    Attributes:
        spread: from each belief before a release of each loss, weights of the mean over beliefs after it.
        move: from each belief about X_k, weights of the value at the belief about X_{k+1}.
        variance: of the state, at each belief.
    """

    spread: Float[Array, "losses beliefs nodes"]
    move: Float[Array, "beliefs nodes"]
    variance: Float[Array, " beliefs"]


def solve(problem: Problem, *, num_beliefs: int = 81, num_budgets: int = 61) -> Solution:
    """J* and the optimal spending over budget left and belief, with the error of the grid by comparison.

    The same problem is solved on a grid twice as coarse in every respect; the difference bounds the error of the finer
    one wherever refinement converges, and `Solution.simulate` checks the value without any grid.

    Args:
        problem: what to solve.
        num_beliefs, num_budgets: nodes, odd numbers, so that every second one makes the coarser grid.
    """
    for name, count in [("num_beliefs", num_beliefs), ("num_budgets", num_budgets)]:
        if _check.is_count(name, count, minimum=9) % 2 == 0:
            raise ValueError(f"{name} must be odd, got {count}; every second node makes the coarser grid")
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


def make_grid(problem: Problem, num_beliefs: int, num_budgets: int, value_step: float = _VALUE_STEP) -> Grid:
    """The grid with values of Z that far apart at most, from six deviations below to six above what it can be."""
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
    # The nodes are squares of fractions, equal only up to rounding where all is spent.
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
    """How the belief spreads with a release of this fusion weight."""
    belief = nodes_of_belief(grid.num_beliefs)[:, None]
    count = jnp.arange(counts.shape[1])
    z = jnp.linspace(-_TAIL, weight * count[-1] + _TAIL, grid.num_values)
    log_density = jax.nn.logsumexp(-0.5 * (z[:, None] - weight * count) ** 2, b=counts[:, None, :], axis=-1)
    log_ratio = jnp.clip(log_density[1] - log_density[0], -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    density = (1 - belief) * jnp.exp(log_density[0]) + belief * jnp.exp(log_density[1])
    at = position(belief * jnp.exp(log_ratio), 1 - belief, grid.num_beliefs)
    return jnp.einsum("bz,bzn->bn", density / density.sum(1, keepdims=True), weights_at(at, grid.num_beliefs))


def nodes_of_belief(num_beliefs: int) -> Float[Array, " beliefs"]:
    """Beliefs evenly spaced in their angle."""
    return jnp.sin(jnp.linspace(0, jnp.pi / 2, num_beliefs)) ** 2


def position(for_one: Array, for_zero: Array, num_beliefs: int) -> Array:
    """Where the belief with these odds lies among the nodes."""
    angle = jnp.arctan2(jnp.sqrt(for_one), jnp.sqrt(for_zero))
    return angle * (2 / jnp.pi) * (num_beliefs - 1)


def at_prior(problem: Problem, value: np.ndarray | Array) -> float:
    """The value at the prior, from that at the nodes of belief."""
    at = position(jnp.asarray(problem.prior[1]), jnp.asarray(problem.prior[0]), len(value))
    return float(interpolate(jnp.asarray(value), at))
