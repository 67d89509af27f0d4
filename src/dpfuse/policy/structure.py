"""What a design looks like apart from its weights: parts by name, sets and sizes. It fixes every shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpfuse import _check
from dpfuse.guarantee import Accounting, Guarantee
from dpfuse.privacy.loss import FEATURE_SETS, FeatureSet, charge_factor

AnyFeatures = FeatureSet | Literal["unbounded"]
_MAX_SIZE, _MAX_HORIZON = 2**20, 2**31 - 1


# What the networks may read besides complete reports and releases. A structure without one of these has the same
# `repr`, hence the same fingerprint, and the same dictionary as before there was such a field.
_OPTIONAL = ("partial_reports", "num_attributes", "num_public", "reads_step")


@dataclass(frozen=True, kw_only=True, repr=False)
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
            (individual accounting). In a stationary design with total accounting: the steps of a period.
        expected_sensors: how many sensors contribute at a time, roughly; it scales what networks read.
        recurrent_filter: f, by its name in `FILTERS`.
        estimator: E, by its name in `ESTIMATORS`.
        filter_size, fusion_size, estimator_size: numbers that f, g and E remember.
        partial_reports: whether a report may lack channels. f then also reads, for each channel, whether it is missing.
            Without it such a report counts as absent.
        num_attributes: n_a, fixed public numbers of each sensor that its f reads, see `SensorAttributes`.
        num_public: n_p, public inputs of each step that g, E and the guidance read.
        reads_step: whether E and the guidance read the step although the spending is constant; with other rules they
            always do.
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
    estimator_size: int = 40
    partial_reports: bool = False
    num_attributes: int = 0
    num_public: int = 0
    reads_step: bool = False

    def __post_init__(self) -> None:
        for name in ("num_states", "num_channels", "dimension", "charge_factor", "filter_size", "fusion_size",
                     "estimator_size"):  # fmt: skip
            if _check.is_count(name, getattr(self, name)) > _MAX_SIZE:
                raise ValueError(f"{name} must be at most {_MAX_SIZE}, got {getattr(self, name)}")
        if self.horizon is not None and _check.is_count("horizon", self.horizon) > _MAX_HORIZON:
            raise ValueError(f"horizon must be at most {_MAX_HORIZON}, got {self.horizon}; a design may have no end")
        _check.is_positive("expected_stay", self.expected_stay)
        _check.is_positive("expected_sensors", self.expected_sensors)
        for name in ("num_attributes", "num_public"):
            if _check.is_count(name, getattr(self, name), 0) > _MAX_SIZE:
                raise ValueError(f"{name} must be at most {_MAX_SIZE}, got {getattr(self, name)}")
        for name in ("partial_reports", "reads_step"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        _check.is_one_of("features", self.features, (*FEATURE_SETS, "unbounded"))

    @classmethod
    def for_guarantee(
        cls, guarantee: Guarantee | None, *, features: AnyFeatures, dimension: int, **fields: Any
    ) -> Structure:
        """The structure with the accounting and charge factor of the guarantee; without one, features are unbounded."""
        if guarantee is None or features == "unbounded":
            fields |= {"features": "unbounded", "accounting": "total", "charge_factor": 1}
        else:
            check_end(guarantee, fields.get("horizon"))
            factor = charge_factor(features, dimension, guarantee.adjacency, guarantee.accounting)
            fields |= {"features": features, "accounting": guarantee.accounting, "charge_factor": factor}
        return cls(dimension=dimension, **fields)

    @property
    def is_private(self) -> bool:
        return self.features != "unbounded"

    @property
    def has_clock(self) -> bool:
        """Whether networks read the step.

        False for stationary designs, which have no last step, and for constant spending without `reads_step`.
        """
        return self.horizon is not None and (self.spending != "constant" or self.reads_step)

    @property
    def num_filter_inputs(self) -> int:
        """How many numbers f reads: the channels, with partial reports if each is missing, and the attributes."""
        return self.num_channels * (2 if self.partial_reports else 1) + self.num_attributes

    @property
    def num_observed(self) -> int:
        """How many numbers g reads: see `dpfuse.policy.step.observe`."""
        return self.dimension + 1 + 2 * self.num_states + 1 + 2 + 2 * self.num_public

    @property
    def num_estimator_inputs(self) -> int:
        """How many numbers E reads: the release twice, its reliability, step, budget left, if the step was skipped."""
        return 2 * self.dimension + 4 + 2 * self.num_public

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return {name: value for name, value in asdict(self).items() if name not in _OPTIONAL or value}

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.to_dict())
        return f"Structure({', '.join(shown)})"


def check_end(guarantee: Guarantee, horizon: int | None) -> None:
    """Refuse a design without an end whose budget has one, and the other way round."""
    if horizon is None and guarantee.accounting == "total" and guarantee.period is None:
        raise ValueError(
            "a stationary design must have individual accounting, or a guarantee with a period: a total budget comes "
            "to an end"
        )
    if horizon is not None and guarantee.period is not None:
        raise ValueError(
            "a design with a period must be stationary: one with an end has one budget for all of its steps"
        )
