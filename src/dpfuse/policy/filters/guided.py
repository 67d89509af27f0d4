"""The learned filter whose last layer follows past releases."""

from __future__ import annotations

from typing import ClassVar, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.filters.base import RecurrentFilter
from dpfuse.policy.filters.gru import INPUT_GAIN, make_gru_and_head
from dpfuse.policy.filters.sets import features_of_present
from dpfuse.policy.gru import GRU, bias_of, over_time
from dpfuse.policy.structure import AnyFeatures, Structure


class GuidedFilter(RecurrentFilter):
    """f: a GRU remembers the sensor's own history, and E's memory moves the layer that makes features of it.

        raw_i = (W + sum_j m_j V_j) (h_i, 1),

    where h_i is sensor i's own memory and m that of E, which is public. So sensors can encode what E does not yet know.
    """

    gru: GRU
    head: eqx.nn.Linear
    guide: Float[Array, "e d h+1"]
    features: AnyFeatures = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)
    is_guided: ClassVar[bool] = True

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        self.gru, self.head = make_gru_and_head(structure, key)
        # No guidance at first: the memory of an untrained E means nothing.
        self.guide = jnp.zeros((structure.estimator_size, structure.dimension, structure.filter_size + 1))
        self.features, self.hidden_size = structure.features, structure.filter_size

    def with_inputs_scaled(self, mean: AnyArray, std: AnyArray) -> GuidedFilter:
        gru = self.gru.with_inputs_scaled(mean, std / INPUT_GAIN)
        return cast(GuidedFilter, eqx.tree_at(lambda f: f.gru, self, gru))

    def step(
        self, hidden: AnyArray, inputs: AnyArray, present: AnyArray, arrived: AnyArray
    ) -> tuple[Float[Array, "rows h"], Float[Array, "rows h"]]:
        memory = self.gru.advance_present(hidden.T, inputs.T, present, arrived)
        return memory.T, memory.T

    def over_time(self, inputs: Array, present: Array, arrived: AnyArray) -> Float[Array, "K rows h"]:
        memory = over_time(self.gru, jnp.swapaxes(inputs, 1, 2), present, jnp.asarray(arrived))
        return jnp.swapaxes(memory, -1, -2)

    def make_readout(self, estimator_hidden: Float[Array, "streams e"]) -> Float[Array, "streams d h+1"]:
        own = jnp.concatenate([self.head.weight, bias_of(self.head).T], axis=1)
        return own[None] + jnp.einsum("se,edh->sdh", estimator_hidden, self.guide)

    def read(
        self, encoded: Float[Array, "rows h"], present: Bool[AnyArray, " rows"], readout: Float[Array, "rows d h+1"]
    ) -> Float[Array, "rows d"]:
        raw = jnp.einsum("rdh,rh->rd", readout[..., :-1], encoded) + readout[..., -1]
        return features_of_present(self.features, raw, present)
