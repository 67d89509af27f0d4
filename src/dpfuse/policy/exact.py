"""The one step in exact arithmetic: what a live centre runs, for all its streams at once.

Float32 code proposes contributions; integer code decides what is released. The compiled parts of `dpfuse.policy.step`
make the query and each sensor's features. `dpfuse.privacy.Mechanism` rounds these, checks them, debits accounts, adds
up and draws the noise. The estimator reads the released integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from dpfuse._arrays import Booleans, Floats, Floats32, Integers
from dpfuse._keyed_arrays import ABSENT
from dpfuse.attributes import SensorAttributes
from dpfuse.policy.design import Design
from dpfuse.policy.measurements import as_measurements
from dpfuse.policy.memory import Memory
from dpfuse.policy.policy import Policy
from dpfuse.policy.public_part import compile_estimate, join_and_query, split_streams, to_block
from dpfuse.policy.recordings import check_attributes
from dpfuse.policy.step import (
    HEADROOM,
    Estimate,
    PrivateCarry,
    PublicCarry,
    Query,
    Reports,
    contribute,
    init_public,
    make_query,
    with_budget_left,
)
from dpfuse.privacy.budget import GRID, IndividualFilter, TotalFilter, as_ids
from dpfuse.privacy.release import Accounts, Charged, Mechanism, Release
from dpfuse.trajectories import NOBODY


def compute_inline() -> None:
    """Let JAX compute on the calling thread, so that a live step waits for no other thread.

    For a process that runs live steps; call it before anything else uses JAX. Training is slower with it.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]  # JAX's own


class Carry(NamedTuple):
    """What streams carry from step to step. Private, but for `num_steps`, `public` and `query`.

    Attributes:
        num_steps: steps that were charged or skipped so far.
        memory: f's memory of each sensor, written in place.
        public: what anybody can compute from the releases.
        query: the public query of the step to come.
        accounts: budgets in integers, debited in place: one for each stream, or one set for the sensors of all streams.
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
    """What reports would add to a step; nothing is charged yet. Private.

    Attributes:
        stream: number of each row's stream, in ascending order.
        sensors: id of each row.
        places: place of each row in the memory.
        hidden: f's memory of each row after this step.
        values: what is charged: features (total) or contributions (individual), shape (rows, d).
    """

    stream: Integers
    sensors: Integers
    places: Integers
    hidden: Floats32
    values: Floats32


class ExactStep:
    """Algorithm 1 for streams that step together, release by release.

    **Guarantees**
        - The releases of one carry satisfy the design's guarantee, see `dpfuse.privacy.Mechanism`; with periods, those
          between two calls of `begin_period`. This assumes that each carry is used once, and neither copied nor set
          back.
        - What a sensor adds to a stream depends on its own reports, past releases and, in individual accounting, its
          own account alone, bit for bit. The compiled parts have one shape, and a row never reads another.
        - Each sensor stays within its bound, whatever is reported. A report that is not finite counts as absent.

    `init`, `contribute`, `release` and `estimate` serve one stream. A live centre with many streams calls the same code
    by `propose`, `charge`, `release_many` and `estimate_many`. An audit, which runs many carries side by side, calls
    the parts of these: `prepare`, `accounts_left`, `private_part` and `remember`, which are private, and
    `estimate_part` and `query_part`, which are public.

    Args:
        num_rows: rows of the one compiled shape. More rows are computed in several turns, fewer are padded.
        num_streams: how many streams step together.
        forget_after: for how many steps a sensor that is not listed is remembered.
        attributes: of the sensors, for a design that reads them; a sensor that is not registered is absent.
    """

    def __init__(
        self,
        design: Design,
        num_rows: int,
        num_streams: int = 1,
        forget_after: int = 0,
        attributes: SensorAttributes | None = None,
    ) -> None:
        if design.guarantee is None:
            raise ValueError("design must have a guarantee; the non-private floor may not be released")
        structure = design.structure
        assert structure.features != "unbounded"  # only the floor has unbounded features
        self.mechanism = Mechanism(design.guarantee, structure.features, structure.dimension)
        self._policy, self._horizon = design.policy, structure.horizon
        self._attributes = check_attributes(structure, attributes)
        self._num_rows, self._num_streams, self._forget_after = num_rows, num_streams, forget_after
        # The weights are compiled in: to pass them at every step would take longer than the step.
        self._first = jax.jit(partial(_first_query, design.policy, num_streams))()
        self.private_part = jax.jit(partial(_private_part, design.policy))
        self.estimate_part = compile_estimate(design.policy)
        self.query_part = jax.jit(partial(join_and_query, design.policy, num_streams))
        self._split = jax.jit(split_streams)

    def init(self, accounts: TotalFilter | Accounts | None = None, started_with: Sequence[int] | None = None) -> Carry:
        """Streams from which this design has released nothing, with full accounts or with those given.

        Args:
            accounts: such as a ledger's.
            started_with: what each stream had left before this design's first release, in squared grid steps, in total
                accounting; None for the whole budget.
        """
        if accounts is None:
            accounts = self._open_accounts()
        accounts = (accounts,) if isinstance(accounts, TotalFilter) else accounts
        public, query = self._first
        if started_with is not None:
            public = with_budget_left(self._policy, public, started_with)
        return Carry(0, Memory(self.hidden_size), public, query, accounts)

    def begin_period(self, carry: Carry, accounts: Accounts | None = None) -> Carry:
        """The streams at the first step of a period: nothing private is kept, and what is public goes on.

        Every sensor is a new one, with fresh memory. Weights, estimates and step numbers continue.

        Args:
            carry: is used up; go on with the one that is returned.
            accounts: such as a ledger's after `Ledger.begin_period`; full ones by default.
        """
        fresh = self._open_accounts() if accounts is None else accounts
        return carry._replace(memory=Memory(self.hidden_size), accounts=fresh)

    @property
    def hidden_size(self) -> int:
        """How many numbers f remembers of each sensor."""
        return self._policy.networks.recurrent_filter.hidden_size

    def contribute(
        self, carry: Carry, ids: ArrayLike, measurements: ArrayLike, present: ArrayLike = True
    ) -> tuple[Carry, Charged]:
        """The private part of one stream: the step is charged, and no noise is drawn yet.

        Args:
            carry: is used up; go on with the one that is returned.
            ids: of the sensors, shape (rows,), in any order, `NOBODY` for an empty row. A sensor that is not listed
                keeps its account and, after `forget_after` steps, loses its memory.
            measurements: shape (rows, n_y). A row that is not finite, or not of numbers, is no report; a finite value
                is clipped to the design's range.
            present: which rows have a report, shape (rows,). A listed sensor without one keeps its memory.
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
        """What these reports would add to the step of every stream; nothing is charged or remembered.

        A row depends on itself alone, so the reports of a step may come in several calls; `join_proposals` joins the
        results.

        Args:
            carry: is left as it is.
            stream: number of each row's stream, shape (rows,), in ascending order.
            ids, measurements, present: as for `contribute`.
        """
        sensors, places, block = self.prepare(carry, ids, measurements, present, stream)
        hidden, values = self._in_turns(carry.query, carry.memory.read(places), block)
        return Proposal(stream, sensors, places, hidden, values)

    def charge(self, carry: Carry, proposed: Proposal) -> tuple[Carry, list[Charged]]:
        """Charge the step of every stream, and remember the sensors."""
        self._check_not_over(carry)
        stream, sensors, places, hidden, values = proposed
        weights = np.asarray(carry.query.fusion_weight).tolist()
        charged = self.mechanism.charge_many(carry.accounts, weights, stream, sensors, values)
        self.remember(carry, stream, sensors, places, hidden)
        return carry._replace(num_steps=carry.num_steps + 1), charged

    def remember(self, carry: Carry, stream: Integers, sensors: Integers, places: Integers, hidden: Floats32) -> None:
        """Write f's memory of these sensors into the carry, and drop what was last written too long ago."""
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
        """Ids, places in memory, and the block that `private_part` reads; nothing is charged.

        Private: the block holds reports and what sensors have left.
        """
        self._check_not_over(carry)
        sensors = as_ids(ids)
        values = as_measurements(measurements, (len(sensors), self._policy.structure.num_channels))
        stream = np.zeros_like(sensors) if stream is None else stream
        places = carry.memory.find(stream, sensors)
        # One block for all inputs: to pass one more array to JAX takes as long as a matrix product.
        num_channels = values.shape[1]
        block = np.empty((len(sensors), num_channels + self._policy.structure.num_attributes + 4), np.float32)
        block[:, :num_channels] = values
        if self._attributes is not None:
            block[:, num_channels:-4] = self._attributes.look_up(sensors)
        block[:, -4] = stream
        block[:, -3] = np.asarray(present, bool) & (sensors != NOBODY)
        block[:, -2] = places == ABSENT
        block[:, -1] = self.accounts_left(carry.accounts, sensors)
        return sensors, places, block

    def accounts_left(self, accounts: TotalFilter | Accounts, sensors: Integers) -> float | Floats:
        """The squared radius that each sensor may still use, less the headroom of `dpfuse.policy.step`; 0 if total.

        The headroom is a share of the budget, as in training. Of what a bank has lent for a step, a small part of the
        budget, it is a share of the amount: integers check each contribution anyway.

        Private: a sensor's balance depends on what it reported.
        """
        if not isinstance(accounts, IndividualFilter):
            return 0.0
        left = accounts.left(sensors).astype(np.float64)
        headroom = HEADROOM * (left if accounts.is_lent else self.mechanism.budget)
        return np.asarray(np.maximum(left - headroom, 0.0) / GRID**2)

    def release(self, charged: Charged) -> Release:
        """Z_k: the one thing that may leave the centre."""
        return self.release_many([charged])[0]

    def release_many(self, many: Sequence[Charged]) -> list[Release]:
        """The same for several streams, each with noise of its own."""
        return self.mechanism.draw_many(many)

    def estimate(self, carry: Carry, released: Release, inputs: ArrayLike | None = None) -> tuple[Carry, Estimate]:
        """The public part of one stream: the estimate from what was released.

        Args:
            inputs: what the row holds of public inputs, values and ages, shape (2 n_p,), for a design that reads some.
        """
        held = None if inputs is None else np.asarray(inputs, np.float32)[None]
        return self.estimate_many(carry, np.array([released.fusion_weight]), released.value[None], inputs=held)

    def estimate_many(
        self,
        carry: Carry,
        weights: Integers,
        values: Integers,
        skipped: Booleans | bool = False,
        inputs: Floats32 | None = None,
    ) -> tuple[Carry, Estimate]:
        """The public part of every stream.

        Args:
            weights, values: as released, shapes (streams,) and (streams, d); 0 where a stream has no release.
            skipped: which streams have no release.
            inputs: what the rows hold of public inputs, values and ages, shape (streams, 2 n_p); it is not read of a
                stream without a release.
        """
        block = to_block(weights, values, skipped, self._check_inputs(inputs))
        estimated = [self.estimate_part(*part) for part in self._split(carry.public, block)]
        public, query, result = self.query_part(estimated)
        return carry._replace(public=public, query=query), result

    def follow(
        self,
        carry: Carry,
        weights: Integers,
        values: Integers,
        skipped: Booleans | bool = False,
        inputs: Floats32 | None = None,
    ) -> tuple[Carry, Estimate]:
        """The public part of a step that is not charged: one of the past, as it was released, or one that was skipped.

        Arguments as for `estimate_many`.
        """
        self._check_not_over(carry)
        return self.estimate_many(carry._replace(num_steps=carry.num_steps + 1), weights, values, skipped, inputs)

    def _check_inputs(self, inputs: Floats32 | None) -> Floats32 | None:
        """The public inputs, if the design reads as many; None for a design that reads none."""
        expected = self._num_streams, 2 * self._policy.structure.num_public
        if (0 if inputs is None else inputs.shape) != (expected if expected[1] else 0):
            raise ValueError(
                f"inputs must be the public inputs that the design reads, values and ages of shape {expected}, got "
                f"{None if inputs is None else inputs.shape}"
            )
        return inputs

    def _open_accounts(self) -> Accounts:
        accounts = self.mechanism.open_accounts()
        if isinstance(accounts, IndividualFilter):
            return accounts
        return (accounts, *(TotalFilter(accounts.budget) for _ in range(1, self._num_streams)))

    def _check_not_over(self, carry: Carry) -> None:
        if self._horizon is not None and carry.num_steps >= self._horizon:
            raise ValueError(
                f"the design ends after {self._horizon} releases; it never starts again on these sensors. For a "
                f"longer run, train with a longer horizon or with stationary=True before the first release"
            )

    def _in_turns(self, query: Query, hidden: Floats32, block: Floats32) -> tuple[Floats32, Floats32]:
        """The private part over all rows, `num_rows` at a time, and at least once."""
        num_rows, size = len(block), self._num_rows
        spans = [slice(first, first + size) for first in range(0, max(1, num_rows), size)]
        turns = [self.private_part(query, _padded(hidden[span], size), _padded(block[span], size)) for span in spans]
        own_hidden, proposed = zip(*turns, strict=True)
        return _join(own_hidden)[:num_rows], _join(proposed)[:num_rows]


def join_proposals(parts: Sequence[Proposal]) -> Proposal:
    """All rows of several proposals for one step, by stream; of several rows of one sensor the first stays first."""
    if len(parts) == 1:
        return parts[0]
    order = np.argsort(np.concatenate([part.stream for part in parts]), kind="stable")
    return Proposal(*(np.concatenate(column)[order] for column in zip(*parts, strict=True)))


def _padded(part: Floats32, num_rows: int) -> Floats32:
    """The part with so many rows, filled with zeros."""
    if len(part) == num_rows:
        return part
    return np.concatenate([part, np.zeros((num_rows - len(part), part.shape[1]), np.float32)])


def _join(parts: Sequence[jax.Array]) -> Floats32:
    """The parts one after the other; a single one is not copied."""
    return np.asarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)


def _first_query(policy: Policy, num_streams: int) -> tuple[PublicCarry, Query]:
    """Streams from which nothing was released, and their first query."""
    return make_query(policy, init_public(policy, num_streams))


def _private_part(policy: Policy, query: Query, hidden: jax.Array, block: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Memory of each row, and what is charged: its features (total) or its contribution (individual).

    The block's columns are measurements, attributes, stream, whether there is a report, whether the sensor is new, and
    its account.
    """
    stream, present, arrived, account = block[:, -4].astype(jnp.int32), block[:, -3] > 0, block[:, -2] > 0, block[:, -1]
    reports = Reports(block[:, :-4], present, arrived, stream)
    private, contributions, features = contribute(policy, PrivateCarry(hidden, account), reports, query)
    return private.hidden, features if policy.structure.accounting == "total" else contributions
