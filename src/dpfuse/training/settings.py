"""Settings of a design and of its training. The defaults serve most problems."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dpfuse import _check
from dpfuse.policy.estimators import Estimator
from dpfuse.policy.filters import RecurrentFilter
from dpfuse.privacy.loss import FeatureSet


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the mechanism looks like.

    Attributes:
        features: the set that features live in; by default the signed unit ball under remove-one adjacency and the
            paper's box [0, 1]^d under replace-one. There the charge factor of the ball is 4; that of
            [0, 1] is 1 in total and 2 in individual accounting.
        dimension: d, coordinates of a release; by default 2 under remove-one and 1 under replace-one.
        recurrent_filter: f, by its name in `dpfuse.policy.filters.FILTERS`, or a class of your own, see
            `RecurrentFilter`. By default `guided` for the floor and for adaptive pathwise designs; otherwise `gru`, the
            paper's.
        estimator: E, by its name in `dpfuse.policy.estimators.ESTIMATORS`, or a class of your own, see `Estimator`.
        measurement_range: (low, high) of each channel, or one pair for all; values outside are clipped. By default
            the range seen in training.
        filter_size, fusion_size, estimator_size: numbers that f, g and E remember.
    """

    features: FeatureSet | None = None
    dimension: int | None = None
    recurrent_filter: str | type[RecurrentFilter] | None = None
    estimator: str | type[Estimator] = "gru"
    measurement_range: tuple[Any, Any] | None = None
    filter_size: int = 16
    fusion_size: int = 16
    estimator_size: int = 32


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the weights are found.

    Attributes:
        num_updates: gradient steps at most; `method="ppo"` rounds them up to a multiple of its number of rounds.
        decay: of the running average of the weights, which is validated and kept; 0 for none. By default the average is
            over a twentieth of all updates.
        exploration: standard deviation of the random log-odds that are added to g's departures in pathwise training;
            it falls to 0. E then learns from more weights than g chooses, and overfits less.
        batch_size: windows in a gradient step.
        learning_rate: the largest one; it rises at first and then falls along a cosine.
        window: steps of a training window; by default the horizon, and 300 for a stationary design. A window
            shorter than the horizon is for constant and stationary designs, which read no clock.
        validate_every: updates between two validations; `method="ppo"` validates once a round instead. With
            little validation data, weights of the first updates may be best by chance: then validate less often.
        patience: validations without improvement after which training stops; the best weights are kept.
        validation_windows: how many windows a validation takes, evenly spaced.
        validation_draws: how many draws of noise a validation takes, the same every time.
    """

    num_updates: int = 2000
    decay: float | None = None
    exploration: float = 0.0
    batch_size: int = 16
    learning_rate: float = 2e-2
    window: int | None = None
    validate_every: int = 100
    patience: int = 8
    validation_windows: int = 128
    validation_draws: int = 2

    def __post_init__(self) -> None:
        counts = ["num_updates", "batch_size", "validate_every", "patience", "validation_windows", "validation_draws"]
        for name in counts if self.window is None else [*counts, "window"]:
            _check.is_count(name, getattr(self, name))
        _check.is_positive("learning_rate", self.learning_rate)
        if not 0 <= self.exploration < float("inf"):
            raise ValueError(f"exploration must be finite and at least 0, got {self.exploration}")
        if self.decay is not None and not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {self.decay}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PPO:
    """How Algorithm 2 finds the spending rule g, for `method="ppo"`; f and E follow `Optimisation`.

    Attributes:
        num_rounds: rounds at most; each trains f and E, then g. `Optimisation.num_updates` are divided among them.
        num_iterations: how often a round plays its episodes.
        num_episodes: windows that are played at once.
        num_epochs: gradient steps each time that they are played.
        learning_rate: of g, its spread and the cost-to-go.
        clip: eps of the clipped ratio.
        gae: lambda of the generalised advantages.
        spread: standard deviation of the random log-odds that are added to g's departures, at the start.
        final_spread: upper bound of that standard deviation in the last round.
        joint_exploration: whether the random log-odds are also added while f and E are trained.
        paired: whether the cost of an episode has that of the same window and noise without exploration subtracted.
        critic_size: hidden units of the cost-to-go.
    """

    num_rounds: int = 20
    num_iterations: int = 10
    num_episodes: int = 256
    num_epochs: int = 4
    learning_rate: float = 5e-3
    clip: float = 0.2
    gae: float = 1.0
    spread: float = 1.0
    final_spread: float = 0.3
    joint_exploration: bool = True
    paired: bool = True
    critic_size: int = 16

    def __post_init__(self) -> None:
        for name in ("num_rounds", "num_iterations", "num_episodes", "num_epochs", "critic_size"):
            _check.is_count(name, getattr(self, name))
        for name in ("learning_rate", "clip", "gae", "spread", "final_spread"):
            _check.is_positive(name, getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)
