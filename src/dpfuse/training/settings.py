"""Settings of a design and of its training. The defaults serve most problems."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dpfuse import _check
from dpfuse.policy.estimators import Estimator
from dpfuse.policy.filters import RecurrentFilter
from dpfuse.privacy.loss import FeatureSet

_NUM_STARTS = 4
# With fewer updates, a fifth of them tells too little about a start.
_ENOUGH_UPDATES = 500
_LIVE_FAULTS = 0.25
_LEARNING_RATE, _LEARNING_RATE_LONG, _LONG_WINDOW = 2e-2, 1e-2, 300


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the mechanism looks like.

    Attributes:
        features: the set that features live in; by default the signed unit ball under remove-one adjacency. Under
            replace-one its charge factor is 4. There the default is the paper's box [0, 1]^d in total accounting, with
            charge factor d, and the non-negative part of the ball (`orthant`) in individual accounting.
        dimension: d, coordinates of a release; by default 2, or as many as there are states if that is more. In the
            box, where each coordinate costs, as many as there are states.
        recurrent_filter: f, by its name in `dpfuse.policy.filters.FILTERS`, or a class of your own, see
            `RecurrentFilter`. By default `guided` for the floor and for adaptive pathwise designs; otherwise `gru`, the
            paper's.
        estimator: E, by its name in `dpfuse.policy.estimators.ESTIMATORS`, or a class of your own, see `Estimator`.
        measurement_range: (low, high) of each channel, or one pair for all; values outside are clipped. By default
            almost the range seen in training: from the quantile 1e-4 to 1 - 1e-4 (of 100 values or more, at least one
            is left out on each side), and on both sides a quarter of their distance more, as far as there are values.
            It is logged, and is part of the design.
        filter_size, fusion_size, estimator_size: numbers that f, g and E remember.
    """

    features: FeatureSet | None = None
    dimension: int | None = None
    recurrent_filter: str | type[RecurrentFilter] | None = None
    estimator: str | type[Estimator] = "gru"
    measurement_range: tuple[Any, Any] | None = None
    filter_size: int = 16
    fusion_size: int = 16
    estimator_size: int = 40


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the weights are found.

    Attributes:
        num_starts: how many first weights each design is trained from, the last at a quarter of the learning rate.
            After a fifth of the updates the best of the others on validation and the last go on, after three fifths the
            better of the two alone. By default 4, and 1 where there are fewer than 500 updates or `method="ppo"`.
        num_updates: gradient steps at most; `method="ppo"` rounds them up to a multiple of its number of rounds.
        decay: of the running average of the weights, which is validated and kept; 0 for none. By default the average is
            over a twentieth of all updates.
        exploration: standard deviation of the random log-odds that are added to g's departures in pathwise training;
            it falls to 0. E then learns from more weights than g chooses, and overfits less.
        faults: share of the training windows that have a fault of live streams: steps skipped, sensors that fall
            silent or are fewer, values at random, a reader who joins late. E learns to be less certain then, at a price
            where nothing goes wrong. By default 0.25 for stationary designs, which are for live use, and 0 for others
            and for the floor.
        batch_size: windows in a gradient step.
        learning_rate: the largest one; it rises at first and then falls along a cosine. By default 2e-2, and 1e-2 for
            windows of 300 steps or more, through which larger steps drift.
        window: steps of a training window; by default the horizon, and 600 for a stationary design. A window
            shorter than the horizon is for constant and stationary designs. E then reads no clock; constant designs
            and the floor read one where window and horizon are equal.
        validate_every: updates between two validations; `method="ppo"` validates once a round instead. With
            little validation data, weights of the first updates may be best by chance: then validate less often.
        patience: validations without improvement after which training stops; the best weights are kept. By default
            training never stops early: a start with small steps may learn late. Designs that are trained at once stop
            together.
        validation_windows: how many windows a validation takes, evenly spaced. For a stationary design a quarter as
            many, each four times as long: its E must not drift after the end of a training window.
        validation_draws: how many draws of noise a validation takes, the same every time.
    """

    num_starts: int | None = None
    num_updates: int = 2000
    decay: float | None = None
    exploration: float = 0.0
    faults: float | None = None
    batch_size: int = 16
    learning_rate: float | None = None
    window: int | None = None
    validate_every: int = 100
    patience: int | None = None
    validation_windows: int = 128
    validation_draws: int = 2

    def __post_init__(self) -> None:
        counts = ["num_updates", "batch_size", "validate_every", "validation_windows", "validation_draws"]
        optional = [name for name in ("num_starts", "window", "patience") if getattr(self, name) is not None]
        for name in [*counts, *optional]:
            _check.is_count(name, getattr(self, name))
        if self.learning_rate is not None:
            _check.is_positive("learning_rate", self.learning_rate)
        if not 0 <= self.exploration < float("inf"):
            raise ValueError(f"exploration must be finite and at least 0, got {self.exploration}")
        if self.faults is not None and not 0 <= self.faults <= 1:
            raise ValueError(f"faults must be from 0 to 1, got {self.faults}")
        if self.decay is not None and not 0 <= self.decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {self.decay}")

    @property
    def starts(self) -> int:
        """How many first weights each design is trained from."""
        usual = _NUM_STARTS if self.num_updates >= _ENOUGH_UPDATES else 1
        return usual if self.num_starts is None else self.num_starts

    def for_window(self, window: int, *, is_live: bool = False) -> Optimisation:
        """The same settings with the learning rate and faults that are used for windows of so many steps.

        Args:
            is_live: whether the designs are private ones without end.
        """
        usual = _LEARNING_RATE if window < _LONG_WINDOW else _LEARNING_RATE_LONG
        rate = usual if self.learning_rate is None else self.learning_rate
        return replace(self, learning_rate=rate, faults=self.faults_for(is_live=is_live))

    def faults_for(self, *, is_live: bool) -> float:
        """The share of the training windows that have a fault."""
        return (_LIVE_FAULTS if is_live else 0.0) if self.faults is None else self.faults

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
