"""What a design looks like apart from its weights: parts by name, sets and sizes. It fixes every shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpfuse import _check
from dpfuse.privacy.loss import FEATURE_SETS, FeatureSet, charge_factor
from dpfuse.types import Accounting, Guarantee

AnyFeatures = FeatureSet | Literal["unbounded"]


@dataclass(frozen=True, kw_only=True)
class Structure:
    """The fixed part of a policy.

    A part of the package's own is stored by its name in the table of its kind, a user's own as `module:Class`.

    Attributes:
        num_states: n_x, coordinates of the state.
        num_channels: n_y, coordinates of one measurement.
        features: where one sensor's features live. `box`: [0, 1]^d, the paper's. `ball`: the signed unit ball.
            `orthant`: its non-negative part. `unbounded`: all of R^d, for the non-private floor only.
        dimension: d, coordinates of the features and of a release.
        spending: the rule g, by its name in `SPENDING_RULES`.
        accounting: as in the guarantee.
        charge_factor: c in the loss of a release: alpha c g^2 / 2 for the fusion weight g in total accounting,
            alpha c |c_i|^2 / 2 for the contribution c_i of a sensor in individual accounting.
        horizon: number of releases, or None for a stationary design, which has no end and reads no clock.
        expected_stay: mean number of steps for which a sensor takes part; its budget is planned to last that long
            (individual accounting).
        expected_sensors: how many sensors contribute at a time, roughly; it scales what networks read.
        recurrent_filter: f, by its name in `FILTERS`.
        estimator: E, by its name in `ESTIMATORS`.
        filter_size, fusion_size, estimator_size: numbers that f, g and E remember.
    """

    num_states: int
    num_channels: int
    features: AnyFeatures
    dimension: int
    spending: str
    accounting: Accounting
    charge_factor: int
    horizon: int | None
    expected_stay: float
    expected_sensors: float
    recurrent_filter: str = "gru"
    estimator: str = "gru"
    filter_size: int = 16
    fusion_size: int = 16
    estimator_size: int = 32

    def __post_init__(self) -> None:
        for name in ("num_states", "num_channels", "dimension", "charge_factor", "filter_size", "fusion_size",
                     "estimator_size"):  # fmt: skip
            _check.is_count(name, getattr(self, name))
        _check.is_positive("expected_stay", self.expected_stay)
        _check.is_positive("expected_sensors", self.expected_sensors)
        _check.is_one_of("features", self.features, (*FEATURE_SETS, "unbounded"))
        if self.horizon is None and self.accounting != "individual":
            raise ValueError("a stationary design must have individual accounting: a total budget comes to an end")

    @classmethod
    def for_guarantee(
        cls, guarantee: Guarantee | None, *, features: AnyFeatures, dimension: int, **fields: Any
    ) -> Structure:
        """The structure with the accounting and charge factor of the guarantee; without one, features are unbounded."""
        if guarantee is None or features == "unbounded":
            fields |= {"features": "unbounded", "accounting": "total", "charge_factor": 1}
        else:
            factor = charge_factor(features, dimension, guarantee.adjacency, guarantee.accounting)
            fields |= {"features": features, "accounting": guarantee.accounting, "charge_factor": factor}
        return cls(dimension=dimension, **fields)

    @property
    def is_private(self) -> bool:
        return self.features != "unbounded"

    @property
    def has_clock(self) -> bool:
        """Whether networks read the step.

        False for constant spending, which does not need the step, and for stationary designs, which have no last step.
        """
        return self.horizon is not None and self.spending != "constant"

    @property
    def num_observed(self) -> int:
        """How many numbers g reads: the last release, its reliability, the last estimate, step and budget left."""
        return self.dimension + 1 + 2 * self.num_states + 2

    @property
    def num_estimator_inputs(self) -> int:
        """How many numbers E reads: the release twice, its reliability, step and budget left."""
        return 2 * self.dimension + 3

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)
