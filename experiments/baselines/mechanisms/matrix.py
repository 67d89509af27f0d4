"""A continual-release matrix mechanism (choquette2023multi).

A strategy C releases C S + N. This is S with noise C^{-1} N, which is correlated over time. C is chosen for a workload
A, here the filter that reads the sums, so that |A C^{-1}|^2 is least for a given sensitivity. With X = C^T C and a
sensor that takes part in every step, the problem is

    minimise tr(A^T A X^{-1})  subject to  sum_jk |X_jk| <= 1.

X = diag(x) with x_k proportional to |column k of A| solves it for every workload: the problem is convex, X^{-1} A^T A
X^{-1} has equal entries on the diagonal, and by Cauchy-Schwarz none off the diagonal is larger. So for sensors that are
always present and can change the sum in both directions, correlated noise does not help; a variance for each step does.
A sensor that can only add (a count, under remove-one) is charged for the positive X_jk only. There the same holds for
workloads whose columns have non-negative inner products, such as a filter that smooths, but not for one that takes
differences. The Toeplitz root of the prefix sums, the usual strategy for a single participation, is tried too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpfuse._arrays import Floats
from dpfuse._extras import requires_extra
from experiments.baselines.mechanisms.estimator import best_estimator
from experiments.baselines.mechanisms.mechanism import ReleaseProblem

_ROUNDS = 8


def matrix_mechanism(problem: ReleaseProblem) -> Iterator[tuple[dict[str, Any], Floats]]:
    """The map of the best strategy for K participations, and that of the Toeplitz strategy for one participation."""
    release = problem.plain
    for _ in range(_ROUNDS):
        # The filter is optimised for the noise, and the noise for the filter, in turn.
        strategy = best_strategy(workload(problem, release))
        release = _for_each_feature(strategy, release.shape[1])
    yield {"strategy": "diagonal"}, release
    yield {"strategy": "toeplitz"}, _for_each_feature(toeplitz_strategy(problem.num_steps), release.shape[1])


def workload(problem: ReleaseProblem, release: Floats) -> Floats:
    """The best filter of the sums for a given release map, as A of shape (n_x q K, K)."""
    num_steps, num_features = problem.moments.sums_mean.shape
    scaled = problem.scaled(release)
    gain = best_estimator(problem.moments, scaled, 1.0).gain @ scaled.reshape(num_steps * num_features, -1)
    work: Floats = gain.reshape(-1, num_steps, num_features).transpose(0, 2, 1).reshape(-1, num_steps)
    return work


def best_strategy(work: Floats) -> Floats:
    """The strategy of least error for K participations, shape (K, K), see the top of the module."""
    columns: Floats = np.linalg.norm(work, axis=0)
    # A column of zeros would need no budget, but then C has no inverse.
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
