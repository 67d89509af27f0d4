"""The two-stage mechanism with the optimal aggregator, by a semidefinite programme (degue2017two).

Stage one releases D_k S_k + N_k, stage two is a Kalman filter. With P_k = D_k^T D_k its information matrix obeys

    Omega_{k+1} <= (A Omega_k^{-1} A^T + W)^{-1} + E^T P_{k+1} E,     S_k = E j_k,

in the order of symmetric matrices. By Schur complements this is linear in Omega and P. So is the privacy constraint

    sum_k max_t t^T P_k t <= 2 B / alpha      over the moves t of one sensor.

The paper's aggregator is static. Here the budget is for a horizon, so each step has its own aggregator. The static one
is a special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse._extras import requires_extra
from experiments.baselines.mechanisms.mechanism import ReleaseProblem

# Added to variances, relative to their size: sums that determine each other exactly have no inverse covariance.
_JITTER = 1e-6


def two_stage(problem: ReleaseProblem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The map of the best aggregator of each step, for the model."""
    weights = _solve(problem)
    values, vectors = np.linalg.eigh(weights)
    aggregators = np.sqrt(np.maximum(values, 0))[..., None] * np.swapaxes(vectors, 1, 2)
    num_steps, dimension = values.shape
    release = np.zeros((num_steps, dimension, num_steps, dimension))
    release[np.arange(num_steps), :, np.arange(num_steps)] = aggregators
    yield {}, release


def _solve(problem: ReleaseProblem) -> Floats:
    """P_k for every step, shape (K, q, q)."""
    cp = _cvxpy()
    model, num_steps = problem.model, problem.num_steps
    n, size = model.num_states, len(model.drift)
    # Scaled so that every entry of j has variance 1 on average, whatever the user's units are.
    variance = np.concatenate([problem.moments.state_variance.mean(0), _sums_variance(problem)])
    unit = np.sqrt(variance)
    transition = model.transition * unit / unit[:, None]
    jitter = _JITTER * np.eye(size)
    inverse = np.linalg.inv(model.noise / np.outer(unit, unit) + jitter)
    across, back = inverse @ transition, transition.T @ inverse @ transition
    first = np.linalg.inv(model.initial_covariance / np.outer(unit, unit) + jitter)
    information = [cp.Variable((size, size), PSD=True) for _ in range(num_steps)]
    weights = [cp.Variable((size - n, size - n), PSD=True) for _ in range(num_steps)]
    errors = [cp.Variable((n, n), symmetric=True) for _ in range(num_steps)]
    costs = cp.Variable(num_steps)
    # P acts on scaled sums: a move t of S is a move t / unit of S / unit.
    moves = problem.moves / unit[n:]
    pick_state, pick_sums = np.eye(size)[:n], np.eye(size)[n:]
    constraints = [cp.sum(costs) <= problem.squared_radius]
    for k in range(num_steps):
        gained = pick_sums.T @ weights[k] @ pick_sums
        if k == 0:
            constraints.append(first + gained - information[0] >> 0)
        else:
            block = [[inverse + gained - information[k], across], [across.T, information[k - 1] + back]]
            constraints.append(cp.bmat(block) >> 0)
        constraints.append(cp.bmat([[errors[k], pick_state], [pick_state.T, information[k]]]) >> 0)
        constraints += [cp.trace(np.outer(move, move) @ weights[k]) <= costs[k] for move in moves]
    # The error of each coordinate is in the user's unit.
    goal = cp.Minimize(sum(variance[:n] @ cp.diag(error) for error in errors))
    cp.Problem(goal, constraints).solve(solver=cp.CLARABEL)
    if any(weight.value is None for weight in weights):
        raise RuntimeError("the semidefinite programme has no solution; give more training data or fewer channels")
    return np.stack([np.asarray(weight.value, float) / np.outer(unit[n:], unit[n:]) for weight in weights])


def _sums_variance(problem: ReleaseProblem) -> Floats:
    num_features = problem.moments.sums_mean.shape[1]
    variance: Floats = np.diag(problem.moments.covariance).reshape(-1, num_features).mean(0)
    return variance


def _cvxpy() -> Any:
    with requires_extra("theory", "the two-stage baseline"):
        import cvxpy
    return cvxpy
