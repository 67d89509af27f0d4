"""The one step in exact arithmetic: what a live centre runs, for one stream.

Floating point proposes, integers dispose: the jitted parts of `dpfuse.policy.step` propose a weight and each sensor's
features, `dpfuse.privacy.Mechanism` rounds, checks, debits and adds them up in integers and draws the noise, and the
estimator reads the integers that were released.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpfuse.policy.design import Design
from dpfuse.policy.step import (
    HEADROOM,
    Estimate,
    Policy,
    Private,
    Public,
    Reports,
    choose_weight,
    contribute,
    estimate,
    init_private,
    init_public,
)
from dpfuse.privacy.budget import GRID, IndividualFilter, TotalFilter, as_ids
from dpfuse.privacy.release import Charged, Mechanism, Release
from dpfuse.types import NOBODY

_LARGEST = float(np.finfo(np.float32).max)


def compute_inline() -> None:
    """Let JAX compute on the calling thread: a live step then waits for no other thread and takes half as long.

    For a process that runs live steps; call it before anything else uses JAX. Training is better off without it.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]  # JAX's own


class Carry(NamedTuple):
    """What a stream remembers from step to step; only `public` may ever be shown.

    Attributes:
        num_released: steps that were charged so far.
        ids: the sensor in each row, shape (rows,).
        hidden: the recurrent filter's memory, shape (rows, h).
        public: what anybody could compute from the releases.
        accounts: budgets in integers, debited in place.
    """

    num_released: int
    ids: NDArray[np.int64]
    hidden: jax.Array
    public: Public
    accounts: TotalFilter | IndividualFilter


class ExactStep:
    """Algorithm 1 for one stream, release by release.

    **Guarantees**
        - The releases satisfy the design's guarantee, see `dpfuse.privacy.Mechanism`, for one carry: a carry is used
          once, never copied or wound back.
        - What a sensor adds depends on its own reports, past releases and, in individual accounting, its own account,
          bit for bit: the jitted parts have one shape, and a row never sees another.
        - Whatever is reported, each sensor stays inside its bound; a report that is not finite counts as absent.

    A live centre calls `init`, `contribute`, `release` and `estimate`. The parts of these are there for audits, which
    run many streams side by side: `prepare`, `accounts_left` and `private_part`, all private, and `release_many` and
    `public_part`.

    Args:
        num_rows: how many sensors one step can hold.
    """

    def __init__(self, design: Design, num_rows: int) -> None:
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be released")
        structure = design.structure
        assert structure.features != "unbounded"  # only the floor has unbounded features
        self.mechanism = Mechanism(design.guarantee, structure.features, structure.dimension)
        self._policy, self._num_rows, self._horizon = design.policy, num_rows, structure.horizon
        # The weights are compiled in: handing them over at every step would take longer than the step.
        self.private_part = jax.jit(partial(_private_part, design.policy))
        self.public_part = jax.jit(partial(_public_part, design.policy))

    def init(self, accounts: TotalFilter | IndividualFilter | None = None) -> Carry:
        """A stream from which nothing was released; accounts of its own, or given: shared, or from a ledger."""
        hidden = init_private(self._policy, self._num_rows).hidden
        public = init_public(self._policy, 1)
        accounts = self.mechanism.open_accounts() if accounts is None else accounts
        return Carry(0, np.full(self._num_rows, NOBODY), hidden, public, accounts)

    def contribute(
        self, carry: Carry, ids: ArrayLike, measurements: ArrayLike, present: ArrayLike = True
    ) -> tuple[Carry, Charged]:
        """The private part: the step is paid for, and no noise is drawn yet.

        Args:
            ids: of the sensors, shape (rows,), `NOBODY` for none, in any order. One that is not among them loses its
                memory, not its account; one that is silent for a while is listed, and not present.
            measurements: shape (rows, n_y). A row that is not finite, or not numbers, is no report; a finite value is
                clipped to the design's range.
            present: which rows have a report, shape (rows,); a sensor without one keeps memory and account.
        """
        sensors, block = self.prepare(carry, ids, measurements, present)
        fusion_hidden, hidden, weight, proposed = self.private_part(carry.public, carry.hidden, block)
        public = carry.public._replace(fusion_hidden=fusion_hidden)
        charged = self.mechanism.charge(carry.accounts, float(np.asarray(weight)[0]), sensors, np.asarray(proposed))
        # A copy: a caller who fills the same array at every step would else change who was where.
        return Carry(carry.num_released + 1, sensors.copy(), hidden, public, carry.accounts), charged

    def prepare(
        self, carry: Carry, ids: ArrayLike, measurements: ArrayLike, present: ArrayLike = True
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Who reports, and what the compiled private part reads: checked, and nothing charged yet.

        Private: never publish, it holds reports and what sensors have left.
        """
        if self._horizon is not None and carry.num_released >= self._horizon:
            raise ValueError(f"the design ends after {self._horizon} releases; it never starts again on these sensors")
        sensors = as_ids(ids)
        if sensors.shape != (self._num_rows,):
            raise ValueError(f"ids must have shape ({self._num_rows},), got {sensors.shape}")
        values = as_measurements(measurements, (self._num_rows, self._policy.structure.num_channels))
        # One block for all that goes in: each array that is handed to JAX takes as long as a matrix product.
        block = np.empty((self._num_rows, values.shape[1] + 3), np.float32)
        block[:, :-3] = values
        block[:, -3] = np.asarray(present, bool) & (sensors != NOBODY)
        block[:, -2] = _rows_of(sensors, carry.ids)
        block[:, -1] = self.accounts_left(carry.accounts, sensors)
        return sensors, block

    def accounts_left(
        self, accounts: TotalFilter | IndividualFilter, sensors: NDArray[np.int64]
    ) -> float | NDArray[np.float64]:
        """The squared radius that each sensor may still use, with the headroom that training leaves too.

        Private: never publish, a sensor's balance tells what it reported.
        """
        if isinstance(accounts, TotalFilter):
            return 0.0
        left = accounts.left(sensors).astype(np.float64) - HEADROOM * self.mechanism.budget
        return np.maximum(left, 0.0) / GRID**2

    def release(self, charged: Charged) -> Release:
        """Z_k: what may leave the building."""
        return self.release_many([charged])[0]

    def release_many(self, many: Sequence[Charged]) -> list[Release]:
        """The same for a step each of several streams, every one with noise of its own."""
        return self.mechanism.draw_many(many)

    def estimate(self, carry: Carry, released: Release) -> tuple[Carry, Estimate]:
        """The public part: the estimate from what was released, bit for bit."""
        block = np.array([[released.weight, *released.value.tolist()]]) / GRID
        public, result = self.public_part(carry.public, block.astype(np.float32))
        return carry._replace(public=public), result


def as_measurements(reported: ArrayLike, shape: tuple[int, int]) -> NDArray[np.float32]:
    """The reports as float32: a row that is not numbers, or of another length, becomes NaN, and no other row does.

    Finite values too large for float32 stay finite, to be clipped to the design's range. No message shows a value.
    """
    if isinstance(reported, np.ndarray) and reported.dtype == np.float32 and reported.shape == shape:
        return reported
    try:
        values = np.asarray(reported, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = _row_by_row(reported, shape)
    if values.shape != shape:
        values = _row_by_row(reported, shape)
    return np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), np.nan).astype(np.float32)


def _row_by_row(reported: Any, shape: tuple[int, int]) -> NDArray[np.float64]:
    if not hasattr(reported, "__len__") or len(reported) != shape[0]:
        raise ValueError(f"measurements must have {shape[0]} rows, one for each id; use NaN for those without a report")
    values = np.full(shape, np.nan)
    for row, report in enumerate(reported):
        try:
            number = np.asarray(report, np.float64)
        except (TypeError, ValueError, OverflowError):
            continue
        if number.shape == shape[1:]:
            values[row] = number
    return values


def _rows_of(sensors: NDArray[np.int64], before: NDArray[np.int64]) -> NDArray[np.int32]:
    """The row in which each sensor was one step before, shape (rows,); -1 for one that was not there."""
    if (sensors == before).all():
        return np.arange(len(sensors), dtype=np.int32)
    # The first row of an id is the one that counts.
    row_of = {sensor: row for row, sensor in reversed(list(enumerate(before.tolist()))) if sensor != NOBODY}
    return np.array([row_of.get(sensor, -1) for sensor in sensors.tolist()], np.int32)


def _private_part(
    policy: Policy, public: Public, hidden: jax.Array, block: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Memory moves with its sensor; what is charged for is the features (total) or the contributions (individual).

    The block's columns: measurements, whether there is a report, the row one step before, and what is left.
    """
    present, row_before, account = block[:, -3] > 0, block[:, -2].astype(jnp.int32), block[:, -1]
    reports = Reports(block[:, :-3], present, row_before < 0, jnp.zeros(present.shape, jnp.int32))
    public, weight = choose_weight(policy, public)
    own_hidden = hidden[jnp.maximum(row_before, 0)]
    private, contributions, features = contribute(policy, Private(own_hidden, account), reports, weight)
    proposed = features if policy.structure.accounting == "total" else contributions
    return public.fusion_hidden, private.hidden, weight, proposed


def _public_part(policy: Policy, public: Public, block: jax.Array) -> tuple[Public, Estimate]:
    """The estimate from weight and release, side by side in one block."""
    return estimate(policy, public, block[:, 0], block[:, 1:])
