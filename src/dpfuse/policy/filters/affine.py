"""The filter that learns and remembers nothing: the measurement itself."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.filters.base import RecurrentFilter
from dpfuse.policy.structure import Structure


class AffineFilter(RecurrentFilter):
    """f fixed: the measurement, mapped from its range to [0, 1]; a missing channel counts as the training mean."""

    num_channels: int = eqx.field(static=True)
    hidden_size: int = eqx.field(static=True)

    def __init__(self, structure: Structure, *, key: PRNGKeyArray) -> None:
        if (structure.features, structure.dimension) != ("box", structure.num_channels):
            raise ValueError(
                f"recurrent_filter='affine' must have features='box' and dimension={structure.num_channels} (one for "
                f"each measurement channel), got {structure.features!r} and {structure.dimension}"
            )
        self.num_channels, self.hidden_size = structure.num_channels, 0

    def step(
        self, hidden: AnyArray, inputs: AnyArray, present: AnyArray, arrived: AnyArray
    ) -> tuple[Float[Array, "rows h"], Float[Array, "rows d"]]:
        return jnp.asarray(hidden), self.over_time(inputs, present, arrived)

    def over_time(self, inputs: AnyArray, present: AnyArray, arrived: AnyArray) -> Float[Array, "*rows d"]:
        return jnp.where(present[..., None], (inputs[..., : self.num_channels] + 1) / 2, 0.0)
