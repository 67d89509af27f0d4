"""Whether a recording has what a design reads."""

from __future__ import annotations

import warnings

from dpfuse.attributes import SensorAttributes
from dpfuse.errors import DataWarning
from dpfuse.policy.structure import Structure
from dpfuse.trajectories import Trajectories


def check_recording(structure: Structure, data: Trajectories, name: str) -> None:
    """Raise unless the recording has the states, channels and attributes of the design.

    Warn of reports that lack channels, where the design was not trained for such: they count as absent.
    """
    expected, given = (
        (structure.num_states, structure.num_channels),
        (data.state.shape[-1], data.measurements.shape[-1]),
    )
    if given != expected:
        raise ValueError(f"{name} must have the (states, channels) of the design, {expected}, got {given}")
    num_attributes = 0 if data.attributes is None else data.attributes.num_attributes
    if structure.num_attributes not in (0, num_attributes):
        raise ValueError(
            f"{name} must have the {structure.num_attributes} attributes of each sensor that the design reads, got "
            f"{num_attributes}; give Trajectories(attributes=...)"
        )
    num_public = 0 if data.public is None else data.public.shape[-1]
    if structure.num_public not in (0, num_public):
        raise ValueError(
            f"{name} must have the {structure.num_public} public inputs that the design reads, got {num_public}; give "
            f"Trajectories(public=...)"
        )
    if not structure.partial_reports and (num_partial := data.num_partial):
        warnings.warn(
            f"{num_partial:,} of {int(data.present.sum()):,} reports in {name} lack a channel and count as absent: the "
            f"design was trained on complete reports; train on a recording that lacks channels, see "
            f"Trajectories.drop_channels",
            DataWarning,
            stacklevel=3,
        )


def check_attributes(structure: Structure, attributes: SensorAttributes | None) -> SensorAttributes | None:
    """The attributes, if they are those that the design reads; None for a design that reads none."""
    if not structure.num_attributes:
        return None
    given = 0 if attributes is None else attributes.num_attributes
    if given != structure.num_attributes:
        raise ValueError(
            f"attributes must be {structure.num_attributes} numbers for each sensor, as the design reads them, got "
            f"{given}; see SensorAttributes, and for a live centre --attributes"
        )
    return attributes
