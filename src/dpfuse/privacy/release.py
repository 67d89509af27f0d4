"""The exact release: contributions on the integer grid, an exact sum, and OpenDP's discrete Gaussian noise.

Floating point breaks a Gaussian mechanism in two ways. A rounded sum can move by more than its sensitivity, and
floating-point noise has gaps: one float32 draw of jax.random.normal tells two inputs apart most of the time. Therefore:
- the row of each sensor is rounded toward zero to the grid and checked in integers, and a row that fails becomes zeros;
- the sum is a sum of integers;
- the noise is the discrete Gaussian with a standard deviation of `GRID` steps, drawn by exact arithmetic from
  cryptographic randomness. Its Rényi loss is at most that of the continuous Gaussian (Canonne, Kamath and Steinke 2020,
  Prop. 5).

One step has two parts, so that a ledger can record the debits before the release is drawn:

    mechanism = Mechanism(guarantee, features="ball", dimension=2)
    accounts = mechanism.open_accounts()
    charged = mechanism.charge(accounts, weight, ids, values)     # round, check, debit and sum: private
    release = mechanism.draw(charged)                             # add the noise: public
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse._arrays import Floats, Integers
from dpfuse.guarantee import Guarantee
from dpfuse.privacy.budget import (
    GRID,
    IndividualFilter,
    TotalFilter,
    all_entries,
    as_ids,
    check_exact,
    clear_rows,
    counts_once,
    squared_steps,
)
from dpfuse.privacy.loss import FEATURE_SETS, FeatureSet, charge_factor
from dpfuse.privacy.noise import Noise, add_noise

Accounts = tuple[TotalFilter, ...] | IndividualFilter
"""The accounts that steps are charged to: one for each stream, or one for each sensor over all streams."""

LARGEST_ENTRY = 2**31
"""In grid steps. No budget that a `Guarantee` allows pays for a larger entry."""


@dataclass
class Charged:
    """A step that is paid for and has no noise yet. Private: it stays in the centre, and is drawn once.

    Attributes:
        fusion_weight: G_k, the weight in grid steps; public.
        budget_left: of the stream, in squared grid steps; public. None in individual accounting.
        debits: of the sensor of each row, shape (m,), in individual accounting; of the stream, shape (1,), in total
            accounting.
        exact_sum: the sum of the rows in grid steps, shape (d,); None after the draw.
    """

    fusion_weight: int
    budget_left: int | None
    debits: Integers = field(repr=False)
    exact_sum: Integers | None = field(repr=False)

    def take(self) -> Integers:
        """The sum, once: a second draw of the same sum would cost as much again."""
        taken, self.exact_sum = self.undrawn(), None
        return taken

    def undrawn(self) -> Integers:
        """The sum, if it was not taken yet. Private."""
        if self.exact_sum is None:
            raise RuntimeError("this step was drawn already; publish that release, or charge a new step")
        return self.exact_sum


class Release(NamedTuple):
    """What may leave the centre.

    Attributes:
        value: Z_k in grid steps, shape (d,).
        fusion_weight: G_k in grid steps.
        budget_left: in squared grid steps; None in individual accounting, where it is private.
    """

    value: Integers
    fusion_weight: int
    budget_left: int | None


@dataclass(frozen=True)
class Mechanism:
    """The release mechanism of a guarantee: charges a step to accounts, and draws its release.

    **Guarantees**
        - Unit: the whole trajectory of one sensor id, over all steps charged to one set of accounts. Adjacency, order,
          budget and accounting are those of `guarantee`.
        - The releases are (order, budget)-RDP, and rho-zCDP with rho = budget / order.
        - Assumes that the weight and the decision to release depend on past releases and public settings alone, and
          that each row of values depends on the data of its own sensor, past releases and, in individual accounting,
          its own account alone.
        - A row with any content (NaN, inf, 1e308, out of its set) changes no other row.
        - A row that is not in G_k times the set, or that its account cannot pay for, becomes zeros. So no sensor pays
          more for a step than `largest_cost` of its public weight, in either accounting.
        - An id counts once a step, by the first of its rows. A row with a negative id does not count.
        - Total accounting: a weight that costs more than the budget left is lowered to the largest affordable one. The
          last releases have weight 0 and are noise alone.
        - Without sensors, or without budget left, a release has the same shape and noise. A sum out of range saturates.
        - A charged step is drawn once.

    Attributes:
        features: the set that contains the features of each sensor.
        dimension: d, the coordinates of a release.
    """

    guarantee: Guarantee
    features: FeatureSet
    dimension: int

    def __post_init__(self) -> None:
        _check.is_one_of("features", self.features, FEATURE_SETS)
        _check.is_count("dimension", self.dimension)
        check_exact(self.budget, self.dimension)

    @functools.cached_property
    def factor(self) -> int:
        """The charge factor c of `privacy.loss`."""
        return charge_factor(self.features, self.dimension, self.guarantee.adjacency, self.guarantee.accounting)

    @functools.cached_property
    def budget(self) -> int:
        """The budget of the stream (total) or of each sensor (individual), in squared grid steps."""
        return squared_steps(self.guarantee)

    def open_accounts(self) -> TotalFilter | IndividualFilter:
        """New accounts for the guarantee's accounting."""
        if self.guarantee.accounting == "total":
            return TotalFilter(self.budget)
        return IndividualFilter(self.budget, self.factor)

    def charge(
        self, accounts: TotalFilter | IndividualFilter, weight: float, ids: ArrayLike, values: ArrayLike
    ) -> Charged:
        """One step, rounded, checked, debited and summed.

        Args:
            accounts: debited by this call; from `open_accounts`, or filled from a ledger.
            weight: g_k >= 0 in noise standard deviations.
            ids: of the sensors, shape (m,), negative for an empty row.
            values: shape (m, d). Total accounting: the features f_i; the row is trunc(G_k f_i). Individual accounting:
                the contributions c_i = g_k f_i in noise standard deviations, already scaled to what the sensor has
                left; the row is trunc(GRID c_i). Rounding in float32 may put a value just outside of its set or
                account, and it then becomes zeros: scale values by 1 - 2^-20 where that matters.
        """
        sensors = as_ids(ids)
        many = (accounts,) if isinstance(accounts, TotalFilter) else accounts
        return self.charge_many(many, [weight], np.zeros(len(sensors), np.int64), sensors, values)[0]

    def charge_many(
        self, accounts: Accounts, weights: Sequence[float], stream: Integers, ids: ArrayLike, values: ArrayLike
    ) -> list[Charged]:
        """One step of each stream, as `charge`.

        Args:
            accounts: one for each stream (total), or those of the sensors of all streams (individual).
            weights: one for each stream.
            stream: the number of the stream of each row, shape (m,), ascending.
        """
        sensors = as_ids(ids)
        array = self._as_values(values, len(sensors))
        if isinstance(accounts, IndividualFilter):
            # Rounded up: contributions g_k f_i, which are rounded toward zero, then stay within G_k times the set.
            wholes = [weight_to_grid(weight, math.ceil) for weight in weights]
            return self._charge_sensors(accounts, wholes, stream, sensors, array)
        wholes = [weight_to_grid(weight) for weight in weights]
        return self._charge_streams(accounts, wholes, stream, sensors, array)

    def largest_cost(self, fusion_weight: int) -> int:
        """The most that a step of this weight, in grid steps, can cost one sensor (individual) or a stream (total)."""
        longest = self.dimension if self.features == "box" and self.guarantee.accounting == "individual" else 1
        return self.factor * longest * fusion_weight**2

    def _charge_sensors(
        self, accounts: IndividualFilter, wholes: list[int], stream: Integers, sensors: Integers, values: Floats
    ) -> list[Charged]:
        self._check_accounts(accounts)
        # No account pays for a row longer than the largest affordable weight; with that bound squares are exact.
        bounds = np.minimum(np.array(wholes, np.int64), math.isqrt(self.budget // self.factor))[stream]
        admitted = accounts.spend(sensors, within_set(to_grid(values), self.features, bounds), stream)
        sums = sum_by_stream(admitted.contributions, stream, len(wholes))
        debits = split_by_stream(admitted.costs, stream, len(wholes))
        return [Charged(whole, None, *own) for whole, *own in zip(wholes, debits, sums, strict=True)]

    def _charge_streams(
        self, accounts: Sequence[TotalFilter], wholes: list[int], stream: Integers, sensors: Integers, values: Floats
    ) -> list[Charged]:
        self._check_accounts(*accounts)
        wholes = [min(whole, own.largest_weight(self.factor)) for whole, own in zip(wholes, accounts, strict=True)]
        row_weight = np.array(wholes, np.int64)[stream]
        rows = within_set(to_grid(values, row_weight), self.features, row_weight)
        sums = sum_by_stream(clear_rows(rows, counts_once(sensors, stream)), stream, len(wholes))
        costs = [self.factor * whole**2 for whole in wholes]
        for own, cost in zip(accounts, costs, strict=True):
            own.spend(cost)
        debits = np.array(costs, np.int64)[:, None]
        left = [own.left for own in accounts]
        return [Charged(*own) for own in zip(wholes, left, debits, sums, strict=True)]

    def draw(self, charged: Charged) -> Release:
        """The release of a charged step; a second draw of the same step raises RuntimeError."""
        return self.draw_many([charged])[0]

    def draw_many(self, many: Sequence[Charged], noise: Noise | None = None) -> list[Release]:
        """The releases of several charged steps, each with noise of its own.

        Args:
            noise: for all steps, one after the other; None draws it now.
        """
        # Check all before any is taken: a step that cannot be drawn must not use up the others.
        if len(set(map(id, many))) < len(many):
            raise ValueError("many must hold each step once, got one of them twice")
        if wrong := {charged.undrawn().shape for charged in many} - {(self.dimension,)}:
            raise ValueError(f"the sum must have shape ({self.dimension},), got {max(wrong)}")
        if not many:
            return []
        if noise is not None:
            noise.check(len(many) * self.dimension)
        sums = [charged.take() for charged in many]
        values = add_noise(np.concatenate(sums), noise).reshape(len(sums), self.dimension)
        return [
            Release(value, charged.fusion_weight, charged.budget_left)
            for value, charged in zip(values, many, strict=True)
        ]

    def _check_accounts(self, *accounts: TotalFilter | IndividualFilter) -> None:
        kind = TotalFilter if self.guarantee.accounting == "total" else IndividualFilter
        budget, factor = self.budget, self.factor
        for own in accounts:
            if not isinstance(own, kind):
                raise TypeError(f"accounts must be for {self.guarantee.accounting} accounting, got {own!r}")
            if own.budget != budget or (isinstance(own, IndividualFilter) and own.factor != factor):
                raise ValueError(
                    f"accounts must have the budget {budget} and factor {factor} of this mechanism, got {own!r}"
                )

    def _as_values(self, values: ArrayLike, num_rows: int) -> Floats:
        array = _as_floats(values)
        if not num_rows and not array.size:
            return np.zeros((0, self.dimension))
        if array.shape != (num_rows, self.dimension):
            raise ValueError(f"values must have shape {(num_rows, self.dimension)}, got {array.shape}")
        return array


def weight_to_grid(weight: float, to_whole: Callable[[float], int] = math.floor) -> int:
    """The weight in grid steps, rounded toward zero or by `to_whole`; at most `LARGEST_ENTRY`."""
    number = float(weight)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"weight must be finite and >= 0, got {number!r}")
    return to_whole(min(number * GRID, LARGEST_ENTRY))


def to_grid(values: ArrayLike, scale: int | Integers = GRID) -> Integers:
    """trunc(scale * values) as integers, shape (..., d); a row that is not finite or too large becomes zeros.

    A row, along the last axis, depends on its own values and scale alone.
    """
    array = _as_floats(values)
    if array.ndim == 0:
        raise ValueError("values must have shape (..., d), got ()")
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = array * np.asarray(scale, np.float64)[..., None]  # exact: a scale is at most `LARGEST_ENTRY`
    is_usable = all_entries(np.abs(scaled) < LARGEST_ENTRY + 1)  # False for NaN
    if not is_usable.all():
        scaled[~is_usable] = 0.0
    return scaled.astype(np.int64)  # rounds toward zero


def from_grid(value: Integers) -> Floats:
    """Grid steps as noise standard deviations, exactly below 2^53 steps."""
    return np.asarray(value, np.int64) / GRID


def within_set(rows: Integers, features: FeatureSet, weight: int | Integers) -> Integers:
    """The rows that are in `weight` times the feature set, and zeros for the others, shape (..., d).

    Exact in int64 if d weight^2 < 2^63, as entries are bounded by the weight before they are squared.
    """
    bound = np.asarray(weight, np.int64)[..., None]
    bounded = clear_negative_rows(clear_rows(rows, all_entries((rows >= -bound) & (rows <= bound))), features)
    if features == "box":
        return bounded
    return clear_rows(bounded, np.vecdot(bounded, bounded) <= weight * weight)


def clear_negative_rows(rows: Integers, features: FeatureSet) -> Integers:
    """The rows, with zeros for those that have a negative entry; the ball allows negative entries."""
    return rows if features == "ball" else clear_rows(rows, all_entries(rows >= 0))


def sum_by_stream(rows: Integers, stream: Integers, num_streams: int) -> Integers:
    """The sum of each stream over its sensors, shape (streams, d); exact for 2^32 rows with entries of 31 bits."""
    if num_streams == 1:
        return np.asarray(rows.sum(0, dtype=np.int64, keepdims=True))
    sums = np.zeros((rows.shape[1], num_streams), np.int64)
    for coordinate, entries in zip(sums, rows.T, strict=True):
        np.add.at(coordinate, stream, entries)
    return np.ascontiguousarray(sums.T)


def split_by_stream(rows: Integers, stream: Integers, num_streams: int) -> list[Integers]:
    """The rows of each stream, from rows in the order of the streams."""
    ends = np.searchsorted(stream, np.arange(num_streams + 1)).tolist()
    return [rows[first:end] for first, end in itertools.pairwise(ends)]


def _as_floats(values: ArrayLike) -> Floats:
    """The values as float64. No message shows them."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError("values must have shape (..., d), got rows of different lengths") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"values must be an array of numbers, got {array.dtype.type.__name__}")
    return array.astype(np.float64, copy=False)
