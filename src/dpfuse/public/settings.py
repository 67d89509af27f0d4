"""The public settings of a centre: all that a relay has to know beside the releases."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfuse.guarantee import Guarantee
from dpfuse.privacy.loss import FEATURE_SETS
from dpfuse.public.signatures import Signatory

if TYPE_CHECKING:
    from dpfuse.policy.design import Design

_FINGERPRINT = re.compile(r"[0-9a-f]{16,128}", re.ASCII)
_STREAM = re.compile(r"[0-9A-Za-z_.-]{1,64}", re.ASCII)
_MAX_STREAMS, _MAX_SIZE, _MAX_LABEL = 100_000, 2**20, 200
_SHORTEST_S, _LONGEST_S = 1e-6, 1e9


@dataclass(frozen=True, kw_only=True)
class PublicSettings:
    """What page, metrics, clock and guarantee are made of, beside the releases. Nothing here depends on a sensor.

    Attributes:
        streams: their names.
        streams_in_ledger: how many the ledger has had, also those that were retired.
        guarantee: for each sensor.
        fingerprint: of the design.
        signed_by: who signs the releases; None for nobody.
        interval_s, delay_s: see `Ticker`.
        first_step: the first step of the centre's process; a page sees by it that the centre was restarted.
        horizon: the last step of a finite design; None for a design without an end.
        num_states, dimension: coordinates of the state and of a release.
        features, charge_factor: see `Structure`; they decide the largest loss of a step.
        spent_below: a total budget counts as spent once no more than this loss is left.
        channels: the lowest and the highest value of each channel of a measurement.
        inputs: the lowest and the highest value of each public input that g and E read.
        labels: name and unit of each coordinate of the state, such as "density [veh/km]"; empty if they have none.
        channel_labels, input_labels: the same of each channel of a measurement, and of each public input.
        prior_std: standard deviation of each coordinate of the state before any release; empty if it is not known.
        is_replay: the data is simulated or public, and truth, latency and number of reports are shown.
        partial_reports: a report may lack channels; otherwise one that does counts as absent.
        attributes: the fingerprint of the sensors' attributes, see `SensorAttributes`; None if the design reads none.
        has_bank: a bank lends the accounts of the sensors to several centres.
    """

    streams: tuple[str, ...]
    streams_in_ledger: int
    guarantee: Guarantee
    fingerprint: str
    signed_by: Signatory | None
    interval_s: float
    delay_s: float
    first_step: int
    horizon: int | None
    num_states: int
    dimension: int
    features: str
    charge_factor: int
    spent_below: float
    channels: tuple[tuple[float, float], ...]
    inputs: tuple[tuple[float, float], ...] = ()
    labels: tuple[str, ...] = ()
    channel_labels: tuple[str, ...] = ()
    input_labels: tuple[str, ...] = ()
    prior_std: tuple[float, ...] = ()
    is_replay: bool = False
    has_bank: bool = False
    partial_reports: bool = False
    attributes: str | None = None

    @classmethod
    def of_design(
        cls,
        design: Design,
        *,
        streams: Sequence[str],
        signed_by: Signatory | None,
        labels: Sequence[str],
        **others: Any,
    ) -> PublicSettings:
        """The settings of a centre with this design; `others` are the fields that the design does not decide."""
        from dpfuse.policy.step import HEADROOM

        if design.guarantee is None:
            raise ValueError("design must have a guarantee to be shown; the non-private floor has none")
        structure, constants = design.structure, design.policy.constants
        labels = labels or design.labels.get("state", ())
        if labels and len(labels) != structure.num_states:
            raise ValueError(
                f"labels must hold {structure.num_states}, one for each coordinate of the state, got {len(labels)}"
            )
        channel_labels, input_labels = (tuple(design.labels.get(name, ())) for name in ("channels", "public"))
        if not all(map(_is_label, (*labels, *channel_labels, *input_labels))):
            raise ValueError(
                f"labels must be texts of up to {_MAX_LABEL} characters that UTF-8 has; name them otherwise"
            )
        ranges = zip(constants.measurement_low.tolist(), constants.measurement_high.tolist(), strict=True)
        inputs: tuple[tuple[float, float], ...] = ()
        if constants.public_low is not None and constants.public_high is not None:
            inputs = tuple(zip(constants.public_low.tolist(), constants.public_high.tolist(), strict=True))
        return cls(
            streams=tuple(streams),
            guarantee=design.guarantee,
            fingerprint=design.fingerprint,
            signed_by=signed_by,
            horizon=structure.horizon,
            num_states=structure.num_states,
            dimension=structure.dimension,
            features=structure.features,
            charge_factor=structure.charge_factor,
            spent_below=2 * HEADROOM * design.guarantee.budget,
            channels=tuple(ranges),
            inputs=inputs,
            labels=tuple(labels),
            channel_labels=channel_labels,
            input_labels=input_labels,
            prior_std=tuple(np.asarray(constants.state_std, np.float64).tolist()),
            partial_reports=structure.partial_reports,
            **others,
        )

    @property
    def values_in_row(self) -> int:
        """The numbers of a row whose count a design decides: its release, and values and ages of public inputs."""
        return self.dimension + 2 * len(self.inputs)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON holds them."""
        signed_by = None if self.signed_by is None else self.signed_by._asdict()
        return asdict(self) | {"guarantee": self.guarantee.to_dict(), "signed_by": signed_by}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PublicSettings:
        """The settings that `to_dict` described, by anybody; a ValueError for anything else."""
        try:
            found = cls(
                **dict(fields)
                | {
                    "guarantee": Guarantee(**fields["guarantee"]),
                    "signed_by": None if fields["signed_by"] is None else Signatory.from_dict(fields["signed_by"]),
                    "streams": tuple(fields["streams"]),
                    "channels": tuple((float(low), float(high)) for low, high in fields["channels"]),
                    "inputs": tuple((float(low), float(high)) for low, high in fields["inputs"]),
                    "labels": tuple(fields["labels"]),
                    "channel_labels": tuple(fields["channel_labels"]),
                    "input_labels": tuple(fields.get("input_labels", ())),
                    "prior_std": tuple(fields["prior_std"]),
                }
            )
            is_right = found._is_right()
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError("these are not the settings of a centre that this version can read") from error
        if not is_right:
            raise ValueError("these are not the settings of a centre that this version can read")
        return found

    def _is_right(self) -> bool:
        counts = (
            self.streams_in_ledger,
            self.first_step,
            self.num_states,
            self.dimension,
            self.charge_factor,
            self.horizon or 1,
        )
        lengths_s = (self.interval_s, self.delay_s)
        return (
            0 < len(self.streams) <= _MAX_STREAMS
            and len(self.streams) <= self.streams_in_ledger
            and all(isinstance(name, str) and _STREAM.fullmatch(name) for name in self.streams)
            and _FINGERPRINT.fullmatch(self.fingerprint) is not None
            and all(type(count) is int and 0 < count < 2**63 for count in counts)
            and max(self.num_states, self.dimension, len(self.channels), len(self.inputs)) <= _MAX_SIZE
            and all(type(length) in (int, float) and _SHORTEST_S <= length < _LONGEST_S for length in lengths_s)
            and type(self.spent_below) is float
            and self.features in FEATURE_SETS
            and len(self.labels) in (0, self.num_states)
            and len(self.channel_labels) in (0, len(self.channels))
            and len(self.input_labels) in (0, len(self.inputs))
            and all(map(_is_label, (*self.labels, *self.channel_labels, *self.input_labels)))
            and len(self.prior_std) in (0, self.num_states)
            and all(type(one) is float and 0 < one < math.inf for one in self.prior_std)
            and (self.attributes is None or _FINGERPRINT.fullmatch(self.attributes) is not None)
            and type(self.is_replay) is type(self.has_bank) is type(self.partial_reports) is bool
        )


def _is_label(text: object) -> bool:
    """Whether it is a short text; JSON can hold half a character (a lone surrogate), which no answer can."""
    return isinstance(text, str) and len(text) <= _MAX_LABEL and not any("\ud800" <= one <= "\udfff" for one in text)


def split_label(text: str) -> tuple[str, str]:
    """Name and unit of a label such as "density [veh/km]"."""
    name, _, unit = text.partition("[")
    return name.strip(), unit.strip().removesuffix("]")
