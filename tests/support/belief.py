"""The full belief of Theorem 1 on finite systems, and the loss of a release with finitely many symbols.

The belief is b_k(x, y^k) = p(X_k = x, Y^k = y^k | Z^{k-1}). It starts at b_1 = p(X_1, Y_1), and Lemma 1 (numbered 2 in
the appendix) updates it:

    b_{k+1}(x', y^{k+1}) = p(y_{k+1} | x') sum_x p(x' | x) b_k(x, y^k) F_k(Z_k | y^k)  /  p(Z_k | Z^{k-1})

It covers all histories y^k, because a release may depend on all of them. Their number grows as |Y|^k. The solvers of
`dpfuse.optimal` need less, because their releases read the present measurement only; the tests compare the two.
"""

from __future__ import annotations

import numpy as np


def first_belief(prior, emission):
    """b_1(x, y_1), shape (S, Y), from p(X_1) of shape (S,) and p(y | x) of shape (S, Y)."""
    return prior[:, None] * emission


def update_belief(belief, likelihood, transition, emission):
    """b_{k+1} after one release, shape (S, H * Y): history h followed by measurement y has number h * Y + y.

    Args:
        belief: b_k, shape (S, H), a column for each history y^k.
        likelihood: F_k(Z_k | y^k, Z^{k-1}) of the value that was released, for each history, shape (H,).
        transition: p(x' | x), shape (S, S), a row for each x.
        emission: p(y | x'), shape (S, Y).
    """
    joint = belief * likelihood
    moved = transition.T @ (joint / joint.sum())
    return (moved[:, :, None] * emission[:, None, :]).reshape(len(moved), -1)


def posterior_of_state(belief, likelihood):
    """p(X_k | Z^k), shape (S,): what the best estimator knows after it has read the release."""
    joint = (belief * likelihood).sum(axis=1)
    return joint / joint.sum()


def renyi_divergences(kernel, order):
    """The Rényi divergence between F(. | 0) and F(. | 1) in each direction, for a kernel of shape (..., symbols, 2)."""
    zero, one = kernel[..., 0], kernel[..., 1]
    moments = [(p**order * q ** (1 - order)).sum(-1) for p, q in [(zero, one), (one, zero)]]
    return np.log(np.stack(moments, axis=-1)) / (order - 1)
