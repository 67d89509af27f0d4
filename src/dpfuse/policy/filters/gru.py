"""The learned filter of the paper: a GRU remembers the sensor's history, a linear layer makes features of it."""

from __future__ import annotations

from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.filters.base import RecurrentFilter
from dpfuse.policy.filters.sets import features_of_present
from dpfuse.policy.gru import GRU, bias_of, over_time
from dpfuse.policy.structure import AnyFeatures, Structure

_HEAD_GAIN = 3.0
# Standard deviation of the scaled inputs. With less, memories of different inputs start too much alike.
INPUT_GAIN = 3.0


class GRUFilter(RecurrentFilter):
    """f: features of each sensor's own history, raw_i = W (h_i, 1), carried into the feature set."""

    gru: GRU
    head: eqx.nn.Linear
    features: AnyFeatures = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        self.gru, self.head = make_gru_and_head(structure, key)
        self.features, self.hidden_size = structure.features, structure.filter_size

    def with_inputs_scaled(self, mean: AnyArray, std: AnyArray) -> GRUFilter:
        gru = self.gru.with_inputs_scaled(mean, std / INPUT_GAIN)
        return cast(GRUFilter, eqx.tree_at(lambda f: f.gru, self, gru))

    def step(
        self, hidden: AnyArray, inputs: AnyArray, present: AnyArray, arrived: AnyArray
    ) -> tuple[Float[Array, "rows h"], Float[Array, "rows d"]]:
        memory = self.gru.advance_present(hidden.T, inputs.T, present, arrived)
        return memory.T, self._encode(memory, present)

    def over_time(self, inputs: Array, present: Array, arrived: AnyArray) -> Float[Array, "K rows d"]:
        return self._encode(over_time(self.gru, jnp.swapaxes(inputs, 1, 2), present, jnp.asarray(arrived)), present)

    def _encode(
        self, memory: Float[Array, "*steps h rows"], present: Bool[AnyArray, "*steps rows"]
    ) -> Float[Array, "*steps rows d"]:
        raw = jnp.einsum("...hr,dh->...rd", memory, self.head.weight)
        raw = raw + jnp.broadcast_to(bias_of(self.head), raw.shape)
        return features_of_present(self.features, raw, present)


def make_gru_and_head(structure: Structure, key: PRNGKeyArray) -> tuple[GRU, eqx.nn.Linear]:
    """A GRU for measurements, and the linear layer from its memory to the features."""
    gru_key, head_key = jax.random.split(key)
    gru = GRU(structure.num_filter_inputs, structure.filter_size, key=gru_key)
    head = eqx.nn.Linear(structure.filter_size, structure.dimension, key=head_key)
    # Features that start near 0 are lost in the noise, and training takes long to enlarge them.
    return gru, eqx.tree_at(lambda h: h.weight, head, _HEAD_GAIN * head.weight)
