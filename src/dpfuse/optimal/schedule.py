"""The best schedule: the loss of each step, fixed before the first release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from dpfuse._arrays import Floats
from dpfuse.optimal.beliefs import weights_of_nodes
from dpfuse.optimal.gaussian import Grid, ProblemArrays, Tables, as_arrays, make_coarser, make_grid, make_tables
from dpfuse.optimal.interpolation import interpolate
from dpfuse.optimal.problem import Problem
from dpfuse.optimal.simulation import Simulation, simulate

_ITERATIONS = 80
# Starts of the search: even spending, more at the start, more at the end. Log-odds per step.
_SLOPES = (0.0, -0.2, 0.2)
_NUM_RANDOM_STARTS = 3


@dataclass(frozen=True, eq=False)
class Schedule:
    """A spending rule that depends on the step only.

    Attributes:
        problem: the problem that the schedule is for.
        losses: the loss of each step, shape (K,).
        value: the expected squared error, summed over the horizon.
        even_value: the same for even spending, the classical design.
        start_values: the value that the search reached from each start. `value` is the smallest.
    """

    problem: Problem
    losses: Floats
    value: float
    even_value: float
    start_values: Floats

    def simulate(self, *, num_runs: int = 50_000, seed: int = 0) -> Simulation:
        """Runs that follow the schedule, with exact beliefs."""
        return simulate(
            self.problem, lambda k, left, _: np.full_like(left, self.losses[k]), num_runs=num_runs, seed=seed
        )


def best_schedule(
    problem: Problem, *, num_beliefs: int | None = None, num_budgets: int | None = None, seed: int = 0
) -> Schedule:
    """The schedule of least expected cost, found by a gradient search (L-BFGS) from several starts.

    The expected cost of a schedule is a product of matrices of `dpfuse.optimal.gaussian`, one for each step. The search
    uses the grid of every second node and interpolates between losses; what it finds is evaluated on the whole grid.
    The search is local: if all starts reach the same value, this suggests that it is the global minimum, but does not
    prove it.
    """
    rng = np.random.default_rng(seed)
    slopes = [slope * np.arange(problem.horizon) for slope in _SLOPES]
    starts = np.stack(slopes + [rng.normal(size=problem.horizon) for _ in range(_NUM_RANDOM_STARTS)])
    grid = make_grid(problem, num_beliefs, num_budgets)
    with jax.enable_x64(True):
        arrays, prior = as_arrays(problem), jnp.asarray(problem.prior)
        found = _search(arrays, prior, jnp.asarray(starts), grid=make_coarser(problem, grid))
        even = jnp.full((1, problem.horizon), 1 / problem.horizon)
        *values, even_value = _evaluate(arrays, prior, jnp.concatenate([found, even]), grid=grid).tolist()
        best = int(np.argmin(values))
        return Schedule(problem, problem.budget * np.asarray(found[best]), values[best], even_value, np.array(values))


@partial(jax.jit, static_argnames="grid")
def _search(problem: ProblemArrays, prior: Array, starts: Array, *, grid: Grid) -> Float[Array, "starts K"]:
    """The share of each step in the budget that the search reaches from each start."""
    tables = make_tables(problem, grid, jnp.linspace(0, 1, grid.num_losses))
    at_prior = weights_of_nodes(prior, grid.num_beliefs)

    def cost(logits: Array) -> Array:
        # The tables are even functions of the square root of the loss. The small offset keeps its gradient finite at 0.
        at = jnp.sqrt(jax.nn.softmax(logits) + 1e-16) * (grid.num_losses - 1)
        return at_prior @ _expected_cost(tables, lambda at_step: interpolate(tables.spread, at_step, high="free"), at)

    optimiser = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(cost)

    def improve(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], None]:
        logits, state = carry
        value, grads = value_and_grad(logits, state=state)
        updates, state = optimiser.update(grads, state, logits, value=value, grad=grads, value_fn=cost)
        return (optax.apply_updates(logits, updates), state), None

    def search(start: Array) -> Array:
        (logits, _), _ = jax.lax.scan(improve, (start, optimiser.init(start)), None, length=_ITERATIONS)
        return jax.nn.softmax(logits)

    return jnp.asarray(jax.lax.map(search, starts))


@partial(jax.jit, static_argnames="grid")
def _evaluate(
    problem: ProblemArrays, prior: Array, shares: Float[Array, "schedules K"], *, grid: Grid
) -> Float[Array, " schedules"]:
    """The expected cost of each schedule, with matrices for its own losses."""
    at_prior = weights_of_nodes(prior, grid.num_beliefs)

    def cost(own: Array) -> Array:
        tables = make_tables(problem, grid, jnp.sqrt(own))
        return at_prior @ _expected_cost(tables, lambda spread: spread, tables.spread)

    return jnp.asarray(jax.lax.map(cost, shares))


def _expected_cost(tables: Tables, spread_of: Callable[[Array], Array], steps: Array) -> Float[Array, " beliefs"]:
    """The expected cost of a schedule from each belief; `spread_of` gives the matrix of each of `steps`."""

    def step_back(value: Array, step: Array) -> tuple[Array, None]:
        return spread_of(step) @ (tables.variance + tables.move @ value), None

    return jax.lax.scan(step_back, jnp.zeros_like(tables.variance), steps, reverse=True)[0]
