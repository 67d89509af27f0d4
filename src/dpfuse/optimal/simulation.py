"""Simulated runs of a hidden Markov system with the structured release, with exact beliefs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats, Integers
from dpfuse._stats import Z95
from dpfuse.optimal.beliefs import mean_of_state, variance_of_state
from dpfuse.optimal.problem import Problem
from dpfuse.privacy.loss import largest_weight
from dpfuse.systems import hidden_markov
from dpfuse.trajectories import Trajectories

Spend = Callable[[int, Floats, Floats], Floats]
"""spend(step_index, budget_left, belief): the loss of each run at a step counted from 0, shape (runs,).

The budget left has shape (runs,). The belief is p(X_k | Z^{k-1}), shape (runs, S).
"""


@dataclass(frozen=True, eq=False)
class Simulation:
    """States, beliefs and spending of simulated runs. All but the beliefs have shape (runs, K).

    Attributes:
        state: the hidden state.
        belief: p(X_k | Z^k), after the release, shape (runs, K, S).
        loss: the loss of the release.
        budget_left: the budget left after the release.
    """

    state: Integers
    belief: Floats
    loss: Floats
    budget_left: Floats

    @property
    def estimate(self) -> Floats:
        """The best estimate of the state: the posterior mean, shape (runs, K)."""
        return np.asarray(mean_of_state(self.belief))

    @property
    def costs(self) -> Floats:
        """The posterior variance of the state, summed over the steps, shape (runs,)."""
        return np.asarray(variance_of_state(self.belief).sum(axis=1))

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
    state, sums = runs.state[..., 0].astype(np.int64), sums_of_features(problem, runs)
    return follow(problem, spend, state, sums, rng.standard_normal(sums.shape))


def sums_of_features(problem: Problem, runs: Trajectories) -> Floats:
    """What the sensors' features add up to at each step, shape (runs, K)."""
    most = problem.feature_sums[-1] / (len(problem.feature_sums) - 1)
    return np.asarray(runs.measurements[..., 0].sum(-1, dtype=np.float64) * most)


def follow(problem: Problem, spend: Spend, state: Integers, sums: Floats, noise: Floats) -> Simulation:
    """The simulation of given runs.

    Args:
        problem: the problem that the runs are of.
        spend: the spending rule.
        state: the hidden states, shape (runs, K).
        sums: what the features add up to, shape (runs, K).
        noise: the noise of each release, shape (runs, K).
    """
    loss, left = np.empty(sums.shape), np.empty(sums.shape)
    after = np.empty((*sums.shape, problem.num_states))
    belief, budget_left = np.tile(problem.prior, (len(sums), 1)), np.full(len(sums), problem.budget)
    for k in range(problem.horizon):
        loss[:, k] = np.minimum(spend(k, budget_left, belief), budget_left)
        weight = largest_weight(problem.order, 1, loss[:, k])
        budget_left = left[:, k] = budget_left - loss[:, k]
        after[:, k] = posterior(problem, belief, weight, weight * sums[:, k] + noise[:, k])
        belief = after[:, k] @ problem.transition
    return Simulation(state, after, loss, left)


def posterior(problem: Problem, belief: Floats, weight: Floats, release: Floats) -> Floats:
    """p(X_k | Z^k) from p(X_k | Z^{k-1}), both (runs, S), the fusion weight and the release, both (runs,)."""
    probabilities = problem.sum_probabilities
    possible = probabilities.any(axis=0)
    exponent = -0.5 * (release[:, None] - weight[:, None] * problem.feature_sums[possible]) ** 2
    density = np.exp(exponent - exponent.max(axis=1, keepdims=True)) @ probabilities[:, possible].T
    joint = density * belief
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))
