"""Simulated runs of a binary hidden Markov system with the structured release, with exact beliefs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats, Integers
from dpfuse._stats import Z95
from dpfuse.optimal.problem import Problem
from dpfuse.privacy.loss import largest_weight
from dpfuse.systems import hidden_markov

Spend = Callable[[int, Floats, Floats], Floats]
"""spend(step_index, budget_left, belief): the loss of each run at a step counted from 0. Arrays have shape (runs,)."""


@dataclass(frozen=True, eq=False)
class Simulation:
    """States, beliefs and spending of simulated runs, each of shape (runs, K).

    Attributes:
        state: the hidden state.
        belief: p(X_k = 1 | Z^k), after the release.
        loss: the loss of the release.
        budget_left: the budget left after the release.
    """

    state: Integers
    belief: Floats
    loss: Floats
    budget_left: Floats

    @property
    def costs(self) -> Floats:
        """The posterior variance of the state, summed over the steps, shape (runs,)."""
        return np.asarray((self.belief * (1 - self.belief)).sum(axis=1))

    @property
    def value(self) -> float:
        return float(self.costs.mean())

    @property
    def standard_error(self) -> float:
        return float(self.costs.std(ddof=1) / np.sqrt(len(self.costs)))

    @property
    def ci95(self) -> tuple[float, float]:
        """The 95% interval of the value."""
        return self.value - Z95 * self.standard_error, self.value + Z95 * self.standard_error


def simulate(problem: Problem, spend: Spend, *, num_runs: int, seed: int) -> Simulation:
    """Simulated runs that spend by the rule `spend`."""
    _check.is_count("num_runs", num_runs, minimum=2)
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    runs = hidden_markov.simulate(
        problem.system, num_runs=num_runs, num_steps=problem.horizon, seed=int(rng.integers(2**31))
    )
    state, counts = runs.state[..., 0].astype(np.int64), runs.measurements[..., 0].sum(-1, dtype=np.float64)
    return follow(problem, spend, state, counts, rng.standard_normal(counts.shape))


def follow(problem: Problem, spend: Spend, state: Integers, counts: Floats, noise: Floats) -> Simulation:
    """The simulation of given runs.

    Args:
        problem: the problem that the runs are of.
        spend: the spending rule.
        state: the hidden states, shape (runs, K).
        counts: how many sensors measured 1, shape (runs, K).
        noise: the noise of each release, shape (runs, K).
    """
    after, loss, left = (np.empty(counts.shape) for _ in range(3))
    belief, budget_left = np.full(len(counts), problem.prior[1]), np.full(len(counts), problem.budget)
    for k in range(problem.horizon):
        loss[:, k] = np.minimum(spend(k, budget_left, belief), budget_left)
        weight = largest_weight(problem.order, 1, loss[:, k])
        budget_left = left[:, k] = budget_left - loss[:, k]
        after[:, k] = posterior(problem, belief, weight, weight * counts[:, k] + noise[:, k])
        belief = next_belief(problem, after[:, k])
    return Simulation(state, after, loss, left)


def next_belief(problem: Problem, belief: Floats) -> Floats:
    """p(X_{k+1} = 1 | Z^k) from p(X_k = 1 | Z^k)."""
    return np.asarray(belief * problem.transition[1, 1] + (1 - belief) * problem.transition[0, 1])


def posterior(problem: Problem, belief: Floats, weight: Floats, release: Floats) -> Floats:
    """p(X_k = 1 | Z^k) from p(X_k = 1 | Z^{k-1}), the fusion weight and the release, shape (runs,)."""
    counts = problem.count_probabilities
    possible = np.flatnonzero(counts.any(axis=0))
    exponent = -0.5 * (release[:, None] - weight[:, None] * possible) ** 2
    density = np.exp(exponent - exponent.max(axis=1, keepdims=True)) @ counts[:, possible].T
    joint = density * np.stack([1 - belief, belief], axis=1)
    return np.asarray(joint[:, 1] / joint.sum(axis=1))
