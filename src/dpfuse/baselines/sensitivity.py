"""How far one sensor can move a linear release, whatever it measured over the whole horizon.

A release Z = M S + N of sums S over sensors, with noise N of standard deviation 1, moves by M u between neighbouring
data sets, where u_k is any of the moves T at each step k. With G = M^T M in blocks G_jk,

    Delta^2 = max_u |M u|^2 = max_u sum_jk u_j^T G_jk u_k,     loss = alpha Delta^2 / 2.

The maximum is at extreme points, of which there are |T|^K. Two bounds hold for any M and their minimum is charged:

    sum_jk max_{t, t'} t^T G_jk t'            exact where a step's release reads that step alone
    lambda_max(G) K max_t |t|^2               the gain of M as a filter times the largest energy of a trajectory

The first is the sensitivity of matrix mechanisms where everybody takes part in every step (choquette2023multi), the
second that of filters (leny2014differentially).
"""

from __future__ import annotations

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Floats


def squared_sensitivity(release: Floats, moves: Floats) -> float:
    """An upper bound of Delta^2.

    **Guarantees**
        - Unit: one sensor's whole trajectory over the K steps of the release, present in all of them.
        - No trajectory of moves, absence (0) and mixtures of them moves the release further.
        - Exact where a step's release reads that step alone.

    Args:
        release: M, shape (K, d, K, q).
        moves: T, extreme points, shape (moves, q), 0 among them.
    """
    num_steps, num_features = release.shape[2:]
    flat = release.reshape(-1, num_steps * num_features)
    gram = (flat.T @ flat).reshape(num_steps, num_features, num_steps, num_features)
    pairwise: float = sum(float((moves @ row @ moves.T).max(axis=(1, 2)).sum()) for row in gram.transpose(0, 2, 1, 3))
    energy = num_steps * float(np.square(moves).sum(-1).max())
    gain = float(np.linalg.norm(flat, 2))
    return float(min(pairwise, gain * gain * energy))


def worst_trajectory(release: Floats, moves: Floats, *, num_starts: int = 8, seed: int = 0) -> Floats:
    """A trajectory of moves, shape (K, q), that moves the release as far as a search finds.

    From several starts, the moves of all steps are replaced by those most aligned with the gradient: |M u|^2 is convex,
    so that this never goes down. It shows a lower bound of the sensitivity, to hold against `squared_sensitivity`.
    """
    num_steps, num_features = release.shape[2:]
    flat = release.reshape(-1, num_steps * num_features)
    rng = np.random.default_rng(_check.is_count("seed", seed, minimum=0))
    # Constant trajectories are the usual culprits; the others are drawn.
    starts = [np.tile(move, (num_steps, 1)) for move in moves]
    starts += [moves[rng.integers(len(moves), size=num_steps)] for _ in range(num_starts)]
    best, largest = starts[0], -1.0
    for start in starts:
        path, reached = start, -1.0
        while (length := float(np.sum(np.square(flat @ path.ravel())))) > reached * (1 + 1e-12):
            reached, gradient = length, (flat.T @ (flat @ path.ravel())).reshape(num_steps, num_features)
            found, path = path, moves[np.argmax(gradient @ moves.T, axis=1)]
        if reached > largest:
            best, largest = found, reached
    return best
