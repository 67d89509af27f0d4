"""Algorithm 1 over whole recordings: many windows at once, without the slots that are empty throughout."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from dpfuse._arrays import Integers
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.filters import read_features
from dpfuse.policy.policy import Policy
from dpfuse.policy.step import (
    PublicCarry,
    Reports,
    estimate,
    init_private,
    init_public,
    make_query,
    observe,
    open_accounts,
    release,
    scale_contributions,
    to_inputs,
)
from dpfuse.policy.structure import Structure
from dpfuse.types import Trajectories


class PackedWindows(NamedTuple):
    """Windows of recordings: time first, then the sensors of all windows as rows.

    Attributes:
        state: shape (K, windows, n_x).
        measurements: shape (K, rows, n_y).
        present, arrived: as in `Reports`, shape (K, rows); no row has arrived at the first step.
        window: number of the row's window; a row that pads the shape has a number past the last.
        account_share: the share of its budget that the row's first sensor has at the first step.
    """

    state: Float[AnyArray, "K windows n_x"]
    measurements: Float[AnyArray, "K rows n_y"]
    present: Bool[AnyArray, "K rows"]
    arrived: Bool[AnyArray, "K rows"]
    window: Int[AnyArray, " rows"]
    account_share: Float[AnyArray, " rows"]


class SensorFeatures(NamedTuple):
    """Filter outputs that do not depend on releases.

    Attributes:
        encoded: what `RecurrentFilter.over_time` gives: the features or, for a guided filter, what these are made of.
        present, arrived, window, account_share: as in `PackedWindows`; a report that is not finite is not present.
    """

    encoded: Float[Array, "K rows n"]
    present: Bool[AnyArray, "K rows"]
    arrived: Bool[AnyArray, "K rows"]
    window: Int[AnyArray, " rows"]
    account_share: Float[AnyArray, " rows"]


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
    return SensorFeatures(encoded, present, windows.arrived, windows.window, windows.account_share)


def sum_by_window(sensors: SensorFeatures, num_windows: int) -> SensorFeatures:
    """One row for each window, with the sum of its features: all that the loop needs where `Policy.is_summed`."""
    steps, _, dimension = sensors.encoded.shape
    total = jnp.zeros((steps, num_windows, dimension)).at[:, sensors.window].add(sensors.encoded, mode="drop")
    always = jnp.ones((steps, num_windows), bool)
    return SensorFeatures(total, always, ~always, jnp.arange(num_windows), jnp.ones(num_windows))


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
        carry: tuple[PublicCarry, Array], now: tuple[Array, AnyArray, AnyArray, Array, Array]
    ) -> tuple[tuple[PublicCarry, Array], tuple[Array, Array, Array, Array, Array]]:
        public, account = carry
        encoded, present, arrived, noise_now, explored = now
        observed = observe(policy, public)
        public, (weight, readout) = make_query(policy, public, explored)
        if is_summed:
            contributions = weight[:, None] * encoded
            released = noise_now + contributions
        else:
            features = read_features(policy.networks.recurrent_filter, encoded, present, readout, rows.window)
            account = open_accounts(policy, account, arrived)
            account, contributions = scale_contributions(policy, account, features, rows.window, weight)
            released = release(contributions, rows.window, noise_now)
        public, (mean, std) = estimate(policy, public, weight, released)
        return (public, account), (mean, std, weight, contributions, observed)

    account = init_private(policy, len(rows.window)).account
    if policy.structure.is_private:
        account = account * rows.account_share
    steps = jnp.zeros(noise.shape[:2]) if exploration is None else exploration
    start = init_public(policy, noise.shape[1]), account
    _, result = jax.lax.scan(loop_step, start, (rows.encoded, rows.present, rows.arrived, noise, steps))
    mean, std, weight, contributions, observed = result
    if is_summed:
        own_weight = weight.at[:, sensors.window].get(mode="fill", fill_value=0.0)
        contributions = own_weight[..., None] * sensors.encoded
    return Rollout(mean, std, weight, contributions, observed)


def draw_noise(structure: Structure, windows: PackedWindows, key: PRNGKeyArray) -> Float[Array, "K windows d"]:
    """Noise for simulation; 0 for the non-private floor."""
    shape = (*windows.state.shape[:2], structure.dimension)
    return jax.random.normal(key, shape) if structure.is_private else jnp.zeros(shape)


def cut(data: Trajectories, run: Integers, start: Integers, num_steps: int) -> PackedWindows:
    """The windows of `num_steps` that begin at step `start[i]` of run `run[i]`, without the slots that stay empty."""
    steps = start[:, None] + np.arange(num_steps)
    window, slot = np.nonzero(data.present[run[:, None], steps].any(axis=1))
    at = run[window], steps[window].T, slot
    sensors = data.sensors[at]
    arrived = np.zeros(sensors.shape, bool)
    arrived[1:] = sensors[1:] != sensors[:-1]
    return PackedWindows(
        state=np.ascontiguousarray(data.state[run[:, None], steps].swapaxes(0, 1)),
        measurements=data.measurements[at],
        present=data.present[at],
        arrived=arrived,
        window=window.astype(np.int32),
        account_share=np.ones(len(window), np.float32),
    )


def pad_rows(windows: PackedWindows, num_rows: int) -> PackedWindows:
    """The same windows with empty rows up to `num_rows`, so that nothing is compiled for another shape."""
    padding = num_rows - len(windows.window)
    return windows._replace(
        measurements=np.pad(windows.measurements, ((0, 0), (0, padding), (0, 0))),
        present=np.pad(windows.present, ((0, 0), (0, padding))),
        arrived=np.pad(windows.arrived, ((0, 0), (0, padding))),
        window=np.pad(windows.window, (0, padding), constant_values=windows.state.shape[1]),
        account_share=np.pad(windows.account_share, (0, padding)),
    )
