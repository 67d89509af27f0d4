"""A search for the trajectory of one sensor that changes a linear release most: an attack on the baselines."""

from __future__ import annotations

import numpy as np


def worst_trajectory(release, moves, num_starts=8, seed=0):
    """A trajectory of moves, shape (K, q), that changes the release M of shape (K, d, K, q) as much as a search finds.

    From several starts, the move of every step is replaced by the one most aligned with the gradient. As |M u|^2 is
    convex, this never decreases it. The result is a lower bound of the sensitivity.
    """
    num_steps, num_features = release.shape[2:]
    flat = release.reshape(-1, num_steps * num_features)
    rng = np.random.default_rng(seed)
    # Constant trajectories are often the worst; the other starts are random.
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
