"""Algorithm 1 over whole recordings: many windows at once, without the slots that are empty throughout."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dpfuse._arrays import Floats32, Integers
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.filters import read_features
from dpfuse.policy.policy import Policy
from dpfuse.policy.step import (
    Estimate,
    PublicCarry,
    Reports,
    affordable_weight,
    estimate,
    init_private,
    init_public,
    make_query,
    observe,
    open_accounts,
    release,
    renew_budget,
    scale_contributions,
    to_inputs,
)
from dpfuse.policy.structure import Structure
from dpfuse.trajectories import Trajectories


class PackedWindows(NamedTuple):
    """Windows of recordings: time first, then the sensors of all windows as rows.

    Attributes:
        state: shape (K, windows, n_x).
        measurements: channels and attributes as in `Reports`, shape (K, rows, n_y + n_a).
        present, arrived: as in `Reports`, shape (K, rows); no row has arrived at the first step.
        window: number of the row's window; a row that pads the shape has a number past the last.
        account_share: the share of its budget that the row's first sensor has at the first step.
        opened: whether the row's account is opened at this step, see `wait_for_bank`; shape (K, rows). None if it is
            when the sensor arrives.
        renewed: the share of its budget that a stream has from this step on: 1 where a period begins, 0 where nothing
            changes, shape (K, windows); see `begin_periods`. None without periods.
        skipped: steps without a release, shape (K, windows); no row of the window is present in them.
        joined: the step at which a reader of the releases joins, shape (windows,): from then on the estimates are those
            of an E that has read nothing before. The centre's own E, which g and a guided f read, goes on. None if all
            read from the first step.
        public: public inputs, values and then ages, as in `dpfuse.policy.public_inputs`; None if there are none.
    """

    state: Float[AnyArray, "K windows n_x"]
    measurements: Float[AnyArray, "K rows n_y+n_a"]
    present: Bool[AnyArray, "K rows"]
    arrived: Bool[AnyArray, "K rows"]
    window: Int[AnyArray, " rows"]
    account_share: Float[AnyArray, " rows"]
    skipped: Bool[AnyArray, "K windows"]
    joined: Int[AnyArray, " windows"] | None = None
    opened: Bool[AnyArray, "K rows"] | None = None
    renewed: Float[AnyArray, "K windows"] | None = None
    public: Float[AnyArray, "K windows held"] | None = None


class SensorFeatures(NamedTuple):
    """Filter outputs that do not depend on releases.

    Attributes:
        encoded: what `RecurrentFilter.over_time` gives: the features or, for a guided filter, what these are made of.
        present, arrived, window, account_share, skipped, joined, opened, renewed, public: as in `PackedWindows`; a
            report that is not finite is not present.
    """

    encoded: Float[Array, "K rows n"]
    present: Bool[AnyArray, "K rows"]
    arrived: Bool[AnyArray, "K rows"]
    window: Int[AnyArray, " rows"]
    account_share: Float[AnyArray, " rows"]
    skipped: Bool[AnyArray, "K windows"]
    joined: Int[AnyArray, " windows"] | None = None
    opened: Bool[AnyArray, "K rows"] | None = None
    renewed: Float[AnyArray, "K windows"] | None = None
    public: Float[AnyArray, "K windows held"] | None = None


class Rollout(NamedTuple):
    """The course of Algorithm 1 over windows.

    Attributes:
        mean, std: the estimate, shape (K, windows, n_x).
        fusion_weight: shape (K, windows).
        contributions: what each sensor added, shape (K, rows, d). Private.
        observed: what g read, shape (K, windows, inputs).
    """

    mean: Float[Array, "K windows n_x"]
    std: Float[Array, "K windows n_x"]
    fusion_weight: Float[Array, "K windows"]
    contributions: Float[Array, "K rows d"]
    observed: Float[Array, "K windows inputs"]


def rollout(
    policy: Policy,
    windows: PackedWindows,
    noise: Float[Array, "K windows d"],
    exploration: Float[Array, "K windows"] | None = None,
) -> Rollout:
    """Algorithm 1 over every window.

    f's memory depends on no release, so its pass over time comes first. The loop through the releases then has the
    small networks alone. Both use the parts of the one step, with one exception: in total accounting, with a filter
    that is not guided, features are added up before the loop, as g f_1 + g f_2 = g (f_1 + f_2).
    """
    return close_loop(policy, encode_sensors(policy, windows), noise, exploration)


def encode_sensors(policy: Policy, windows: PackedWindows) -> SensorFeatures:
    """Filter outputs of every row and step."""
    stream = jnp.broadcast_to(windows.window, windows.present.shape)
    inputs, present = to_inputs(policy, Reports(windows.measurements, windows.present, windows.arrived, stream))
    encoded = policy.networks.recurrent_filter.over_time(inputs, present, windows.arrived)
    own = windows.window, windows.account_share, windows.skipped, windows.joined, windows.opened, windows.renewed
    return SensorFeatures(encoded, present, windows.arrived, *own, windows.public)


def sum_by_window(sensors: SensorFeatures, num_windows: int) -> SensorFeatures:
    """One row for each window, with the sum of its features: all that the loop needs where `Policy.is_summed`."""
    steps, _, dimension = sensors.encoded.shape
    total = jnp.zeros((steps, num_windows, dimension)).at[:, sensors.window].add(sensors.encoded, mode="drop")
    always = jnp.ones((steps, num_windows), bool)
    ones = jnp.ones(num_windows)
    own = jnp.arange(num_windows), ones, sensors.skipped, sensors.joined
    return SensorFeatures(total, always, ~always, *own, renewed=sensors.renewed, public=sensors.public)


def close_loop(
    policy: Policy,
    sensors: SensorFeatures,
    noise: Float[Array, "K windows d"],
    exploration: Float[Array, "K windows"] | None = None,
) -> Rollout:
    """The loop through the releases; `exploration` as in `choose_weight`."""
    is_summed = policy.is_summed
    rows = sum_by_window(sensors, noise.shape[1]) if is_summed else sensors

    def loop_step(
        carry: tuple[PublicCarry, Array, Array],
        now: tuple[Array, AnyArray, AnyArray, AnyArray, AnyArray, Array, Array, Array, Array | None],
    ) -> tuple[tuple[PublicCarry, Array, Array], tuple[Array, Array, Array, Array, Array]]:
        public, account, reader = carry
        encoded, present, arrived, opened, skipped, noise_now, explored, renewed, published = now
        public = renew_budget(policy, public, renewed)
        observed = observe(policy, public)
        public, (weight, readout) = make_query(policy, public, explored)
        if policy.is_clipped:
            weight = affordable_weight(policy, public, weight)
        weight, noise_now = jnp.where(skipped, 0.0, weight), jnp.where(skipped[:, None], 0.0, noise_now)
        if is_summed:
            contributions = weight[:, None] * encoded
            released = noise_now + contributions
        else:
            features = read_features(policy.networks.recurrent_filter, encoded, present, readout, rows.window)
            account = open_accounts(policy, account, arrived, opened)
            account, contributions = scale_contributions(policy, account, features, rows.window, weight)
            released = release(contributions, rows.window, noise_now)
        before = public
        public, result = estimate(policy, public, weight, released, skipped, published)
        if rows.joined is not None:
            reader = jnp.where((before.step_index == rows.joined)[:, None], 0.0, reader)
            own = before._replace(estimator_hidden=reader)
            read, joined = estimate(policy, own, weight, released, skipped, published)
            reader, has_joined = read.estimator_hidden, (before.step_index >= rows.joined)[:, None]
            result = Estimate(*(jnp.where(has_joined, *pair) for pair in zip(joined, result, strict=True)))
        return (public, account, reader), (*result, weight, contributions, observed)

    account = init_private(policy, len(rows.window)).account
    if policy.structure.is_private:
        account = account * rows.account_share
    steps = jnp.zeros(noise.shape[:2]) if exploration is None else exploration
    public = init_public(policy, noise.shape[1])
    start = public, account, public.estimator_hidden
    opened = rows.arrived if rows.opened is None else rows.opened
    by_step = rows.encoded, rows.present, rows.arrived, opened, jnp.asarray(rows.skipped), noise, steps
    renewed = jnp.zeros(noise.shape[:2]) if rows.renewed is None else jnp.asarray(rows.renewed)
    published = jnp.asarray(rows.public) if rows.public is not None and policy.structure.num_public else None
    _, result = jax.lax.scan(loop_step, start, (*by_step, renewed, published))
    mean, std, weight, contributions, observed = result
    if is_summed:
        own_weight = weight.at[:, sensors.window].get(mode="fill", fill_value=0.0)
        contributions = own_weight[..., None] * sensors.encoded
    return Rollout(mean, std, weight, contributions, observed)


def draw_noise(structure: Structure, windows: PackedWindows, key: PRNGKeyArray) -> Float[Array, "K windows d"]:
    """Noise for simulation; 0 for the non-private floor."""
    shape = (*windows.state.shape[:2], structure.dimension)
    return jax.random.normal(key, shape) if structure.is_private else jnp.zeros(shape)


def _held(data: Trajectories, at: tuple[Integers, Integers]) -> Floats32:
    """Values and ages of the public inputs, shape (K, windows, 2 n_p)."""
    assert data.public is not None and data.public_age is not None
    both = np.concatenate([data.public[at], data.public_age[at].astype(np.float32)], axis=-1)
    return np.ascontiguousarray(both.swapaxes(0, 1))


def cut(data: Trajectories, run: Integers, start: Integers, num_steps: int) -> PackedWindows:
    """The windows of `num_steps` that begin at step `start[i]` of run `run[i]`, without the slots that stay empty."""
    steps = start[:, None] + np.arange(num_steps)
    window, slot = np.nonzero(data.present[run[:, None], steps].any(axis=1))
    at = run[window], steps[window].T, slot
    sensors = data.sensors[at]
    arrived = np.zeros(sensors.shape, bool)
    arrived[1:] = sensors[1:] != sensors[:-1]
    measurements = data.measurements[at]
    if data.attributes is not None:
        measurements = np.concatenate([measurements, data.attributes.look_up(sensors)], axis=-1)
    return PackedWindows(
        state=np.ascontiguousarray(data.state[run[:, None], steps].swapaxes(0, 1)),
        public=None if data.public is None else _held(data, (run[:, None], steps)),
        measurements=measurements,
        present=data.present[at],
        arrived=arrived,
        window=window.astype(np.int32),
        account_share=np.ones(len(window), np.float32),
        skipped=np.zeros((num_steps, len(run)), bool),
    )


def wait_for_bank(
    windows: PackedWindows, epoch_steps: float, rng: np.random.Generator, *, has_begun: bool
) -> PackedWindows:
    """The windows of a centre that borrows from a bank: a sensor's first contribution waits one to two epochs.

    The sensor is claimed at the first boundary after it arrives, and what it may spend is lent at the boundary after
    that. All sensors of a window have the same boundaries, which are at random steps.

    Args:
        epoch_steps: steps from one boundary to the next.
        has_begun: whether the sensors at the first step have borrowed before; otherwise they wait too.
    """
    arrived = np.array(windows.arrived)
    arrived[0] = not has_begun
    row, step = np.nonzero(arrived.T)
    phase = rng.uniform(0, epoch_steps, windows.state.shape[1] + 1)[np.minimum(windows.window, windows.state.shape[1])]
    claimed = np.floor((step - phase[row]) / epoch_steps) + 1
    lent = np.ceil(phase[row] + (claimed + 1) * epoch_steps).astype(np.int64)
    leaves = np.full(len(step), len(arrived))
    leaves[:-1] = np.where(row[1:] == row[:-1], step[1:], leaves[:-1])
    opened = np.zeros(arrived.shape, bool)
    opened[lent[lent < leaves], row[lent < leaves]] = True
    share = windows.account_share if has_begun else np.zeros_like(windows.account_share)
    return windows._replace(opened=opened, account_share=share)


def pad_rows(windows: PackedWindows, num_rows: int) -> PackedWindows:
    """The same windows with empty rows up to `num_rows`, so that nothing is compiled for another shape."""
    padding = num_rows - len(windows.window)
    return windows._replace(
        measurements=np.pad(windows.measurements, ((0, 0), (0, padding), (0, 0))),
        present=np.pad(windows.present, ((0, 0), (0, padding))),
        arrived=np.pad(windows.arrived, ((0, 0), (0, padding))),
        window=np.pad(windows.window, (0, padding), constant_values=windows.state.shape[1]),
        account_share=np.pad(windows.account_share, (0, padding)),
        opened=None if windows.opened is None else np.pad(windows.opened, ((0, 0), (0, padding))),
    )
