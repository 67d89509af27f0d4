"""The one step in exact arithmetic: what a live centre runs, for all its streams at once.

Floating point proposes, integers dispose: the jitted parts of `dpfuse.policy.step` propose a query and each sensor's
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
from numpy.typing import ArrayLike

from dpfuse._arrays import Floats, Floats32, Integers
from dpfuse._keyed_arrays import ABSENT
from dpfuse.policy.design import Design
from dpfuse.policy.memory import Memory
from dpfuse.policy.policy import Policy
from dpfuse.policy.step import (
    HEADROOM,
    Estimate,
    PrivateCarry,
    PublicCarry,
    Query,
    Reports,
    contribute,
    estimate,
    init_public,
    make_query,
)
from dpfuse.privacy.budget import GRID, IndividualFilter, TotalFilter, as_ids
from dpfuse.privacy.release import Accounts, Charged, Mechanism, Release
from dpfuse.types import NOBODY

_LARGEST = float(np.finfo(np.float32).max)


def compute_inline() -> None:
    """Let JAX compute on the calling thread: a live step then waits for no other thread and takes half as long.

    For a process that runs live steps; call it before anything else uses JAX. Training is better off without it.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]  # JAX's own


class Carry(NamedTuple):
    """What streams remember from step to step; only `public` may ever be shown.

    Attributes:
        num_steps: steps that were charged or skipped so far.
        memory: what the recurrent filter remembers of each sensor, written in place.
        public: what anybody could compute from the releases.
        query: what the sensors are asked in the step to come, as proposed from `public`; public too.
        accounts: budgets in integers, debited in place: one for each stream, or one set for the sensors of all.
    """

    num_steps: int
    memory: Memory
    public: PublicCarry
    query: Query
    accounts: Accounts

    def grow(self) -> None:
        """Make room for more sensors now, so that a later step need not; no result depends on it."""
        self.memory.grow()
        if isinstance(self.accounts, IndividualFilter):
            self.accounts.grow()


class Proposal(NamedTuple):
    """What reports would add to a step, row by row, in the order of the streams. Nothing is charged yet; private.

    Attributes:
        stream: the number of each row's stream.
        sensors: ids.
        places: where each is remembered.
        hidden: what is to be remembered of each.
        values: what is charged for: features (total) or contributions (individual), shape (rows, d).
    """

    stream: Integers
    sensors: Integers
    places: Integers
    hidden: Floats32
    values: Floats32


class ExactStep:
    """Algorithm 1 for streams that step together, release by release.

    **Guarantees**
        - The releases satisfy the design's guarantee, see `dpfuse.privacy.Mechanism`, for one carry: a carry is used
          once, never copied or wound back.
        - What a sensor adds to a stream depends on its own reports, past releases and, in individual accounting, its
          own account, bit for bit: the jitted parts have one shape, and a row never sees another.
        - Whatever is reported, each sensor stays inside its bound; a report that is not finite counts as absent.

    One stream is served by `init`, `contribute`, `release` and `estimate`; a live centre with many calls the same code
    as `propose`, `charge` and `estimate_many`. The parts of these are there for audits, which run many carries side by
    side: `prepare`, `accounts_left` and `private_part`, all private, and `release_many` and `public_part`.

    Args:
        num_rows: rows of the one compiled shape. More are taken in several turns, fewer are filled up with nobody.
        num_streams: how many streams step together.
        forget_after: steps for which a sensor is remembered that is not listed.
    """

    def __init__(self, design: Design, num_rows: int, num_streams: int = 1, forget_after: int = 0) -> None:
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be released")
        structure = design.structure
        assert structure.features != "unbounded"  # only the floor has unbounded features
        self.mechanism = Mechanism(design.guarantee, structure.features, structure.dimension)
        self._policy, self._horizon = design.policy, structure.horizon
        self._num_rows, self._num_streams, self._forget_after = num_rows, num_streams, forget_after
        # The weights are compiled in: handing them over at every step would take longer than the step.
        self._first = jax.jit(partial(_first_query, design.policy, num_streams))()
        self.private_part = jax.jit(partial(_private_part, design.policy))
        self.public_part = jax.jit(partial(_public_part, design.policy))

    def init(self, accounts: TotalFilter | Accounts | None = None) -> Carry:
        """Streams from which nothing was released; accounts of their own, or given: shared, or from a ledger."""
        if accounts is None:
            accounts = self._open_accounts()
        accounts = (accounts,) if isinstance(accounts, TotalFilter) else accounts
        public, query = self._first
        return Carry(0, Memory(self.hidden_size), public, query, accounts)

    @property
    def hidden_size(self) -> int:
        """How many numbers the recurrent filter remembers of each sensor."""
        return self._policy.networks.recurrent_filter.hidden_size

    def contribute(
        self, carry: Carry, ids: ArrayLike, measurements: ArrayLike, present: ArrayLike = True
    ) -> tuple[Carry, Charged]:
        """The private part of one stream: the step is paid for, and no noise is drawn yet.

        Args:
            ids: of the sensors, shape (rows,), `NOBODY` for none, in any order. One that is not among them loses its
                memory (after `forget_after` steps), not its account; one that is silent for a while is listed, and not
                present.
            measurements: shape (rows, n_y). A row that is not finite, or not numbers, is no report; a finite value is
                clipped to the design's range.
            present: which rows have a report, shape (rows,); a sensor without one keeps memory and account.
        """
        sensors = as_ids(ids)
        proposed = self.propose(carry, np.zeros_like(sensors), sensors, measurements, present)
        carry, [charged] = self.charge(carry, proposed)
        return carry, charged

    def propose(
        self,
        carry: Carry,
        stream: Integers,
        ids: ArrayLike,
        measurements: ArrayLike,
        present: ArrayLike = True,
    ) -> Proposal:
        """What these reports would add to the step of every stream, as `contribute`; nothing is charged or remembered.

        A row depends on itself alone, so the reports of a step may be handed over in several calls; `join_proposals`
        joins the results.

        Args:
            stream: the number of the stream that each row belongs to, shape (rows,), in ascending order.
        """
        sensors, places, block = self.prepare(carry, ids, measurements, present, stream)
        hidden, values = self._in_turns(carry.query, carry.memory.read(places), block)
        return Proposal(stream, sensors, places, hidden, values)

    def charge(self, carry: Carry, proposed: Proposal) -> tuple[Carry, list[Charged]]:
        """Pay for the step of every stream, and remember."""
        self._check_not_over(carry)
        stream, sensors, places, hidden, values = proposed
        weights = np.asarray(carry.query.fusion_weight).tolist()
        charged = self.mechanism.charge_many(carry.accounts, weights, stream, sensors, values)
        self.remember(carry, stream, sensors, places, hidden)
        return carry._replace(num_steps=carry.num_steps + 1), charged

    def remember(
        self,
        carry: Carry,
        stream: Integers,
        sensors: Integers,
        places: Integers,
        hidden: Floats32,
    ) -> None:
        """Write into the carry's memory what is to be known of these sensors at the next step, and forget others."""
        step = carry.num_steps + 1
        carry.memory.write(step, stream, sensors, places, hidden)
        carry.memory.forget(step - self._forget_after)

    def prepare(
        self,
        carry: Carry,
        ids: ArrayLike,
        measurements: ArrayLike,
        present: ArrayLike = True,
        stream: Integers | None = None,
    ) -> tuple[Integers, Integers, Floats32]:
        """Who reports, where each is remembered, and what the compiled private part reads: checked, nothing charged.

        Private: never publish, it holds reports and what sensors have left.
        """
        self._check_not_over(carry)
        sensors = as_ids(ids)
        values = as_measurements(measurements, (len(sensors), self._policy.structure.num_channels))
        stream = np.zeros_like(sensors) if stream is None else stream
        places = carry.memory.find(stream, sensors)
        # One block for all that goes in: each array that is handed to JAX takes as long as a matrix product.
        block = np.empty((len(sensors), values.shape[1] + 4), np.float32)
        block[:, :-4] = values
        block[:, -4] = stream
        block[:, -3] = np.asarray(present, bool) & (sensors != NOBODY)
        block[:, -2] = places == ABSENT
        block[:, -1] = self.accounts_left(carry.accounts, sensors)
        return sensors, places, block

    def accounts_left(self, accounts: TotalFilter | Accounts, sensors: Integers) -> float | Floats:
        """The squared radius that each sensor may still use, with the headroom that training leaves too.

        Private: never publish, a sensor's balance tells what it reported.
        """
        if not isinstance(accounts, IndividualFilter):
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
        return self.estimate_many(carry, np.array([released.fusion_weight]), released.value[None])

    def estimate_many(self, carry: Carry, weights: Integers, values: Integers) -> tuple[Carry, Estimate]:
        """The public part of every stream, from released weights, shape (streams,), and values, shape (streams, d)."""
        block = np.empty((len(values), 1 + values.shape[1]), np.float32)
        block[:, 0] = weights / GRID
        block[:, 1:] = values / GRID
        public, query, result = self.public_part(carry.public, block)
        return carry._replace(public=public, query=query), result

    def follow(self, carry: Carry, weights: Integers, values: Integers) -> tuple[Carry, Estimate]:
        """A step of the past, or one that was skipped: weights and values as they were released, and nothing charged.

        One that was skipped has zeros, see `missing_release`.
        """
        self._check_not_over(carry)
        return self.estimate_many(carry._replace(num_steps=carry.num_steps + 1), weights, values)

    def _open_accounts(self) -> Accounts:
        accounts = self.mechanism.open_accounts()
        if isinstance(accounts, IndividualFilter):
            return accounts
        return (accounts, *(TotalFilter(accounts.budget) for _ in range(1, self._num_streams)))

    def _check_not_over(self, carry: Carry) -> None:
        if self._horizon is not None and carry.num_steps >= self._horizon:
            raise ValueError(f"the design ends after {self._horizon} releases; it never starts again on these sensors")

    def _in_turns(self, query: Query, hidden: Floats32, block: Floats32) -> tuple[Floats32, Floats32]:
        """The private part over all rows, `num_rows` at a time, and at least once."""
        num_rows, size = len(block), self._num_rows
        if padding := -num_rows % size or size * (num_rows == 0):
            hidden, block = (np.concatenate([part, _zeros_like(part, padding)]) for part in (hidden, block))
        spans = [slice(first, first + size) for first in range(0, len(block), size)]
        turns = [self.private_part(query, hidden[span], block[span]) for span in spans]
        own_hidden, proposed = zip(*turns, strict=True)
        return _join(own_hidden)[:num_rows], _join(proposed)[:num_rows]


def join_proposals(parts: Sequence[Proposal]) -> Proposal:
    """All rows of several proposals for one step; of one sensor's the first comes first."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.stream for part in parts]), kind="stable")
    return Proposal(*(np.concatenate(column)[order] for column in zip(*parts, strict=True)))


def missing_release(dimension: int) -> Release:
    """What g and E read for a step that was skipped: nothing, with weight nothing. Time passes without news."""
    return Release(np.zeros(dimension, np.int64), 0, None)


def as_measurements(reported: ArrayLike, shape: tuple[int, int]) -> Floats32:
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


def _row_by_row(reported: Any, shape: tuple[int, int]) -> Floats:
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


def _zeros_like(part: Floats32, num_rows: int) -> Floats32:
    return np.zeros((num_rows, part.shape[1]), np.float32)


def _join(parts: Sequence[jax.Array]) -> Floats32:
    """The parts one after the other; one alone is not copied."""
    return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)


def _first_query(policy: Policy, num_streams: int) -> tuple[PublicCarry, Query]:
    """Streams from which nothing was released, and what is asked then."""
    return make_query(policy, init_public(policy, num_streams))


def _private_part(policy: Policy, query: Query, hidden: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Memory, and what is charged for: the features (total) or the contributions (individual) of each row.

    The block's columns: measurements, the stream, whether there is a report, whether the sensor is new, and what is
    left to it.
    """
    stream, present, arrived, account = block[:, -4].astype(jnp.int32), block[:, -3] > 0, block[:, -2] > 0, block[:, -1]
    reports = Reports(block[:, :-4], present, arrived, stream)
    private, contributions, features = contribute(policy, PrivateCarry(hidden, account), reports, query)
    return private.hidden, features if policy.structure.accounting == "total" else contributions


def _public_part(policy: Policy, public: PublicCarry, block: jax.Array) -> tuple[PublicCarry, Query, Estimate]:
    """The estimate from weight and release, side by side in one block, and what is asked in the next step."""
    public, result = estimate(policy, public, block[:, 0], block[:, 1:])
    public, query = make_query(policy, public)
    return public, query, result
