"""The form of all baselines: a public linear map of feature sums, Gaussian noise, and a linear estimator."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.guarantee import Guarantee
from dpfuse.privacy.loss import renyi_loss
from experiments.baselines.mechanisms.estimator import LinearEstimator, LinearModel, Moments
from experiments.baselines.mechanisms.features import Features
from experiments.baselines.mechanisms.sensitivity import squared_sensitivity

# The map is this share of the largest one within the budget, so that rounding stays within it too.
_SAFE = 1 - 1e-9


class ReleaseProblem(NamedTuple):
    """The data for which a release map is designed.

    Attributes:
        moments: of the state and the feature sums.
        model: the linear model of both.
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
        """The identity, which releases every sum itself, shape (K, q, K, q)."""
        size = self.moments.sums_mean.shape
        return np.eye(size[0] * size[1]).reshape(*size, *size)

    def scaled(self, release: Floats) -> Floats:
        """The multiple of the map that uses up the budget."""
        scale: float = np.sqrt(self.squared_radius / squared_sensitivity(release, self.moves)) * _SAFE
        return scale * release


@dataclass(frozen=True, eq=False)
class LinearMechanism:
    """Z = M S + N: feature sums S over a horizon, a causal map M, and noise of standard deviation 1.

    **Guarantees**
        - The unit is one sensor's whole trajectory, under the guarantee's adjacency. The other sensors' data are fixed.
        - All releases together have a loss of at most `loss`.
        - A mechanism whose loss is above the budget is refused.
        - Every measurement is clipped. An absent sensor adds 0.
        - The noise drawn here is for simulation, as in `dpfuse.evaluate`.

    Attributes:
        name: the name of the baseline.
        guarantee: the guarantee of the releases.
        features: the features of a sensor.
        release: M, shape (K, d, K, q).
        num_noises: the number of independent noises in each coordinate: one, or one for each slot. One of them is
            charged.
        estimator: of the state from the releases.
        state_mean: of the training data; it is the estimate without releases.
        settings: the settings that validation chose.
    """

    name: str
    guarantee: Guarantee
    features: Features
    release: Floats
    num_noises: int
    estimator: LinearEstimator
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
        """M S for windows of feature sums, shape (N, K, d). It is private."""
        flat = self.release.reshape(self.horizon * self.dimension, -1)
        clean: Floats = (sums.reshape(len(sums), -1) @ flat.T).reshape(-1, self.horizon, self.dimension)
        return clean

    def run(self, clean: Floats, rng: np.random.Generator) -> Floats:
        """The releases: the output of `noiseless` plus simulated noise."""
        return clean + math.sqrt(self.num_noises) * rng.standard_normal(clean.shape)

    def expected_error(self, state: Floats, sums: Floats) -> float:
        """The squared error of the linear estimate on windows, averaged over the noise in closed form."""
        missed = self.estimator(self.noiseless(sums)) - state
        noise = self.num_noises * np.square(self.estimator.gain).sum(1)
        return float(np.square(missed).mean() + noise.mean())
