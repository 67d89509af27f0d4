"""One step of Algorithm 1, in three parts: contribute (private), release (noise passed in), estimate (public).

This one step serves training, evaluation and the live centre. It works on many streams at once: sensors are rows, and
`Reports.stream` is the number of the stream that a row belongs to.

Budgets are squared radii in units of the noise's standard deviation. A release with fusion weight g costs c g^2, where
c is the charge factor of the feature set (Theorem 2 has c = d), and the costs add up to 2 B / alpha at most:

    loss = alpha c g^2 / 2 <= s    <=>    c g^2 <= 2 s / alpha.

The float32 budgets here steer the networks. Integer code (`dpfuse.privacy`) decides what is released. A small headroom
keeps the two from disagreeing at the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.filters import Readout, read_features
from dpfuse.policy.policy import Policy
from dpfuse.policy.public_inputs import hold_inputs, init_held, read_inputs
from dpfuse.privacy.budget import GRID

# Float32 sums of a few thousand debits are off by less than this share of the budget.
HEADROOM = 2.0**-12
# A contribution that exceeds its account is scaled down; if less than this share of the budget is left, it becomes 0.
SMALLEST_ACCOUNT = 2.0**-20
# Departures are clipped to this, so that exp() stays finite.
LARGEST_DEPARTURE = 12.0


class Reports(NamedTuple):
    """What the sensors sent in one step.

    Attributes:
        measurements: shape (rows, n_y + n_a): the channels, NaN in one that is missing, and then the attributes of the
            row's sensor. Columns after those that the design reads are not read.
        present: whether the row holds a report.
        arrived: whether the row's sensor is a new one, which starts with fresh memory. Accounts are opened elsewhere:
            by `open_accounts` in a simulation, by the ledger in a live centre, where an account outlasts a visit.
        stream: number of the row's stream; a padding row has the number num_streams or more.
    """

    measurements: Float[AnyArray, "rows n_y+n_a"]
    present: Bool[AnyArray, " rows"]
    arrived: Bool[AnyArray, " rows"]
    stream: Int[AnyArray, " rows"]


class PrivateCarry(NamedTuple):
    """What the centre remembers of each sensor. Private: never to be shown.

    Attributes:
        hidden: f's memory of the sensor's own measurements.
        account: squared radius left to the sensor (individual accounting).
    """

    hidden: Float[Array, "rows h"]
    account: Float[Array, " rows"]


class PublicCarry(NamedTuple):
    """What anybody can compute from the releases.

    Attributes:
        step_index: number of the step to come, from 0.
        spending_hidden, estimator_hidden: the memories of g and E.
        budget_left: squared radius left to the stream (total accounting).
        last: the last release, its reliability, the last estimate, whether the last step was skipped, and the public
            inputs, as g reads them.
        held: public inputs, see `dpfuse.policy.public_inputs`; None for a design that reads none.
    """

    step_index: Int[Array, ""]
    spending_hidden: Float[Array, "streams h"]
    estimator_hidden: Float[Array, "streams e"]
    budget_left: Float[Array, " streams"]
    last: Float[Array, "streams inputs"]
    held: Float[Array, "streams held"] | None = None


class Query(NamedTuple):
    """The public query of a step: the weight g_k and, for a guided filter, f's readout.

    Attributes:
        fusion_weight: g_k of each stream.
        readout: of each stream, see `RecurrentFilter.make_readout`; None for a filter that is not guided.
    """

    fusion_weight: Float[Array, " streams"]
    readout: Readout | None


class Estimate(NamedTuple):
    """E's estimate of the state, in the state's own units."""

    mean: Float[Array, "streams n_x"]
    std: Float[Array, "streams n_x"]


def init_private(policy: Policy, num_rows: int) -> PrivateCarry:
    """Sensors that have reported nothing and spent nothing."""
    hidden = jnp.zeros((num_rows, policy.networks.recurrent_filter.hidden_size))
    return PrivateCarry(hidden, jnp.broadcast_to(usable_budget(policy), (num_rows,)))


def init_public(policy: Policy, num_streams: int) -> PublicCarry:
    """Streams from which nothing has been released."""
    structure, networks = policy.structure, policy.networks
    return PublicCarry(
        step_index=jnp.zeros((), jnp.int32),
        spending_hidden=jnp.zeros((num_streams, networks.spending.hidden_size)),
        estimator_hidden=jnp.zeros((num_streams, networks.estimator.hidden_size)),
        budget_left=jnp.broadcast_to(usable_budget(policy), (num_streams,)),
        last=jnp.zeros((num_streams, structure.num_observed - 2)),  # g also reads the step and the budget left
        held=init_held(policy, num_streams),
    )


def with_budget_left(policy: Policy, public: PublicCarry, left: Sequence[int]) -> PublicCarry:
    """The carry of streams that have this much left, in squared grid steps, when the first release is read."""
    spent = float(policy.constants.squared_radius) - np.array(left, np.float64) / GRID**2
    return public._replace(budget_left=jnp.maximum(public.budget_left - jnp.asarray(spent, jnp.float32), 0.0))


def usable_budget(policy: Policy) -> Float[Array, ""]:
    """The squared radius that a stream, or with individual accounting a sensor, may spend."""
    return policy.constants.squared_radius * (1 - HEADROOM)


def observe(policy: Policy, public: PublicCarry) -> Float[Array, "streams inputs"]:
    """What g reads: the last release, its reliability, the last estimate, if it was skipped, step and budget left."""
    return jnp.concatenate([public.last, _clock(policy, public)], axis=-1)


def make_query(
    policy: Policy, public: PublicCarry, exploration: Float[Array, " streams"] | float = 0.0
) -> tuple[PublicCarry, Query]:
    """The public query of the next step; `exploration` as in `choose_weight`."""
    public, weight = choose_weight(policy, public, exploration)
    return public, Query(weight, policy.networks.recurrent_filter.make_readout(public.estimator_hidden))


def choose_weight(
    policy: Policy, public: PublicCarry, exploration: Float[Array, " streams"] | float = 0.0
) -> tuple[PublicCarry, Float[Array, " streams"]]:
    """The fusion weight g_k of each stream, from past releases alone (the paper's step 5).

    With total accounting the weight spends a share of what is left to the stream. With individual accounting it is one
    scale for all sensors, and each then stays within its own account. In a stationary design with total accounting it
    is a share of a whole period's budget, and `affordable_weight` or the ledger lowers it to what is left. So no rule
    can overspend.

    Args:
        exploration: random log-odds that training adds to the departure from even spending.
    """
    structure, spending = policy.structure, policy.networks.spending
    hidden, departure = spending.step(public.spending_hidden, observe(policy, public), public.step_index)
    departure = departure + exploration
    if not structure.is_private:
        weight = jnp.ones_like(departure)
    elif structure.accounting == "individual" or structure.horizon is None:
        share = jnp.minimum(1.0, _odds(departure) / structure.expected_stay)
        weight = jnp.sqrt(share * usable_budget(policy) / structure.charge_factor)
    else:
        weight = weight_for(policy, public, share_of_rest(policy, public, departure))
    return public._replace(spending_hidden=hidden), weight


def share_of_rest(policy: Policy, public: PublicCarry, departure: Float[Array, " streams"]) -> Float[Array, " streams"]:
    """The even share 1 / (steps left), its odds moved by `departure`; the last step takes all that is left."""
    structure = policy.structure
    assert structure.horizon is not None  # its caller handles designs without an end
    steps_left = jnp.maximum(structure.horizon - public.step_index, 1).astype(jnp.float32)
    if structure.spending == "constant":
        return jnp.broadcast_to(1.0 / steps_left, departure.shape)
    odds = _odds(departure)
    return odds / (odds + (steps_left - 1))


def weight_for(policy: Policy, public: PublicCarry, share: Float[Array, " streams"]) -> Float[Array, " streams"]:
    """The fusion weight that spends this share, in [0, 1], of what is left to each stream (total accounting)."""
    return _sqrt(share * public.budget_left / policy.structure.charge_factor)


def affordable_weight(
    policy: Policy, public: PublicCarry, weight: Float[Array, " streams"]
) -> Float[Array, " streams"]:
    """The weight, at most the one that spends all that is left; as `Mechanism.charge` does in integers."""
    return jnp.minimum(weight, weight_for(policy, public, jnp.ones_like(weight)))


def renew_budget(policy: Policy, public: PublicCarry, renewed: Float[AnyArray, " streams"]) -> PublicCarry:
    """The carry with this share of the budget left to each stream, where it is above 0: a period begins."""
    share = jnp.asarray(renewed)
    return public._replace(budget_left=jnp.where(share > 0, share * usable_budget(policy), public.budget_left))


def _odds(departure: Float[Array, " streams"]) -> Float[Array, " streams"]:
    return jnp.exp(jnp.clip(departure, -LARGEST_DEPARTURE, LARGEST_DEPARTURE))


def to_inputs(policy: Policy, reports: Reports) -> tuple[Float[Array, "*rows inputs"], Bool[Array, "*rows"]]:
    """What f reads of each report, in [-1, 1], and which rows have one.

    A channel that is not finite is missing. A report without any channel counts as absent; in a design without partial
    reports one that lacks a channel does, too. So does a report of a sensor whose attributes are not registered, in a
    design that reads attributes.
    """
    structure, constants = policy.structure, policy.constants
    measured = reports.measurements[..., : structure.num_channels]
    inputs, present = _read_channels(policy, measured, reports.present)
    if not structure.num_attributes:
        return inputs, present
    attributes = reports.measurements[..., structure.num_channels : structure.num_channels + structure.num_attributes]
    bounds = _given(constants.attribute_low), _given(constants.attribute_high)
    low, high = (jnp.broadcast_to(bound, attributes.shape) for bound in bounds)
    is_known = jnp.isfinite(attributes)
    scaled = 2 * (jnp.where(is_known, jnp.clip(attributes, low, high), low) - low) / (high - low) - 1
    return jnp.concatenate([inputs, scaled], axis=-1), jnp.logical_and(present, jnp.all(is_known, axis=-1))


def _read_channels(
    policy: Policy, measured: Float[AnyArray, "*rows n_y"], sent: Bool[AnyArray, "*rows"]
) -> tuple[Float[Array, "*rows inputs"], Bool[Array, "*rows"]]:
    """What f reads of the channels, and which rows have a report."""
    constants, shape = policy.constants, measured.shape
    low, high = (jnp.broadcast_to(b, shape) for b in (constants.measurement_low, constants.measurement_high))
    if policy.structure.partial_reports:
        is_known = jnp.isfinite(measured)
        fill = jnp.broadcast_to(_given(constants.measurement_fill), shape)
        known = jnp.where(is_known, jnp.clip(measured, low, high), fill)
        is_missing = jnp.where(is_known, jnp.float32(0), jnp.float32(1))
        inputs = jnp.concatenate([2 * (known - low) / (high - low) - 1, is_missing], axis=-1)
        return inputs, jnp.logical_and(sent, jnp.any(is_known, axis=-1))
    present = jnp.logical_and(sent, jnp.all(jnp.isfinite(measured), axis=-1))
    measurements = jnp.where(present[..., None], jnp.clip(measured, low, high), low)
    return 2 * (measurements - low) / (high - low) - 1, present


def _given(constant: Float[Array, " n"] | None) -> Float[Array, " n"]:
    assert constant is not None  # the structure says that the design has it
    return constant


def open_accounts(
    policy: Policy,
    account: Float[Array, " rows"],
    arrived: Bool[AnyArray, " rows"],
    opened: Bool[AnyArray, " rows"],
) -> Float[Array, " rows"]:
    """The accounts: a full one for every sensor whose account is opened, and none for others that have arrived."""
    return jnp.where(opened, usable_budget(policy), jnp.where(arrived, 0.0, account))


def scale_contributions(
    policy: Policy,
    account: Float[Array, " rows"],
    features: Float[Array, "rows d"],
    stream: Int[AnyArray, " rows"],
    weight: Float[Array, " streams"],
) -> tuple[Float[Array, " rows"], Float[Array, "rows d"]]:
    """Accounts and contributions g_k f_i; with individual accounting no sensor adds more than its account holds.

    A contribution that would cost more is scaled down to what is left. It becomes 0 if the share of the budget that is
    left is below `SMALLEST_ACCOUNT`.
    """
    contributions = weight.at[stream].get(mode="fill", fill_value=0.0)[:, None] * features
    if policy.structure.accounting == "total" or not policy.structure.is_private:
        return account, contributions
    cost = policy.structure.charge_factor * jnp.sum(contributions**2, axis=-1)
    is_over = cost > account
    # Near 0 the gradient of the square root of account / cost overflows to infinity, and 0 times infinity is NaN.
    is_scaled = is_over & (account > SMALLEST_ACCOUNT * usable_budget(policy))
    scale = jnp.where(is_scaled, _sqrt(account / jnp.where(is_scaled, cost, 1.0)), 0.0)
    return jnp.where(is_over, 0.0, account - cost), jnp.where(is_over, scale, 1.0)[:, None] * contributions


def contribute(
    policy: Policy, private: PrivateCarry, reports: Reports, query: Query
) -> tuple[PrivateCarry, Float[Array, "rows d"], Float[Array, "rows d"]]:
    """The private part: what each sensor adds to the sum, and its features."""
    inputs, present = to_inputs(policy, reports)
    recurrent_filter = policy.networks.recurrent_filter
    hidden, encoded = recurrent_filter.step(private.hidden, inputs, present, reports.arrived)
    features = read_features(recurrent_filter, encoded, present, query.readout, reports.stream)
    account, contributions = scale_contributions(policy, private.account, features, reports.stream, query.fusion_weight)
    return PrivateCarry(hidden, account), contributions, features


def release(
    contributions: Float[Array, "rows d"], stream: Int[AnyArray, " rows"], noise: Float[Array, "streams d"]
) -> Float[Array, "streams d"]:
    """Z_k: each stream's sum of contributions plus noise (the paper's step 6), for simulation and training.

    A floating-point sum breaks the sensitivity, so the live centre computes this sum in integers.
    """
    return noise.at[stream].add(contributions, mode="drop")


def estimate(
    policy: Policy,
    public: PublicCarry,
    weight: Float[Array, " streams"],
    released: Float[Array, "streams d"],
    skipped: Bool[AnyArray, " streams"] | bool = False,
    published: Float[AnyArray, "streams held"] | None = None,
) -> tuple[PublicCarry, Estimate]:
    """The public part: E reads Z_k and g_k, and the budget left is brought up to date (the paper's steps 7 and 8).

    Args:
        skipped: which streams have no release in this step; their weight and release must be 0.
        published: public inputs, see `dpfuse.policy.public_inputs`; None if there are no new ones.
    """
    structure, constants = policy.structure, policy.constants
    signal = (weight * structure.expected_sensors)[:, None]
    # The release scaled to unit size for any weight, and how much of it is signal, in (0, 1).
    scaled = released / jnp.sqrt(1 + signal**2)
    reliability = signal / jnp.sqrt(1 + signal**2)
    is_skipped = jnp.broadcast_to(jnp.asarray(skipped, jnp.float32), weight.shape)[:, None]
    own = [scaled, scaled * reliability, reliability, _clock(policy, public), is_skipped]
    held = None if public.held is None else hold_inputs(public.held, published, is_skipped > 0)
    others = [] if held is None else [read_inputs(policy, held)]
    inputs = jnp.concatenate([*own, *others], axis=-1)
    before = public.estimator_hidden
    hidden, mean, std = policy.networks.estimator.step(before, inputs)
    # E begins with the first release, so that a reader who joins at that release has the same memory.
    has_begun = (is_skipped == 0) | jnp.any(before != 0, axis=-1, keepdims=True)
    hidden = jnp.where(has_begun, hidden, before)
    spent = structure.charge_factor * weight**2 if structure.is_private else 0.0
    public = public._replace(
        step_index=public.step_index + 1,
        estimator_hidden=hidden,
        budget_left=jnp.maximum(public.budget_left - spent, 0.0),
        last=jnp.concatenate([scaled, reliability, mean, std, is_skipped, *others], axis=-1),
        held=held,
    )
    state_mean, state_std = constants.state_mean[None], constants.state_std[None]
    return public, Estimate(state_mean + state_std * mean, state_std * constants.std_scale[None] * std)


def _clock(policy: Policy, public: PublicCarry) -> Float[Array, "streams 2"]:
    """Step and budget left as shares of the whole.

    Both are 0 in designs without a clock, see `Structure.has_clock`. The budget left is 0 in individual accounting, as
    it is private, and without a budget.
    """
    structure = policy.structure
    step, left = jnp.zeros_like(public.budget_left), jnp.zeros_like(public.budget_left)
    if structure.has_clock:
        assert structure.horizon is not None
        step = jnp.full_like(step, public.step_index / structure.horizon)
        if structure.accounting == "total" and structure.is_private:
            left = public.budget_left / usable_budget(policy)
    return jnp.stack([step, left], axis=-1)


def _sqrt(value: Float[Array, " n"]) -> Float[Array, " n"]:
    """The square root, with gradient 0 instead of infinity at 0."""
    is_positive = value > 0
    return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, value, 1.0)), 0.0)
