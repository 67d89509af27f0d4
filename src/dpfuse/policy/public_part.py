"""The public part of a live step: E at one compiled shape, so that everybody who reads the rows gets the same bits.

Compiled together with other code or at another shape, E may differ in the last bit. So `estimate_block` is compiled
alone and for `ESTIMATE_ROWS` streams, at the centre (`dpfuse.policy.exact`) and in the remote estimator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse.policy.policy import Policy
from dpfuse.policy.step import Estimate, PublicCarry, Query, estimate, make_query
from dpfuse.privacy.budget import GRID

ESTIMATE_ROWS = 16
"""Streams whose estimates are computed at once; fewer are padded, more are computed in several turns."""


def to_block(
    weights: Integers, values: Integers, skipped: Booleans | bool = False, inputs: Floats32 | None = None
) -> Floats32:
    """What `estimate_block` reads of each stream.

    One block for all inputs: to pass one more array to JAX takes as long as a matrix product.

    Args:
        weights, values: as released, shapes (streams,) and (streams, d).
        skipped: streams without a release.
        inputs: public inputs, values and ages, shape (streams, 2 n_p), for a design that reads some.
    """
    num_streams, dimension = values.shape
    block = np.empty((num_streams, dimension + 2 + (0 if inputs is None else inputs.shape[1])), np.float32)
    block[:, 0] = weights / GRID
    block[:, 1] = skipped
    block[:, 2 : dimension + 2] = values / GRID
    if inputs is not None:
        block[:, dimension + 2 :] = inputs
    return block


def estimate_block(
    policy: Policy, public: PublicCarry, block: Float[Array, "streams columns"]
) -> tuple[PublicCarry, Estimate]:
    """`estimate` from a block of `to_block`."""
    first_input = policy.structure.dimension + 2
    published = block[:, first_input:] if policy.structure.num_public else None
    return estimate(policy, public, block[:, 0], block[:, 2:first_input], block[:, 1] > 0, published)


def compile_estimate(policy: Policy) -> Callable[[PublicCarry, Any], tuple[PublicCarry, Estimate]]:
    """`estimate_block`, compiled alone; to be called for `ESTIMATE_ROWS` streams."""
    return jax.jit(partial(estimate_block, policy))


def compile_skip(policy: Policy) -> Callable[[PublicCarry, Any, int], PublicCarry]:
    """Many steps of `estimate_block` with the same block, of skipped steps, in one loop."""

    def skip(public: PublicCarry, block: Array, num_steps: Array) -> PublicCarry:
        after: PublicCarry = jax.lax.fori_loop(
            0, num_steps, lambda _, carry: estimate_block(policy, carry, block)[0], public
        )
        return after

    return jax.jit(skip)


def split_streams(public: PublicCarry, block: Float[Array, "streams columns"]) -> list[tuple[PublicCarry, Array]]:
    """Carry and block of `ESTIMATE_ROWS` streams at a time, the last ones padded with zeros."""
    num_turns = -(-len(block) // ESTIMATE_ROWS)
    padding = num_turns * ESTIMATE_ROWS - len(block)

    def take(turn: int, leaf: Array) -> Array:
        if leaf.ndim == 0:
            return leaf
        padded = jnp.pad(leaf, [(0, padding)] + [(0, 0)] * (leaf.ndim - 1))
        return padded[turn * ESTIMATE_ROWS : (turn + 1) * ESTIMATE_ROWS]

    return [jax.tree.map(partial(take, turn), (public, block)) for turn in range(num_turns)]


def join_and_query(
    policy: Policy, num_streams: int, estimated: Sequence[tuple[PublicCarry, Estimate]]
) -> tuple[PublicCarry, Query, Estimate]:
    """Carry and estimates of all streams, from those of their turns, and the next query."""

    def join(*parts: Array) -> Array:
        return parts[0] if parts[0].ndim == 0 else jnp.concatenate(parts)[:num_streams]

    public, result = jax.tree.map(join, *estimated)
    public, query = make_query(policy, public)
    return public, query, result
