"""The one step in exact arithmetic: what a live centre runs, for one stream.

Floating point proposes, integers dispose: the jitted parts of `dpfuse.policy.step` propose a weight and each sensor's
features, `dpfuse.privacy.Mechanism` rounds, checks, debits and adds them up in integers and draws the noise, and the
estimator reads the integers that were released.
"""

from __future__ import annotations

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
from dpfuse.privacy.budget import GRID, IndividualFilter, TotalFilter
from dpfuse.privacy.release import Charged, Mechanism, Release, from_grid
from dpfuse.types import NOBODY


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
        self._stream = jnp.zeros(num_rows, jnp.int32)

    def init(self) -> Carry:
        """A stream from which nothing was released."""
        hidden = init_private(self._policy, self._num_rows).hidden
        public = init_public(self._policy, 1)
        return Carry(np.full(self._num_rows, NOBODY), hidden, public, self.mechanism.open_accounts())

    def contribute(self, carry: Carry, ids: ArrayLike, measurements: ArrayLike) -> tuple[Carry, Charged]:
        """The private part: the step is paid for, and no noise is drawn yet.

        Args:
            ids: of the sensors, shape (rows,), `NOBODY` for none; a sensor stays in its row.
            measurements: shape (rows, n_y); non-finite means no report.
        """
        if self._horizon is not None and int(carry.public.step_index) >= self._horizon:
            raise ValueError(f"the design ends after {self._horizon} releases; it never starts again on these sensors")
        sensors = np.asarray(ids, np.int64)
        is_total = isinstance(carry.accounts, TotalFilter)
        left = np.zeros(len(sensors)) if isinstance(carry.accounts, TotalFilter) else carry.accounts.left(sensors)
        account = np.asarray(left, np.float64) / GRID**2 * (1 - HEADROOM)
        reports = Reports(np.asarray(measurements, np.float32), sensors != NOBODY, sensors != carry.ids, self._stream)
        public, hidden, weight, features, contributions = _private_part(
            self._policy, carry.public, carry.hidden, account.astype(np.float32), reports
        )
        values = np.asarray(features if is_total else contributions)
        charged = self.mechanism.charge(carry.accounts, float(weight[0]), sensors, values)
        return Carry(sensors, hidden, public, carry.accounts), charged

    def release(self, charged: Charged) -> Release:
        """Z_k: what may leave the building."""
        return self.mechanism.draw(charged)

    def estimate(self, carry: Carry, released: Release) -> tuple[Carry, Estimate]:
        """The public part: the estimate from what was released, bit for bit."""
        weight = np.array([released.weight / GRID], np.float32)
        public, result = _public_part(
            self._policy, carry.public, weight, from_grid(released.value).astype(np.float32)[None]
        )
        return carry._replace(public=public), result


@jax.jit
def _private_part(
    policy: Policy, public: Public, hidden: jax.Array, account: jax.Array, reports: Reports
) -> tuple[Public, jax.Array, jax.Array, jax.Array, jax.Array]:
    public, weight = choose_weight(policy, public)
    private, contributions, features = contribute(policy, Private(hidden, account), reports, weight)
    return public, private.hidden, weight, features, contributions


_public_part = jax.jit(estimate)
