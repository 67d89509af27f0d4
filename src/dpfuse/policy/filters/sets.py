"""Map any numbers into the feature set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.structure import AnyFeatures

# Rounding in float32 must not carry a feature out of its set: integer code counts what is outside as 0.
_INSIDE = 1 - 2.0**-20


def into_set(features: AnyFeatures, raw: Float[Array, "*rows d"]) -> Float[Array, "*rows d"]:
    """The rows mapped smoothly into the feature set."""
    if features == "unbounded":
        return raw
    if features == "box":
        return jax.nn.sigmoid(raw)
    vector = jax.nn.softplus(raw) if features == "orthant" else raw
    # Divide by the largest entry first: a square of 1e20 would overflow.
    size = 1 + jnp.max(jnp.abs(vector), axis=-1, keepdims=True)
    inner = vector / size
    return _INSIDE * inner / jnp.sqrt(1 / size**2 + jnp.sum(inner**2, axis=-1, keepdims=True))


def features_of_present(
    features: AnyFeatures, raw: Float[Array, "*rows d"], present: Bool[AnyArray, "*rows"]
) -> Float[Array, "*rows d"]:
    """The rows mapped into the feature set, 0 for those that are not present."""
    return jnp.where(present[..., None], into_set(features, raw), 0.0)
