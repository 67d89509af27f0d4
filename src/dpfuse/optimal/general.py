"""Theorem 1 in its general form, for two states and one binary sensor: the best collections of release distributions.

    J_k(s, b) = min over L <= s and collections of loss L of  sum_z p(z) [ pi_z (1 - pi_z) + J_{k+1}(s - L, T pi_z) ]

**Which collections.** Collections that read the present measurement and past releases: F_k(z | y_k, Z^{k-1}). The
theorem also allows the sensor's past measurements, F_k(z | y^k, Z^{k-1}).

- If the sensor measures the state without error (`sensor_probabilities` 0 and 1), the restriction costs nothing. From
  any collection F make F'(z | y_k) = sum over y^{k-1} of p(y^{k-1} | y_k, Z^{k-1}) F(z | y^k). The joint law of X_k and
  Z^k stays the same, hence so does every cost. Rényi divergence is jointly quasi-convex, so F'(.|0) and F'(.|1) are no
  further apart than some pair in F.
- If the sensor errs, its past tells more about the state than its present measurement alone. The value here is that of
  the best memoryless collection, which is an upper bound on the theorem's value.

**Adjacency** is replace-one: with one sensor any two histories are neighbours, so the loss compares F_k(.|0) with
F_k(.|1). The budget left is always a node of the grid. So a solution can be followed exactly: the grid of budgets
restricts the choice of losses and adds no interpolation error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpfuse import _check
from dpfuse._arrays import Floats, Integers
from dpfuse.optimal.beliefs import at_prior, nodes_of_belief, position, variance_of_state, weights_of_nodes
from dpfuse.optimal.collection import NUM_SYMBOLS, Options, best_cost, best_kernel, make_options
from dpfuse.optimal.gaussian import check_grid
from dpfuse.optimal.interpolation import interpolate
from dpfuse.optimal.problem import Problem
from dpfuse.optimal.simulation import Simulation
from dpfuse.systems import hidden_markov

# Among losses of equal cost, up to this relative difference, the smallest is chosen. The linear programmes leave a gap.
_TIE = 1e-8


@dataclass(frozen=True, eq=False)
class GeneralSolution:
    """The general optimality equations of a problem with one sensor, solved on a grid.

    Attributes:
        problem: the problem that was solved.
        value: J*_1 at the full budget and the prior.
        cost_to_go: J*_k, shape (K, budgets, beliefs).
        left: the index in `budgets` of the budget left after the release, same shape.
        kernels: the optimal collection F(z | y), shape (K, budgets, beliefs, symbols, 2).
        budgets, beliefs: the nodes of the grid, shapes (budgets,) and (beliefs, 2), as in `Solution`.
        gap: the largest distance of a linear programme from a proven optimum on its nodes, in units of cost.
        coarse_value: `value` on a grid with half as many beliefs, budgets and likelihood ratios.
        largest_difference: the largest difference of J*_1 between the two grids at shared nodes, divided by the largest
            J*_1.
    """

    problem: Problem
    value: float
    cost_to_go: Floats
    left: Integers
    kernels: Floats
    budgets: Floats
    beliefs: Floats
    gap: float
    coarse_value: float
    largest_difference: float

    @property
    def discretisation_error(self) -> float:
        """The relative difference between the values on the two grids."""
        return abs(self.value / self.coarse_value - 1)

    @property
    def spending(self) -> Floats:
        """The loss that is charged for the release, shape (K, budgets, beliefs)."""
        return np.asarray(self.budgets[:, None] - self.budgets[self.left])

    def simulate(self, *, num_runs: int = 50_000, seed: int = 0) -> Simulation:
        """Runs that use the collection of the node nearest to the exact belief."""
        rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
        runs = hidden_markov.simulate(
            self.problem.system, num_runs=num_runs, num_steps=self.problem.horizon, seed=int(rng.integers(2**31))
        )
        state, y = runs.state[..., 0].astype(np.int64), runs.measurements[..., 0, 0].astype(np.int64)
        loss, left, after = np.empty(y.shape), np.empty(y.shape), np.empty((*y.shape, 2))
        belief, node = np.tile(self.problem.prior, (num_runs, 1)), np.full(num_runs, len(self.budgets) - 1)
        for k in range(self.problem.horizon):
            near = np.rint(position(belief, len(self.beliefs))[:, 0]).astype(np.int64)
            kernel = self.kernels[k, node, near]
            cumulative = np.cumsum(kernel[np.arange(num_runs), :, y[:, k]], axis=1)[:, :-1]
            z = (rng.random((num_runs, 1)) >= cumulative).sum(axis=1)
            likelihood = kernel[np.arange(num_runs), z] @ self.problem.system.output_probabilities[:, 0].T
            joint = likelihood * belief
            after[:, k] = joint / joint.sum(axis=1, keepdims=True)
            loss[:, k] = self.spending[k, node, near]
            node = self.left[k, node, near]
            left[:, k] = self.budgets[node]
            belief = after[:, k] @ self.problem.transition
        return Simulation(state, after, loss, left)

    def to_dict(self) -> dict[str, Any]:
        """The value and its error as JSON values."""
        return {
            "value": self.value,
            "num_symbols": self.kernels.shape[-2],
            "gap": self.gap,
            "discretisation_error": self.discretisation_error,
            "largest_difference": self.largest_difference,
            "num_beliefs": len(self.beliefs),
            "num_budgets": len(self.budgets),
        }


def solve_general(
    problem: Problem, *, num_symbols: int = 4, num_beliefs: int = 41, num_budgets: int = 25
) -> GeneralSolution:
    """The best collections with an alphabet of two or four symbols. Four are as good as any larger number.

    The optimum is over a grid of beliefs, budgets and likelihood ratios. The problem is also solved with half as many
    of each, and the solution reports the difference.

    Args:
        problem: a problem with two states and one binary sensor.
        num_symbols: 2 (randomised response is the symmetric case) or 4.
        num_beliefs, num_budgets: nodes of the grid, odd numbers.
    """
    if problem.num_sensors != 1:
        raise ValueError(f"num_sensors must be 1 for whole collections, got {problem.num_sensors}; use solve for more")
    outputs = problem.system.output_probabilities.shape[2]
    if (problem.num_states, outputs) != (2, 2):
        raise ValueError(
            f"whole collections are solved for two states and a binary sensor, got {problem.num_states} states and "
            f"{outputs} outputs; use solve"
        )
    if num_symbols not in NUM_SYMBOLS:
        raise ValueError(f"num_symbols must be 2 or 4, got {num_symbols!r}; four are as good as any number")
    check_grid(num_beliefs, num_budgets)
    with jax.enable_x64(True):
        budgets = problem.budget * np.linspace(0, 1, num_budgets) ** 2
        options, value, left, gap = _solve_on(problem, budgets, num_beliefs, num_symbols)
        coarse = _solve_on(problem, budgets[::2], num_beliefs // 2 + 1, num_symbols, coarseness=2)[1]
        following = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
        kernels = _kernels(options, *_arrays(problem), following, left, num_symbols)
        return GeneralSolution(
            problem=problem,
            value=at_prior(problem, value[0, -1], num_beliefs),
            cost_to_go=np.asarray(value),
            left=np.asarray(left, np.int64),
            kernels=np.asarray(kernels),
            budgets=budgets,
            beliefs=np.asarray(nodes_of_belief(num_beliefs, 2)),
            gap=float(gap),
            coarse_value=at_prior(problem, coarse[0, -1], num_beliefs // 2 + 1),
            largest_difference=float(jnp.abs(value[0, ::2, ::2] - coarse[0]).max() / value[0].max()),
        )


def _solve_on(
    problem: Problem, budgets: Floats, num_beliefs: int, num_symbols: int, coarseness: int = 1
) -> tuple[Options, Array, Array, Array]:
    """The options, the cost to go and the budget left at every step, and the largest gap."""
    before, after = np.tril_indices(len(budgets), -1)
    options = make_options(budgets[before] - budgets[after], problem.order, num_symbols, coarseness=coarseness)
    return options, *_induct(options, *_arrays(problem), problem.horizon, len(budgets), num_beliefs)


def _arrays(problem: Problem) -> tuple[Array, Array]:
    return jnp.asarray(problem.transition), jnp.asarray(problem.system.output_probabilities[:, 0, 1])


@partial(jax.jit, static_argnames=("horizon", "num_budgets", "num_beliefs"))
def _induct(
    options: Options, transition: Array, measures_one: Array, horizon: int, num_budgets: int, num_beliefs: int
) -> tuple[Float[Array, "K budgets beliefs"], Array, Array]:
    """Cost to go and budget left at every step, by induction from the last to the first, and the largest gap."""
    before, after = np.tril_indices(num_budgets, -1)
    same = np.arange(num_budgets)
    beliefs = nodes_of_belief(num_beliefs, 2)[:, 1]

    def step_back(value: Array, _: None) -> tuple[Array, tuple[Array, Array, Array]]:
        rest = _rest(value, transition)

        def pair(inputs: tuple[Options, Array]) -> tuple[Array, Array]:
            own, rest_after = inputs
            return jax.vmap(lambda b: best_cost(own, _worth(own.shift, b, rest_after, measures_one)))(beliefs)

        costs, gaps = jax.lax.map(pair, (options, rest[after]))
        cost = jnp.full((num_budgets, num_budgets, num_beliefs), jnp.inf).at[before, after].set(costs)
        # If nothing is spent, nothing is learned.
        cost = cost.at[same, same].set(rest)
        value = cost.min(axis=1)
        # Among equal costs, the one that leaves most.
        left = num_budgets - 1 - jnp.argmax(cost[:, ::-1] <= value[:, None] + _TIE * value.max(), axis=1)
        return value, (value, left, gaps.max())

    nothing = jnp.zeros((num_budgets, num_beliefs))
    _, (value, left, gap) = jax.lax.scan(step_back, nothing, None, length=horizon, reverse=True)
    return value, left, gap.max()


@partial(jax.jit, static_argnames="num_symbols")
def _kernels(
    options: Options,
    transition: Array,
    measures_one: Array,
    following: Float[Array, "K budgets beliefs"],
    left: Array,
    num_symbols: int,
) -> Float[Array, "K budgets beliefs symbols 2"]:
    """The optimal collections, from the budget left after the release and the cost to go of the next step."""
    beliefs = nodes_of_belief(following.shape[-1], 2)[:, 1]
    no_information = jnp.full((num_symbols, 2), 1 / num_symbols)

    def at_node(rest: Array, node: Array, left_node: Array, belief: Array) -> Array:
        # The index of the pair (node, left_node) in the lower triangle.
        own = jax.tree.map(lambda leaf: leaf[jnp.maximum(node * (node - 1) // 2 + left_node, 0)], options)
        kernel = best_kernel(own, _worth(own.shift, belief, rest[left_node], measures_one))
        return jnp.where(left_node < node, kernel, no_information)

    def at_step(inputs: tuple[Array, Array]) -> Any:
        value, left_nodes = inputs
        rest = _rest(value, transition)
        row = jax.vmap(at_node, in_axes=(None, None, 0, 0))
        return jax.lax.map(lambda own: row(rest, own[0], own[1], beliefs), (jnp.arange(len(value)), left_nodes))

    return jnp.asarray(jax.lax.map(at_step, (following, left)))


def _rest(value: Float[Array, "budgets beliefs"], transition: Array) -> Float[Array, "budgets beliefs"]:
    """The cost from each belief after a release: the variance at this step plus the cost to go of the next."""
    beliefs = nodes_of_belief(value.shape[1], 2)
    return jnp.asarray(variance_of_state(beliefs)) + value @ weights_of_nodes(beliefs @ transition, len(beliefs)).T


def _worth(shift: Array, belief: Array, rest: Float[Array, " beliefs"], measures_one: Array) -> Array:
    """h(t): the cost after a symbol, per unit of M, from p(z | y = 1) = M (1 + t) and p(z | y = 0) = M (1 - t)."""
    zero, one = (1 - belief) * (1 + (2 * measures_one[0] - 1) * shift), belief * (1 + (2 * measures_one[1] - 1) * shift)
    return (zero + one) * interpolate(rest, position(jnp.stack([zero, one], axis=-1), len(rest))[..., 0])
