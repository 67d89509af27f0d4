"""Cubic interpolation between evenly spaced nodes (cubic convolution, Keys 1981). It is linear in the values."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Edge = Literal["even", "free"]


def interpolate(
    values: Float[Array, "nodes ..."], position: Float[Array, "*points"], *, low: Edge = "even", high: Edge = "even"
) -> Array:
    """The values at each position, counted in nodes from 0, shape (*points, ...).

    Args:
        low, high: how the function continues beyond its first and last node: `even` as its mirror image, `free` along
            the parabola through the three nodes at that edge.
    """
    num_nodes = values.shape[0]
    before = values[1] if low == "even" else 3 * values[0] - 3 * values[1] + values[2]
    after = values[-2] if high == "even" else 3 * values[-1] - 3 * values[-2] + values[-3]
    padded = jnp.concatenate([before[None], values, after[None]])
    node = jnp.clip(jnp.floor(position).astype(int), 0, num_nodes - 2)
    t = position - node
    weights = (
        t * (-0.5 + t * (1 - 0.5 * t)),
        1 + t**2 * (1.5 * t - 2.5),
        t * (0.5 + t * (2 - 1.5 * t)),
        t**2 * (0.5 * t - 0.5),
    )
    rest = (1,) * (values.ndim - 1)
    return sum(
        (w.reshape(*position.shape, *rest) * padded[node + i] for i, w in enumerate(weights)),
        start=jnp.zeros((*position.shape, *values.shape[1:])),
    )


def weights_at(
    position: Float[Array, "*points"], num_nodes: int, *, low: Edge = "even", high: Edge = "even"
) -> Float[Array, "*points nodes"]:
    """The weight of each node in the value at each position."""
    return interpolate(jnp.asarray(np.eye(num_nodes)), position, low=low, high=high)
