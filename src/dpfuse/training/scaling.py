"""What a design takes from its training data besides weights: ranges, means and spreads of what networks read."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpfuse._arrays import Booleans, Floats, Floats32
from dpfuse.policy.structure import Structure
from dpfuse.training.settings import Architecture
from dpfuse.trajectories import NOBODY, Trajectories

_log = logging.getLogger(__name__)
# Of the range. A channel that varies less counts as constant.
_SMALLEST_SPREAD = 1e-3
_SMALLEST_OF_MASK = 0.5
# The quantile at either end of a channel's range, and by how much of their distance it is widened on both sides.
_END, _WIDER = 1e-4, 0.25
# With fewer values, the smallest and the largest one count too.
_FEW_VALUES = 100
# More sensors than these are not asked where they stand.
_FEW_SENSORS = 100


def find_public_range(training: Trajectories) -> dict[str, Any]:
    """The range of each public input, as fields of `Constants`; nothing if there are none."""
    if training.public is None:
        return {}
    seen = training.public.reshape(-1, training.public.shape[-1])
    if (never := np.isnan(seen).all(0)).any():
        raise ValueError(f"training must have a value of every public input, got none of input {never.argmax()}")
    bounds = _apart(np.nanmin(seen, 0), np.nanmax(seen, 0))
    return dict(zip(("public_low", "public_high"), map(jnp.asarray, bounds), strict=True))


class FilterInputs(NamedTuple):
    """What f reads in training.

    Attributes:
        spread: mean and standard deviation of each number that f reads; 1 for one that is constant.
        constants: fields of `Constants`: what stands for a missing channel, and the range of each attribute.
    """

    spread: tuple[Floats32, Floats32]
    constants: dict[str, Any]


def find_filter_inputs(structure: Structure, training: Trajectories, low: Floats32, high: Floats32) -> FilterInputs:
    """What f reads in the training data, given the range of each channel."""
    clipped = np.clip(training.measurements[training.present], low, high)
    constants: dict[str, Any] = {}
    if structure.partial_reports:
        is_missing = np.isnan(clipped)
        fill = np.nanmean(clipped, 0, dtype=np.float64).astype(np.float32)
        constants["measurement_fill"] = jnp.asarray(fill)
        clipped = np.where(is_missing, fill, clipped)
    inputs = [2 * (clipped - low) / (high - low) - 1]
    if structure.partial_reports:
        inputs.append(is_missing.astype(np.float32))
    if training.attributes is not None:
        attributes = training.attributes.look_up(training.sensors[training.present])
        bounds = _apart(attributes.min(0), attributes.max(0))
        constants |= dict(zip(("attribute_low", "attribute_high"), map(jnp.asarray, bounds), strict=True))
        inputs.append(2 * (attributes - bounds[0]) / (bounds[1] - bounds[0]) - 1)
    mean, std = (np.concatenate([how(each, 0) for each in inputs]) for how in (_mean, _std))
    std = np.where(std > _SMALLEST_SPREAD, std, 1.0)
    if structure.partial_reports:
        # A channel that is rarely missing would otherwise move f's memory far when it is.
        mask = slice(len(low), 2 * len(low))
        std[mask] = np.maximum(std[mask], _SMALLEST_OF_MASK)
    return FilterInputs((mean.astype(np.float32), std.astype(np.float32)), constants)


def _mean(values: Floats32, axis: int) -> Any:
    return values.mean(axis, dtype=np.float64)


def _std(values: Floats32, axis: int) -> Any:
    return values.std(axis, dtype=np.float64)


def _apart(low: Floats32, high: Floats32) -> tuple[Floats32, Floats32]:
    """The bounds, the higher one raised where both are equal."""
    return low, np.where(high > low, high, low + 1).astype(np.float32)


def suggest_attributes(training: Trajectories) -> None:
    """Log a message if a few sensors are always the same and have channels that never change."""
    if training.attributes is not None or not training.present.any():
        return
    ids = np.unique(training.sensors[training.sensors != NOBODY])
    if not 1 < len(ids) <= _FEW_SENSORS:
        return
    if any(len(np.unique(own[own != NOBODY])) < len(ids) for own in training.sensors):
        return
    if (fixed := np.flatnonzero(_fixed_channels(training))).size:
        _log.warning(
            "channels %s never change within a sensor, and the same %d sensors report in every run: if these channels "
            "may be public, give them as Trajectories(attributes=...); sensors then need not report them",
            ", ".join(map(str, fixed)),
            len(ids),
        )


def _fixed_channels(training: Trajectories) -> Booleans:
    """Which channels are constant for each sensor, and not for all."""
    values, sensors = training.measurements[training.present], training.sensors[training.present]
    _, first, which = np.unique(sensors, return_index=True, return_inverse=True)
    is_fixed: Booleans = (values == values[first][which]).all(0) & ~(values == values[0]).all(0)
    return is_fixed


def _usual_range(seen: Floats32) -> tuple[Floats, Floats]:
    """Where nearly all values of each channel are; one extreme value changes nothing."""
    bounds = np.empty((2, seen.shape[1]))
    for channel, values in enumerate(np.sort(seen.astype(np.float64), axis=0).T):
        known = values[~np.isnan(values)]
        left_out = max(1, int(_END * len(known))) if len(known) >= _FEW_VALUES else 0
        low, high = known[left_out], known[-1 - left_out]
        if low == high:  # a channel that rarely moves says most when it does
            low, high = known[0], known[-1]
        margin = _WIDER * (high - low)
        bounds[:, channel] = max(known[0], low - margin), min(known[-1], high + margin)
        _log.info("channel %d is read from %g to %g; values outside are clipped", channel, *bounds[:, channel])
    return bounds[0], bounds[1]


def find_scales(training: Trajectories, architecture: Architecture) -> list[Floats32]:
    """Measurement range and state mean and deviation, as in `Constants`."""
    num_channels = training.measurements.shape[-1]
    seen = training.measurements[training.present]
    if not len(seen):
        raise ValueError("training must have at least one present sensor")
    if (never := np.isnan(seen).all(0)).any():
        raise ValueError(f"training must have a value in every channel, got none in channel {never.argmax()}")
    low, high = architecture.measurement_range or _usual_range(seen)
    low, high = (np.broadcast_to(np.asarray(bound, np.float32), num_channels) for bound in (low, high))
    with np.errstate(over="ignore"):
        if not (np.isfinite(high - low) & (low <= high)).all():
            raise ValueError(
                "measurement_range must be finite with low at most high in every channel; without one, training must "
                "hold no extreme values"
            )
    low, high = _apart(low, high)
    std = training.state.std(axis=(0, 1))
    values = low, high, training.state.mean(axis=(0, 1)), np.where(std > 0, std, 1.0)
    return [np.asarray(value, np.float32) for value in values]
