"""One form for all baselines: a public linear map of feature sums, Gaussian noise, and a linear estimator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.baselines.estimator import Estimator, LinearModel, Moments
from dpfuse.baselines.features import Features
from dpfuse.baselines.sensitivity import squared_sensitivity
from dpfuse.privacy.loss import renyi_loss
from dpfuse.types import Guarantee

# Of the largest map that the budget allows; the rest keeps rounding from passing it.
_SAFE = 1 - 1e-9


class Problem(NamedTuple):
    """What a map is designed for.

    Attributes:
        moments: of the feature sums and the state.
        model: of the same; the map may follow it.
        moves: of the features, see `Features.moves`.
        squared_radius: 2 B / alpha, the largest squared sensitivity.
    """

    moments: Moments
    model: LinearModel
    moves: Floats
    squared_radius: float

    @property
    def num_steps(self) -> int:
        return len(self.moments.sums_mean)

    @property
    def plain(self) -> Floats:
        """The map that releases every sum as it is, shape (K, q, K, q)."""
        size = self.moments.sums_mean.shape
        return np.eye(size[0] * size[1]).reshape(*size, *size)

    def scaled(self, release: Floats) -> Floats:
        """A multiple of the map that uses up the budget."""
        scale: float = np.sqrt(self.squared_radius / squared_sensitivity(release, self.moves)) * _SAFE
        return scale * release


@dataclass(frozen=True, eq=False)
class LinearMechanism:
    """Z = M S + N: feature sums S over a horizon, a causal map M, and noise of standard deviation 1.

    **Guarantees**
        - Unit and adjacency: one sensor's whole trajectory, under the guarantee's adjacency; the others' are fixed.
        - All releases together have at most the loss `loss`, and a mechanism whose loss is above the budget is refused.
        - Whatever a sensor measures is clipped first; a sensor that is absent adds 0.
        - The noise drawn here is for simulation, as in `dpfuse.evaluate`.

    Attributes:
        name: which baseline it is.
        guarantee: what the releases satisfy.
        features: of a sensor.
        release: M, shape (K, d, K, q).
        num_noises: how many independent noises are in each coordinate: one, or one for each slot that a sensor may
            have. The charge is for one of them.
        estimator: of the state from the releases.
        state_mean: of the training data, what is known without any release.
        settings: what validation chose, for the record.
    """

    name: str
    guarantee: Guarantee
    features: Features
    release: Floats
    num_noises: int
    estimator: Estimator
    state_mean: Floats
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        steps = np.arange(self.horizon)
        if np.moveaxis(self.release, 2, 1)[steps[:, None] < steps].any():
            raise ValueError("release must be causal: a release may not read later steps")
        if not self.loss <= self.guarantee.budget:
            raise ValueError(f"release must cost at most the budget {self.guarantee.budget:g}, got {self.loss:g}")

    @property
    def horizon(self) -> int:
        return int(self.release.shape[0])

    @property
    def dimension(self) -> int:
        return int(self.release.shape[1])

    @property
    def loss(self) -> float:
        """The Rényi loss of all releases together, at the guarantee's order."""
        moves = self.features.moves(self.guarantee.adjacency)
        return renyi_loss(self.guarantee.order, 1, math.sqrt(squared_sensitivity(self.release, moves)))

    def noiseless(self, sums: Floats) -> Floats:
        """M S of windows of feature sums, shape (N, K, d): private."""
        flat = self.release.reshape(self.horizon * self.dimension, -1)
        clean: Floats = (sums.reshape(len(sums), -1) @ flat.T).reshape(-1, self.horizon, self.dimension)
        return clean

    def run(self, clean: Floats, rng: np.random.Generator) -> Floats:
        """What is released, from what `noiseless` gives, with simulated noise."""
        return clean + math.sqrt(self.num_noises) * rng.standard_normal(clean.shape)

    def expected_error(self, state: Floats, sums: Floats) -> float:
        """Squared error of the linear estimate on windows, averaged over the noise in closed form."""
        missed = self.estimator(self.noiseless(sums)) - state
        noise = self.num_noises * np.square(self.estimator.gain).sum(1)
        return float(np.square(missed).mean() + noise.mean())
