"""What a design looks like, apart from its weights: the sets, sizes and rules that fix every shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpfuse import _check
from dpfuse.privacy.loss import FEATURE_SETS, FeatureSet
from dpfuse.types import Accounting

AnyFeatures = FeatureSet | Literal["unbounded"]
Spending = Literal["constant", "schedule", "adaptive"]
FilterKind = Literal["gru", "guided", "affine"]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The fixed part of a policy.

    Attributes:
        num_states: n_x, coordinates of the state.
        num_channels: n_y, coordinates of one measurement.
        features: where one sensor's features live. `box`: [0, 1]^d, the paper's. `ball`: the signed unit ball.
            `orthant`: its non-negative part. `unbounded`: all of R^d, for the non-private floor only.
        dimension: d, coordinates of the features and of a release.
        spending: how the budget is spent. `constant`: evenly. `schedule`: by step. `adaptive`: by what was released.
        accounting: as in the guarantee.
        charge_factor: c in the loss alpha c g^2 / 2 of a release with fusion weight g.
        horizon: number of releases, or None for a stationary design, which has no end and reads no clock.
        expected_stay: steps over which one sensor's budget should last, for individual accounting.
        crowd: how many sensors contribute at a time, roughly; it only scales what networks read.
        recurrent_filter: f. `gru`: learned, from the sensor's own history. `guided`: the same, and what it makes of
            that history follows what was released so far. `affine`: the measurement itself, mapped from its range to
            the box.
    """

    num_states: int
    num_channels: int
    features: AnyFeatures
    dimension: int
    spending: Spending
    accounting: Accounting
    charge_factor: int
    horizon: int | None
    expected_stay: float
    crowd: float
    recurrent_filter: FilterKind = "gru"
    filter_size: int = 16
    fusion_size: int = 16
    estimator_size: int = 32

    def __post_init__(self) -> None:
        for name in ("num_states", "num_channels", "dimension", "charge_factor", "filter_size", "fusion_size",
                     "estimator_size"):  # fmt: skip
            _check.is_count(name, getattr(self, name))
        _check.is_positive("expected_stay", self.expected_stay)
        _check.is_positive("crowd", self.crowd)
        _check.is_one_of("features", self.features, (*FEATURE_SETS, "unbounded"))
        _check.is_one_of("spending", self.spending, ("constant", "schedule", "adaptive"))
        _check.is_one_of("recurrent_filter", self.recurrent_filter, ("gru", "guided", "affine"))
        if self.horizon is None and self.accounting != "individual":
            raise ValueError("a stationary design must have individual accounting: a total budget comes to an end")
        if self.horizon is None and self.spending == "schedule":
            raise ValueError("spending must be constant or adaptive in a stationary design: a schedule needs a clock")
        if self.recurrent_filter == "affine" and (self.features, self.dimension) != ("box", self.num_channels):
            raise ValueError(
                f"recurrent_filter='affine' must have features='box' and dimension={self.num_channels} (one for "
                f"each measurement channel), got {self.features!r} and {self.dimension}"
            )

    @property
    def is_private(self) -> bool:
        return self.features != "unbounded"

    @property
    def is_guided(self) -> bool:
        """Whether features depend on past releases."""
        return self.recurrent_filter == "guided"

    @property
    def is_summed(self) -> bool:
        """Whether only the sum of the features matters, and can be had ahead of the loop through the releases."""
        return self.accounting == "total" and not self.is_guided

    @property
    def has_clock(self) -> bool:
        """Whether networks read the step: a constant design has no use for it, a stationary one no end."""
        return self.horizon is not None and self.spending != "constant"

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)
