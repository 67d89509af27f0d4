"""The features of a sensor: a bounded vector, linear in the clipped measurement.

Each channel is clipped to a public range and scaled to [-1, 1]; a missing one counts as the middle. With a leading 1,
which counts the sensor, this gives the basis b(y) = (1, s_1, ..., s_ny). The features are u = P b(y), and 0 for an
absent sensor. So at every step the features of a sensor lie in the convex hull of 0 and the corners
P (1, +-1, ..., +-1).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.guarantee import Adjacency
from dpfuse.trajectories import Trajectories

_MOST_CHANNELS = 4


@dataclass(frozen=True, eq=False)
class Features:
    """A public range and a projection, the same for every sensor and step.

    Attributes:
        low, high: the range of each channel, shape (n_y,).
        projection: P, shape (q, 1 + n_y).
    """

    low: Floats
    high: Floats
    projection: Floats

    def sums(self, data: Trajectories) -> Floats:
        """The sum of the features over the present sensors, shape (N, K, q)."""
        return basis_sums(data, self.low, self.high) @ self.projection.T

    @property
    def corners(self) -> Floats:
        """The extreme points, except 0, of the features of a sensor in one step, shape (2^n_y, q)."""
        signs = np.array(list(product([1.0], *[(-1.0, 1.0)] * len(self.low))))
        return signs @ self.projection.T

    def moves(self, adjacency: Adjacency) -> Floats:
        """How a neighbouring data set can change the sum in one step: the extreme points, shape (moves, q).

        Under remove-one they are the features of one sensor, under replace-one differences of the features of two. A
        sensor may be absent.
        """
        ends = np.vstack([self.corners, np.zeros_like(self.corners[:1])])
        if adjacency == "remove-one":
            return ends
        differences: Floats = ends[:, None] - ends
        return np.unique(differences.reshape(-1, ends.shape[1]), axis=0)


def basis_sums(data: Trajectories, low: Floats, high: Floats) -> Floats:
    """The sum of the basis over the present sensors, shape (N, K, 1 + n_y)."""
    centre, half = (low + high) / 2, (high - low) / 2
    scaled = np.nan_to_num(np.clip((data.measurements - centre) / half, -1, 1))
    sums = np.einsum("nkic,nki->nkc", scaled, data.present.astype(float))
    return np.concatenate([data.present.sum(-1, keepdims=True), sums], axis=-1)


def range_of(data: Trajectories, outside: float) -> tuple[Floats, Floats]:
    """A range for each channel: the share `outside` of the measurements is below it, and the same share above."""
    seen = data.measurements[data.present].astype(float)
    if not len(seen):
        raise ValueError("training must have at least one present sensor")
    if seen.shape[1] > _MOST_CHANNELS:
        raise ValueError(f"baselines take at most {_MOST_CHANNELS} channels, got {seen.shape[1]}; leave some out")
    low, high = np.nanquantile(seen, [outside, 1 - outside], axis=0)
    return low, np.where(high > low, high, low + 1)


def projections(state: Floats, sums: Floats) -> Iterator[tuple[str, Floats]]:
    """The projections to try, by name: the whole basis, each row of it, and the regression of the state on the sums.

    Args:
        state: of the training windows, shape (N, K, n_x).
        sums: of the basis in the training windows, shape (N, K, 1 + n_y).
    """
    rows = np.eye(sums.shape[-1])
    # A constant sum, such as the count of sensors that never leave, tells nothing.
    varies = np.flatnonzero(sums.std(axis=(0, 1)) > 1e-6 * (1 + np.abs(sums).mean(axis=(0, 1))))
    if not len(varies):
        raise ValueError("training must have measurements that change; constant ones need no release")
    yield "all", rows[varies]
    if len(varies) == 1:
        return
    for row in varies:
        yield "count" if row == 0 else f"channel {row}", rows[[row]]
    columns = sums[..., varies].reshape(-1, len(varies))
    targets = state.reshape(len(columns), -1)
    slopes = np.linalg.lstsq(columns - columns.mean(0), targets - targets.mean(0), rcond=None)[0]
    # Each coordinate of the state is scaled by its standard deviation, so that its unit does not matter.
    yield "regression", (slopes / np.maximum(targets.std(0), 1e-12)).T @ rows[varies]
