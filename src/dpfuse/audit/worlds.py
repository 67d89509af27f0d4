"""Two neighbouring worlds: one sensor, the canary, is in one of them, and absent or different in the other."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpfuse._arrays import Booleans, Floats, Floats32, Integers
from dpfuse.attributes import SensorAttributes
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.design import Design
from dpfuse.policy.filters import RecurrentFilter
from dpfuse.policy.policy import Networks, Policy
from dpfuse.privacy.loss import FeatureSet
from dpfuse.public_inputs import hold
from dpfuse.trajectories import NOBODY

CANARY = 7
OTHERS = (1, 2, 3)
NUM_ROWS = len(OTHERS) + 2
"""The canary, the others, and a spare row for a canary that moves or reports twice."""

# Keeps a feature of length 1 in its set after rounding in float32.
_INSIDE = 1 - 2.0**-20


class Canary(NamedTuple):
    """The whole trajectory of one sensor: measurements, shape (K, n_y), and whether it reports, shape (K,)."""

    measurements: Floats
    present: Booleans


class World(NamedTuple):
    """All reports to a centre: ids and presence, shape (K, rows), and measurements, shape (K, rows, n_y).

    `inputs` holds the public inputs of each step, values and ages, shape (K, 2 n_p); None for a design that reads none.
    """

    ids: Integers
    measurements: Floats
    present: Booleans
    inputs: Floats32 | None = None

    def inputs_at(self, k: int) -> Floats32 | None:
        """The public inputs of step k, counted from 0."""
        return None if self.inputs is None else self.inputs[k]

    def copy(self) -> World:
        """A copy with arrays of its own."""
        return World(self.ids.copy(), self.measurements.copy(), self.present.copy(), self.inputs)

    def only(self, sensor: int) -> World:
        """The same without all other sensors."""
        return self._replace(ids=np.where(self.ids == sensor, sensor, NOBODY))

    def in_rows(self, order: Integers) -> World:
        """The same with the sensors in other rows."""
        return World(self.ids[:, order], self.measurements[:, order], self.present[:, order], self.inputs)


class Worlds(NamedTuple):
    """The world with the canary, and its neighbour."""

    with_canary: World
    neighbour: World


def make_worlds(design: Design, canary: Canary, replacement: Canary | None, seed: int) -> Worlds:
    """Two worlds with the canary and with its replacement; all other reports are the same in both.

    Args:
        replacement: of the canary in the neighbouring world; None removes the canary, and the other sensors then move
            to lower rows. A row is storage, so this must not be seen in the releases.
        seed: of the reports of the other sensors.
    """
    reports = other_reports(design, len(canary.present), seed)
    inputs = make_inputs(design, len(canary.present), seed)
    return Worlds(*(_make_world(own, reports)._replace(inputs=inputs) for own in (canary, replacement)))


def other_reports(design: Design, num_steps: int, seed: int) -> Floats:
    """Random reports of the other sensors, uniform in the measurement range, shape (K, others, n_y)."""
    low, high = measurement_range(design)
    shape = num_steps, len(OTHERS), len(low)
    return np.random.default_rng(seed).uniform(low, high, size=shape)


def make_inputs(design: Design, num_steps: int, seed: int) -> Floats32 | None:
    """Random public inputs, values in the design's range and ages, shape (K, 2 n_p); None if it reads none.

    They are the same in both worlds, and half of the steps have nothing new.
    """
    constants = design.policy.constants
    if constants.public_low is None or constants.public_high is None:
        return None
    rng = np.random.default_rng(seed)
    low, high = np.asarray(constants.public_low), np.asarray(constants.public_high)
    given = rng.uniform(low, high, size=(num_steps, design.structure.num_public))
    given = np.where(rng.random(given.shape) < 0.5, given, np.nan)
    values, ages = hold(given[None].astype(np.float32))
    return np.concatenate([values[0], ages[0]], axis=-1, dtype=np.float32)


def make_attributes(design: Design) -> SensorAttributes | None:
    """Attributes of the canary and the other sensors, in the range of the design; None if it reads none."""
    constants = design.policy.constants
    if constants.attribute_low is None or constants.attribute_high is None:
        return None
    ids = np.array([CANARY, *OTHERS])
    shape = len(ids), design.structure.num_attributes
    share = np.random.default_rng(0).uniform(size=shape)
    low, high = np.asarray(constants.attribute_low), np.asarray(constants.attribute_high)
    return SensorAttributes(ids, (low + share * (high - low)).astype(np.float32))


def measurement_range(design: Design) -> tuple[Floats, Floats]:
    """Low and high end of the range of each channel, shapes (n_y,)."""
    constants = design.policy.constants
    return np.asarray(constants.measurement_low, np.float64), np.asarray(constants.measurement_high, np.float64)


def _make_world(canary: Canary | None, reports: Floats) -> World:
    num_steps, num_others, num_channels = reports.shape
    ids = np.full((num_steps, NUM_ROWS), NOBODY)
    measurements = np.zeros((num_steps, NUM_ROWS, num_channels))
    present = np.ones((num_steps, NUM_ROWS), bool)
    first = 0
    if canary is not None:
        ids[:, 0], measurements[:, 0], present[:, 0] = CANARY, canary.measurements, canary.present
        first = 1
    rows = slice(first, first + num_others)
    ids[:, rows], measurements[:, rows] = OTHERS, reports
    return World(ids, measurements, present)


class WorstFilter(RecurrentFilter):
    """The f that leaks most: its features are at one of two ends of their set, by the sign of the first channel."""

    features: FeatureSet = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)
    low: tuple[float, ...] = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)

    def __init__(self, features: FeatureSet, high: tuple[float, ...], low: tuple[float, ...]) -> None:
        self.features, self.high, self.low, self.hidden_size = features, high, low, 0

    def step(self, hidden: AnyArray, inputs: AnyArray, present: AnyArray, arrived: AnyArray) -> tuple[Array, Array]:
        ends = jnp.where(inputs[:, :1] > 0, jnp.array([self.high]), jnp.array([self.low]))
        return jnp.asarray(hidden), jnp.where(present[:, None], ends, 0.0)


def with_worst_filter(design: Design) -> Design:
    """The design with the worst possible f, as the guarantee must hold for any f."""
    structure = design.structure
    features = cast(FeatureSet, structure.features)
    first, *rest = np.eye(structure.dimension)
    ones = np.ones(structure.dimension)
    if features == "box" and structure.accounting == "total":
        ends = ones, 0 * ones
    elif features == "ball":
        ends = _INSIDE * first, -_INSIDE * first
    else:
        ends = _INSIDE * first, _INSIDE * rest[0] if rest else 0 * first
    high, low = (tuple(end.tolist()) for end in ends)
    networks = design.policy.networks
    worst = Networks(WorstFilter(features, high, low), networks.spending, networks.estimator)
    return replace(design, policy=Policy(worst, design.policy.constants, structure))


def worst_pair(design: Design, num_steps: int) -> tuple[Canary, Canary | None]:
    """The canary that spends its whole budget in a design with the worst filter, and its replacement."""
    low, high = measurement_range(design)
    always = np.ones(num_steps, bool)
    canary, opposite = (Canary(np.tile(end, (num_steps, 1)), always) for end in (high, low))
    assert design.guarantee is not None  # only designs with a guarantee are attacked
    if design.guarantee.adjacency == "remove-one":
        return canary, None
    structure = design.structure
    if structure.accounting == "individual" and structure.features != "ball" and structure.dimension == 1:
        # Features on a half-line differ most if each sensor spends its budget while the other is absent.
        early = np.arange(num_steps) < num_steps // 2
        return canary._replace(present=early), canary._replace(present=~early)
    return canary, opposite


def default_num_steps(design: Design) -> int:
    """The number of releases to attack: all of a finite design; for a stationary one enough to spend an account."""
    stay = design.structure.expected_stay
    return design.structure.horizon or max(2, int(np.ceil(2 * stay)))
