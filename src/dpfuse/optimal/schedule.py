"""The best schedule: the loss of each step, fixed before the first release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from dpfuse._arrays import Floats
from dpfuse.optimal.gaussian import Grid, Tables, make_grid, make_tables, position
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


def best_schedule(problem: Problem, *, num_beliefs: int = 81, num_budgets: int = 61, seed: int = 0) -> Schedule:
    """The schedule of least expected cost, found by a gradient search (L-BFGS) from several starts.

    The expected cost of a schedule is a product of matrices of `dpfuse.optimal.gaussian`, one for each step,
    interpolated between losses. The search is local: if all starts reach the same value, this suggests that it is the
    global minimum, but does not prove it.
    """
    rng = np.random.default_rng(seed)
    slopes = [slope * np.arange(problem.horizon) for slope in _SLOPES]
    starts = np.stack(slopes + [rng.normal(size=problem.horizon) for _ in range(_NUM_RANDOM_STARTS)])
    with jax.enable_x64(True):
        shares, values, even_value = _search(
            *(jnp.asarray(a) for a in (problem.transition, problem.count_probabilities, problem.budget, problem.order)),
            jnp.asarray(problem.prior),
            jnp.asarray(starts),
            grid=make_grid(problem, num_beliefs, num_budgets),
        )
        best = int(np.argmin(values))
        return Schedule(
            problem,
            problem.budget * np.asarray(shares[best]),
            float(values[best]),
            float(even_value),
            np.asarray(values),
        )


@partial(jax.jit, static_argnames="grid")
def _search(
    transition: Array, counts: Array, budget: Array, order: Array, prior: Array, starts: Array, *, grid: Grid
) -> tuple[Float[Array, "starts K"], Float[Array, " starts"], Array]:
    tables = make_tables(transition, counts, budget, order, grid)
    at_prior = position(prior[1], prior[0], grid.num_beliefs)

    def cost(logits: Array) -> Array:
        return interpolate(_expected_cost(tables, jax.nn.softmax(logits)), at_prior)

    optimiser = optax.lbfgs()
    value_and_grad = optax.value_and_grad_from_state(cost)

    def improve(carry: tuple[Array, optax.OptState], _: None) -> tuple[tuple[Array, optax.OptState], None]:
        logits, state = carry
        value, grads = value_and_grad(logits, state=state)
        updates, state = optimiser.update(grads, state, logits, value=value, grad=grads, value_fn=cost)
        return (optax.apply_updates(logits, updates), state), None

    def search(start: Array) -> tuple[Array, Array]:
        (logits, _), _ = jax.lax.scan(improve, (start, optimiser.init(start)), None, length=_ITERATIONS)
        return jax.nn.softmax(logits), cost(logits)

    shares, values = jax.lax.map(search, starts)
    return shares, values, cost(jnp.zeros_like(starts[0]))


def _expected_cost(tables: Tables, shares: Float[Array, " K"]) -> Float[Array, " beliefs"]:
    """The expected cost of a schedule from each belief."""
    # The tables are even functions of the square root of the loss. The small offset keeps its gradient finite at 0.
    at = jnp.sqrt(shares + 1e-16) * (len(tables.spread) - 1)

    def step_back(value: Array, at_step: Array) -> tuple[Array, None]:
        spread = interpolate(tables.spread, at_step, high="free")
        return spread @ (tables.variance + tables.move @ value), None

    return jax.lax.scan(step_back, jnp.zeros_like(tables.variance), at, reverse=True)[0]
