"""The one step in exact arithmetic: what a live centre runs, for one stream.

Floating point proposes, integers dispose: the jitted parts of `dpfuse.policy.step` propose a weight and each sensor's
features, `dpfuse.privacy.Mechanism` rounds, checks, debits and adds them up in integers and draws the noise, and the
estimator reads the integers that were released.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

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
from dpfuse.privacy.release import Charged, Mechanism, Release, from_grid
from dpfuse.types import NOBODY


def compute_inline() -> None:
    """Let JAX compute on the calling thread: a live step then waits for no other thread and takes half as long.

    For a process that runs live steps; call it before anything else uses JAX. Training is better off without it.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]  # JAX's own


class Carry(NamedTuple):
    """What a stream remembers from step to step; only `public` may ever be shown.

    Attributes:
        ids: the sensor in each row, shape (rows,).
        hidden: the recurrent filter's memory, shape (rows, h).
        public: what anybody could compute from the releases.
        accounts: budgets in integers, debited in place.
    """

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
        self._private_part = jax.jit(partial(_private_part, design.policy))
        self._public_part = jax.jit(partial(estimate, design.policy))

    def init(self) -> Carry:
        """A stream from which nothing was released."""
        hidden = init_private(self._policy, self._num_rows).hidden
        public = init_public(self._policy, 1)
        return Carry(np.full(self._num_rows, NOBODY), hidden, public, self.mechanism.open_accounts())

    def contribute(
        self, carry: Carry, ids: ArrayLike, measurements: ArrayLike, present: ArrayLike = True
    ) -> tuple[Carry, Charged]:
        """The private part: the step is paid for, and no noise is drawn yet.

        Args:
            ids: of the sensors, shape (rows,), `NOBODY` for none; a sensor stays in its row.
            measurements: shape (rows, n_y); non-finite means no report.
            present: which rows have a report, shape (rows,); a sensor without one keeps memory and account.
        """
        if self._horizon is not None and int(carry.public.step_index) >= self._horizon:
            raise ValueError(f"the design ends after {self._horizon} releases; it never starts again on these sensors")
        sensors, values = as_ids(ids), _as_floats(measurements)
        expected = (self._num_rows,), (self._num_rows, self._policy.structure.num_channels)
        if (sensors.shape, values.shape) != expected:
            raise ValueError(f"ids and measurements must have shapes {expected}, got {sensors.shape}, {values.shape}")
        account = np.zeros(self._num_rows, np.float32)
        if isinstance(carry.accounts, IndividualFilter):
            unused = HEADROOM * self.mechanism.budget
            account[:] = np.maximum(carry.accounts.left(sensors) - unused, 0.0) / GRID**2
        has_report = np.broadcast_to(np.asarray(present, bool), sensors.shape) & (sensors != NOBODY)
        public, hidden, weight, features, contributions = self._private_part(
            carry.public, carry.hidden, account, values, has_report, sensors != carry.ids
        )
        is_total = isinstance(carry.accounts, TotalFilter)
        proposed = np.asarray(features if is_total else contributions)
        charged = self.mechanism.charge(carry.accounts, float(np.asarray(weight)[0]), sensors, proposed)
        return Carry(sensors, hidden, public, carry.accounts), charged

    def release(self, charged: Charged) -> Release:
        """Z_k: what may leave the building."""
        return self.mechanism.draw(charged)

    def estimate(self, carry: Carry, released: Release) -> tuple[Carry, Estimate]:
        """The public part: the estimate from what was released, bit for bit."""
        weight = np.array([released.weight / GRID], np.float32)
        value = from_grid(released.value).astype(np.float32)[None]
        public, result = self._public_part(carry.public, weight, value)
        return carry._replace(public=public), result


def _as_floats(measurements: ArrayLike) -> NDArray[np.float32]:
    """The measurements as float32, 1e308 as inf; no message shows them."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(measurements, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise TypeError("measurements must be an array of numbers, shape (rows, n_y)") from None


def _private_part(
    policy: Policy,
    public: Public,
    hidden: jax.Array,
    account: jax.Array,
    measurements: jax.Array,
    present: jax.Array,
    arrived: jax.Array,
) -> tuple[Public, jax.Array, jax.Array, jax.Array, jax.Array]:
    reports = Reports(measurements, present, arrived, jnp.zeros(present.shape, jnp.int32))
    public, weight = choose_weight(policy, public)
    private, contributions, features = contribute(policy, Private(hidden, account), reports, weight)
    return public, private.hidden, weight, features, contributions
