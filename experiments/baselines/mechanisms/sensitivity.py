"""The sensitivity of a linear release to one sensor's whole trajectory.

Between neighbouring data sets a release Z = M S + N of sums S over sensors, with noise N of standard deviation 1,
changes by M u, where u_k is one of the moves T at each step k. With G = M^T M in blocks G_jk,

    Delta^2 = max_u |M u|^2 = max_u sum_jk u_j^T G_jk u_k,     loss = alpha Delta^2 / 2.

The maximum is over |T|^K points. Two bounds hold for any M, and the smaller one is charged:

    sum_jk max_{t, t'} t^T G_jk t'            exact if each release reads the sums of its own step only
    lambda_max(G) K max_t |t|^2               the gain of M as a filter times the largest energy of a trajectory

The first is the sensitivity of matrix mechanisms in which a sensor takes part in every step (choquette2023multi), the
second that of filters (leny2014differentially).
"""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Floats


def squared_sensitivity(release: Floats, moves: Floats) -> float:
    """An upper bound of Delta^2.

    **Guarantees**
        - The unit is one sensor's whole trajectory over the K steps of the release. It may be present in all of them.
        - No trajectory of moves, absences (0) and mixtures of them changes the release by more.
        - The bound is exact if each release reads the sums of its own step only.

    Args:
        release: M, shape (K, d, K, q).
        moves: T, the extreme points of the moves, including 0, shape (moves, q).
    """
    num_steps, num_features = release.shape[2:]
    flat = release.reshape(-1, num_steps * num_features)
    gram = (flat.T @ flat).reshape(num_steps, num_features, num_steps, num_features)
    pairwise: float = sum(float((moves @ row @ moves.T).max(axis=(1, 2)).sum()) for row in gram.transpose(0, 2, 1, 3))
    energy = num_steps * float(np.square(moves).sum(-1).max())
    gain = float(np.linalg.norm(flat, 2))
    return float(min(pairwise, gain * gain * energy))
