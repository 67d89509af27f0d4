"""What g and E read of public inputs: the last value of each, and its age.

Held inputs have two numbers for each input: the value, NaN if it was never published, and its age in steps. A step
without a row has no inputs of its own: the last ones are one step older. So whoever reads the rows holds the same.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.policy import Policy
from dpfuse.public_inputs import NEVER

_LARGEST_POWER = 16.0


def init_held(policy: Policy, num_streams: int) -> Float[Array, "streams held"] | None:
    """Nothing was published yet; None for a design that reads no public inputs."""
    shape = num_streams, policy.structure.num_public
    return jnp.concatenate([jnp.full(shape, jnp.nan), jnp.full(shape, float(NEVER))], axis=-1) if shape[1] else None


def hold_inputs(
    before: Float[Array, "streams held"],
    given: Float[AnyArray, "streams held"] | None,
    skipped: Bool[Array, "streams 1"],
) -> Float[Array, "streams held"]:
    """The inputs of this step, or in a skipped step those before, one step older."""
    num_public = before.shape[-1] // 2
    values, ages = before[:, :num_public], before[:, num_public:]
    older = jnp.concatenate([values, jnp.minimum(ages + 1, float(NEVER))], axis=-1)
    return older if given is None else jnp.where(skipped, older, given)


def read_inputs(policy: Policy, held: Float[Array, "streams held"]) -> Float[Array, "streams held"]:
    """What networks read: values in [-1, 1], 0 for one that was never published, and ages in [0, 1], by powers of 2."""
    constants, num_public = policy.constants, policy.structure.num_public
    assert constants.public_low is not None and constants.public_high is not None  # the structure says so
    values, ages = held[:, :num_public], held[:, num_public:]
    low, high = (jnp.broadcast_to(bound, values.shape) for bound in (constants.public_low, constants.public_high))
    middle = (low + high) / 2
    known = jnp.where(jnp.isfinite(values), jnp.clip(values, low, high), middle)
    return jnp.concatenate([2 * (known - low) / (high - low) - 1, jnp.log2(1 + ages) / _LARGEST_POWER], axis=-1)
