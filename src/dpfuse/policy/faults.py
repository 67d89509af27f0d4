"""Faults of live streams that recordings do not have: steps skipped, sensors silent, wrong values, late readers.

Training puts them into some of its windows at random, so that E learns what to believe then. Evaluation puts one of
them into every window.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpfuse._arrays import Booleans, Floats, Floats32, Integers
from dpfuse.policy.rollout import PackedWindows

# What `evaluate` can put into every window.
FAULTS = {
    "skipped": "every other step has no release",
    "silent": "half of the sensors stop reporting a third of the way through",
    "all-silent": "all sensors stop reporting a third of the way through",
    "joined": "the reader of the releases joins a third of the way through",
    "thinned": "a third of the sensors report",
    "share-10": "a tenth of the sensors report",
    "glitches": "one report in ten holds values at random, from the range that the windows have",
}
_KINDS = np.array(["skipped", "silent", "joined", "thinned", "glitches"])
_REPORTING = {"thinned": 1 / 3, "share-10": 0.1}
# Of the steps of a window that has some skipped.
_MOST_SKIPPED = 0.6
# Of the reports: in training at most, and in evaluation.
_MOST_GLITCHES, _GLITCHES = 0.2, 0.1


class _Plan(NamedTuple):
    """What happens in each window.

    Attributes:
        skipped: steps without a release, shape (K, windows).
        joined: the step at which a reader joins.
        reporting: the share of the sensors that report at all.
        silent_from, silent: from which step which share of them is silent.
        glitches: the share of the reports that hold random values.
    """

    skipped: Booleans
    joined: Integers
    reporting: Floats
    silent_from: Integers
    silent: Floats
    glitches: Floats


def with_random_faults(
    windows: PackedWindows, share: float, rng: np.random.Generator, num_channels: int
) -> PackedWindows:
    """The windows, each with one fault with probability `share`, of random kind and size.

    Args:
        num_channels: of a report; what follows them in `measurements` is no measurement.
    """
    steps, count = windows.skipped.shape
    kind = np.where(rng.uniform(size=count) < share, rng.choice(_KINDS, count), "")
    rate, size = rng.uniform(0, _MOST_SKIPPED, count), rng.uniform(size=count)
    # All sensors in half of these windows: then the releases say nothing, and E must learn that the band grows.
    size = np.where((kind == "silent") & (rng.uniform(size=count) < 0.5), 1.0, size)
    moment = rng.integers(steps, size=count)
    plan = _Plan(
        skipped=(kind == "skipped") & (rng.uniform(size=(steps, count)) < rate),
        joined=np.where(kind == "joined", moment, 0),
        reporting=np.where(kind == "thinned", size, 1.0),
        silent_from=np.where(kind == "silent", moment, steps),
        silent=size,
        glitches=np.where(kind == "glitches", _MOST_GLITCHES * size, 0.0),
    )
    return _apply(windows, plan, rng, num_channels)


def with_fault(windows: PackedWindows, name: str, rng: np.random.Generator, num_channels: int) -> PackedWindows:
    """The windows, all with the fault of that name in `FAULTS`; which sensors it concerns is random."""
    steps, count = windows.skipped.shape
    everywhere = np.ones(count)
    plan = _Plan(
        skipped=np.tile((np.arange(steps) % 2 == 1)[:, None] & (name == "skipped"), count),
        joined=np.full(count, steps // 3 if name == "joined" else 0),
        reporting=_REPORTING.get(name, 1.0) * everywhere,
        silent_from=np.full(count, steps // 3 if "silent" in name else steps),
        silent=everywhere if name == "all-silent" else everywhere / 2,
        glitches=_GLITCHES * everywhere * (name == "glitches"),
    )
    return _apply(windows, plan, rng, num_channels)


def _apply(windows: PackedWindows, plan: _Plan, rng: np.random.Generator, num_channels: int) -> PackedWindows:
    steps, count = windows.skipped.shape
    # Rows that pad the shape belong to no window; nothing is present in them.
    window = np.minimum(windows.window, count - 1)
    luck, other_luck = rng.uniform(size=(2, len(window)))
    is_late = np.arange(steps)[:, None] >= plan.silent_from[window]
    is_silent = is_late & (luck < plan.silent[window]) | (other_luck >= plan.reporting[window])
    skipped = np.asarray(windows.skipped) | plan.skipped
    present = np.asarray(windows.present) & ~is_silent & ~skipped[:, window]
    if plan.glitches.any() and present.any():
        is_wrong = rng.uniform(size=present.shape) < plan.glitches[window]
        windows = windows._replace(measurements=_replaced_at_random(windows, present, is_wrong, rng, num_channels))
    return windows._replace(present=present, skipped=skipped, joined=plan.joined.astype(np.int32))


def _replaced_at_random(
    windows: PackedWindows, present: Booleans, is_wrong: Booleans, rng: np.random.Generator, num_channels: int
) -> Floats32:
    """The measurements, those of wrong reports drawn from the range of the others. What is missing stays missing."""
    measurements = np.array(windows.measurements)
    own = measurements[..., :num_channels]
    seen = own[present]
    low, high = np.fmin.reduce(seen, axis=0), np.fmax.reduce(seen, axis=0)
    random = (low + rng.uniform(size=own.shape) * (high - low)).astype(np.float32)
    own[...] = np.where(is_wrong[..., None] & ~np.isnan(own), random, own)
    return measurements
