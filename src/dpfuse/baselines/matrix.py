"""A continual-release matrix mechanism (choquette2023multi).

A strategy C releases C S + N, which is S with noise that is correlated over time, C^{-1} N. It is chosen for a workload
A, here the filter that reads the sums, so that |A C^{-1}|^2 is least at equal sensitivity. With X = C^T C and a sensor
that takes part in every step, that is

    minimise tr(A^T A X^{-1})  subject to  sum_jk |X_jk| <= 1.

X = diag(x) with x_k proportional to |column k of A| solves it for every workload: the problem is convex, X^{-1} A^T A
X^{-1} has equal entries on the diagonal, and none off it is larger, by Cauchy and Schwarz. So noise that is correlated
over time gains nothing for sensors that never leave and may move the sum either way; how much of it each step has does.
A sensor that can only add (a count, under remove-one) is charged for the positive X_jk alone; there the same holds for
workloads whose columns have no negative inner product, such as a filter that smooths, and not for one that takes
differences. The Toeplitz root of the prefix sums, the usual strategy where everybody takes part once, is tried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse._extras import requires_extra
from dpfuse.baselines.estimator import best_estimator
from dpfuse.baselines.mechanism import Problem

_ROUNDS = 8


def matrix_mechanism(problem: Problem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The best strategy for K participations, and the best Toeplitz one for a single participation."""
    release = problem.plain
    for _ in range(_ROUNDS):
        # The filter is best for the noise, and the noise for the filter, in turn.
        strategy = best_strategy(workload(problem, release))
        release = _for_each_feature(strategy, release.shape[1])
    yield {"strategy": "diagonal"}, release
    yield {"strategy": "toeplitz"}, _for_each_feature(toeplitz_strategy(problem.num_steps), release.shape[1])


def workload(problem: Problem, release: Floats) -> Floats:
    """The filter that reads the sums, given how they are released, as A of shape (n_x q K, K)."""
    num_steps, num_features = problem.moments.sums_mean.shape
    scaled = problem.scaled(release)
    gain = best_estimator(problem.moments, scaled, 1.0).gain @ scaled.reshape(num_steps * num_features, -1)
    work: Floats = gain.reshape(-1, num_steps, num_features).transpose(0, 2, 1).reshape(-1, num_steps)
    return work


def best_strategy(work: Floats) -> Floats:
    """The strategy of least error for K participations, shape (K, K), see the module."""
    columns: Floats = np.linalg.norm(work, axis=0)
    # A column that is hardly read needs hardly any budget; with none at all C would have no inverse.
    diagonal: Floats = np.diag(np.sqrt(np.maximum(columns, 1e-6 * columns.max())))
    return diagonal


def toeplitz_strategy(num_steps: int) -> Floats:
    """The lower triangular root of the matrix of prefix sums, shape (K, K)."""
    with requires_extra("theory", "the matrix mechanism"):
        from jax_privacy.matrix_factorization import toeplitz
    coefficients = toeplitz.optimal_max_error_strategy_coefs(num_steps)
    return np.asarray(toeplitz.materialize_lower_triangular(coefficients), float)


def _for_each_feature(strategy: Floats, num_features: int) -> Floats:
    release: Floats = np.einsum("kj,dq->kdjq", strategy, np.eye(num_features))
    return release
