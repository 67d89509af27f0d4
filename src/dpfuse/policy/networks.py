"""The three learned parts of Algorithm 1: recurrent filter f, fusion weight g and estimator E.

Each works on rows: a row is a sensor for f, a stream for g and E, and no row ever sees another.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpfuse.policy.gru import GRU, over_time
from dpfuse.policy.structure import AnyFeatures, Structure

# What comes in may be NumPy's; JAX takes it as it is.
AnyArray = Array | np.ndarray

# The last layer of f for each stream: its weights, and behind them its bias.
Readout = Float[Array, "streams d h+1"]

# Rounding in float32 must not carry a feature out of its set: what is outside in integers counts for nothing.
_INSIDE = 1 - 2.0**-20
_HEAD_GAIN = 3.0


class RecurrentFilter(eqx.Module):
    """f: each sensor's own history, guided by past releases or not, as features in the feature set.

    A GRU remembers the history, and a linear layer, the readout, tells what of it counts. A guided filter moves the
    readout with E's memory of past releases: with what is known already, sensors can speak of what is not,

        raw_i = (W + sum_j m_j V_j) (h_i, 1),

    where h_i is sensor i's own memory and m that of E, which is public.
    """

    gru: GRU
    head: eqx.nn.Linear
    guide: Float[Array, "e d h+1"] | None
    features: AnyFeatures = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray):
        gru_key, head_key = jax.random.split(key)
        self.gru = GRU(structure.num_channels, structure.filter_size, key=gru_key)
        head = eqx.nn.Linear(structure.filter_size, structure.dimension, key=head_key)
        # Features that start out near 0 say nothing over the noise, and training takes long to find them.
        self.head = eqx.tree_at(lambda h: h.weight, head, _HEAD_GAIN * head.weight)
        # No guidance to begin with: what E remembers means nothing yet.
        shape = structure.estimator_size, structure.dimension, structure.filter_size + 1
        self.guide = jnp.zeros(shape) if structure.is_guided else None
        self.features = structure.features

    @property
    def hidden_size(self) -> int:
        return self.gru.hidden_size

    def readout(self, known: Float[Array, "streams e"]) -> Readout | None:
        """What each stream's sensors are asked about, given E's memory; None if that is always the same."""
        if self.guide is None:
            return None
        own = jnp.concatenate([self.head.weight, _bias(self.head).T], axis=1)
        return own[None] + jnp.einsum("se,edh->sdh", known, self.guide)

    def step(
        self, hidden: Array, inputs: Array, present: Array, arrived: AnyArray, readout: Readout | None, stream: AnyArray
    ) -> tuple[Array, Array]:
        """Memory and features of each row after one more step; a row without input keeps its memory and has 0."""
        before = jnp.where(arrived[None], 0.0, hidden.T)  # in columns, see `dpfuse.policy.gru`
        after = jnp.where(present[None], self.gru.advance(before, inputs.T), before)
        return after.T, self.read(self._encode(after, present), present, readout, stream)

    def over_time(self, inputs: Array, present: Array, arrived: AnyArray) -> Float[Array, "K rows n"]:
        """What `read` needs of every step, from fresh memory: the features, or the memory where these are guided."""
        memory = over_time(self.gru, jnp.swapaxes(inputs, 1, 2), present, jnp.asarray(arrived))
        return self._encode(memory, present)

    def _encode(
        self, memory: Float[Array, "*steps h rows"], present: Bool[Array, "*steps rows"]
    ) -> Float[Array, "*steps rows n"]:
        if self.guide is not None:
            return jnp.swapaxes(memory, -1, -2)
        raw = jnp.einsum("...hr,dh->...rd", memory, self.head.weight)
        return self._features(raw + jnp.broadcast_to(_bias(self.head), raw.shape), present)

    def read(
        self, encoded: Float[Array, "rows n"], present: AnyArray, readout: Readout | None, stream: AnyArray
    ) -> Float[Array, "rows d"]:
        """The features of each row in one step."""
        if readout is None:
            return encoded
        own = readout.at[stream].get(mode="fill", fill_value=0.0)
        return self._features(jnp.einsum("rdh,rh->rd", own[..., :-1], encoded) + own[..., -1], present)

    def _features(self, raw: Float[Array, "*steps rows d"], present: AnyArray) -> Float[Array, "*steps rows d"]:
        return jnp.where(present[..., None], into_set(self.features, raw), 0.0)


class AffineFilter(eqx.Module):
    """f fixed: the measurement itself, mapped from its range to [0, 1]; nothing to learn or remember."""

    hidden_size: int = eqx.field(static=True, default=1)

    def readout(self, known: Array) -> None:
        return None

    def step(
        self, hidden: Array, inputs: Array, present: Array, arrived: AnyArray, readout: Readout | None, stream: AnyArray
    ) -> tuple[Array, Array]:
        return hidden, self.over_time(inputs, present, arrived)

    def over_time(self, inputs: Array, present: Array, arrived: AnyArray) -> Float[Array, "*rows d"]:
        return jnp.where(present[..., None], (inputs + 1) / 2, 0.0)

    def read(self, encoded: Array, present: AnyArray, readout: Readout | None, stream: AnyArray) -> Array:
        return encoded


def into_set(features: AnyFeatures, raw: Float[Array, "*rows d"]) -> Float[Array, "*rows d"]:
    """The rows carried smoothly into the feature set."""
    if features == "unbounded":
        return raw
    if features == "box":
        return jax.nn.sigmoid(raw)
    vector = jax.nn.softplus(raw) if features == "orthant" else raw
    # Divide by the largest entry first: a square of 1e20 would overflow.
    size = 1 + jnp.max(jnp.abs(vector), axis=-1, keepdims=True)
    inner = vector / size
    return _INSIDE * inner / jnp.sqrt(1 / size**2 + jnp.sum(inner**2, axis=-1, keepdims=True))


class FusionWeight(eqx.Module):
    """g: how far to depart from even spending, in log-odds, from public information alone.

    The departure is 0 for `constant`, a number for each step for `schedule`, and for `adaptive` what a GRU makes of
    past releases; each starts at 0, that is at even spending.
    """

    by_step: Float[Array, " horizon"] | None
    gru: GRU | None
    head: eqx.nn.Linear | None

    def __init__(self, structure: Structure, *, key: PRNGKeyArray):
        self.by_step = self.gru = self.head = None
        if structure.spending != "constant" and structure.horizon is not None:
            self.by_step = jnp.zeros(structure.horizon)
        if structure.spending == "adaptive":
            gru_key, head_key = jax.random.split(key)
            # It reads the last release, its reliability, the last estimate with its spread, clock and budget left.
            num_inputs = structure.dimension + 1 + 2 * structure.num_states + 2
            self.gru = GRU(num_inputs, structure.fusion_size, key=gru_key)
            head = eqx.nn.Linear(structure.fusion_size, 1, key=head_key)
            self.head = eqx.tree_at(lambda h: (h.weight, h.bias), head, replace_fn=jnp.zeros_like)

    def __call__(
        self, hidden: Float[Array, "streams h"], inputs: Float[Array, "streams n"], step_index: Array
    ) -> tuple[Float[Array, "streams h"], Float[Array, " streams"]]:
        departure = jnp.zeros(inputs.shape[0])
        if self.by_step is not None:
            departure = departure + self.by_step[step_index]
        if self.gru is not None and self.head is not None:
            hidden = self.gru(hidden, inputs)
            departure = departure + (hidden @ self.head.weight.T + _bias(self.head))[:, 0]
        return hidden, departure


class Estimator(eqx.Module):
    """E: mean and standard deviation of the state, in standard units, from the releases so far."""

    gru: GRU
    mean_head: eqx.nn.Linear
    spread_head: eqx.nn.Linear

    def __init__(self, structure: Structure, *, key: PRNGKeyArray):
        gru_key, mean_key, spread_key = jax.random.split(key, 3)
        # It reads the release, the release weighted by its reliability, the reliability, clock and budget left.
        self.gru = GRU(2 * structure.dimension + 3, structure.estimator_size, key=gru_key)
        self.mean_head = eqx.nn.Linear(structure.estimator_size, structure.num_states, key=mean_key)
        self.spread_head = eqx.nn.Linear(structure.estimator_size, structure.num_states, key=spread_key)

    def __call__(
        self, hidden: Float[Array, "streams h"], inputs: Float[Array, "streams n"]
    ) -> tuple[Float[Array, "streams h"], Float[Array, "streams x"], Float[Array, "streams x"]]:
        hidden = self.gru(hidden, inputs)
        mean = hidden @ self.mean_head.weight.T + _bias(self.mean_head)
        # The spread learns from the mean's errors without bending the mean.
        raw = jax.lax.stop_gradient(hidden) @ self.spread_head.weight.T + _bias(self.spread_head)
        return hidden, mean, jax.nn.softplus(raw) + 1e-3


def _bias(layer: eqx.nn.Linear) -> Array:
    assert layer.bias is not None  # all of ours have one
    return layer.bias[None]
