"""What an observer of the releases believes: the update of Lemma 1 (numbered 2 in the appendix), for finite systems.

    b_{k+1}(x', y^{k+1}) = p(y_{k+1} | x') sum_x p(x' | x) b_k(x, y^k) F_k(Z_k | y^k)  /  p(Z_k | Z^{k-1})

with b_k(x, y^k) = p(X_k = x, Y^k = y^k | Z^{k-1}) and b_1 = p(X_1, Y_1). It runs over all histories y^k of
measurements, as a release may depend on all of them; their number grows as |Y|^k, which is why the solvers of this
package ask which releases can do with less.
"""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Floats


def first_belief(prior: Floats, emission: Floats) -> Floats:
    """b_1(x, y_1), shape (S, Y).

    Args:
        prior: p(X_1), shape (S,).
        emission: p(y | x), shape (S, Y).
    """
    return np.asarray(prior[:, None] * emission)


def update_belief(belief: Floats, likelihood: Floats, transition: Floats, emission: Floats) -> Floats:
    """b_{k+1} after one release, shape (S, H * Y): history h followed by measurement y has number h * Y + y.

    Args:
        belief: b_k, shape (S, H), a column for each history y^k.
        likelihood: F_k(Z_k | y^k, Z^{k-1}) of what was released, for each history, shape (H,).
        transition: p(x' | x), shape (S, S), a row for each x.
        emission: p(y | x'), shape (S, Y).
    """
    joint = belief * likelihood
    total = joint.sum()
    if not total > 0:
        raise ValueError("likelihood must be above 0 for some history that is believed possible")
    moved = transition.T @ (joint / total)
    return np.asarray((moved[:, :, None] * emission[:, None, :]).reshape(len(moved), -1))


def posterior_of_state(belief: Floats, likelihood: Floats) -> Floats:
    """p(X_k | Z^k), shape (S,): what the best estimator knows when it has read the release."""
    joint = (belief * likelihood).sum(axis=1)
    if not joint.sum() > 0:
        raise ValueError("likelihood must be above 0 for some history that is believed possible")
    return np.asarray(joint / joint.sum())
