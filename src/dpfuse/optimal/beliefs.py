"""Beliefs as angles: a grid over all distributions of the state on which smooth functions are easy to interpolate.

A belief b over S states is given by S - 1 angles from 0 to pi / 2, the polar coordinates of the square roots of b:

    tan(angle_j)^2 = (b_{j+1} + ... + b_{S-1}) / b_j,    j = 0, ..., S - 2

For two states this is b_1 = sin(angle)^2. A smooth function of b is an even function of each angle at both its ends, so
cubic interpolation between evenly spaced angles (`dpfuse.optimal.interpolation`) keeps its order up to the edges. Nodes
lie closest together where a state is nearly certain or nearly excluded, where costs bend most.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpfuse._arrays import Floats
from dpfuse.optimal.interpolation import weights_at
from dpfuse.optimal.problem import Problem


def nodes_of_belief(num_beliefs: int, num_states: int) -> Float[Array, "nodes S"]:
    """Beliefs at all combinations of `num_beliefs` evenly spaced angles; the last angle varies fastest."""
    beyond = jnp.sin(jnp.linspace(0, jnp.pi / 2, num_beliefs)) ** 2
    rest, parts = jnp.ones((num_beliefs,) * (num_states - 1)), []
    for share in jnp.meshgrid(*[beyond] * (num_states - 1), indexing="ij"):
        parts.append(rest * (1 - share))
        rest = rest * share
    return jnp.stack([*parts, rest], axis=-1).reshape(-1, num_states)


def position(belief: Any, num_beliefs: int) -> Any:
    """The place among the nodes of each angle, counted from 0, shape (..., S - 1).

    Args:
        belief: shape (..., S), a NumPy or JAX array; it need not add up to 1.
        num_beliefs: nodes of each angle.
    """
    xp = jnp if isinstance(belief, Array) else np
    beyond = xp.cumsum(belief[..., ::-1], axis=-1)[..., -2::-1]
    return xp.arctan2(xp.sqrt(beyond), xp.sqrt(belief[..., :-1])) * (2 / np.pi) * (num_beliefs - 1)


def weights_by_angle(belief: Float[Array, "*points S"], num_beliefs: int) -> list[Float[Array, "*points angles"]]:
    """For each angle, the weights of its nodes in the value at each belief. The weight of a node is their product."""
    place = position(belief, num_beliefs)
    return [weights_at(place[..., j], num_beliefs) for j in range(place.shape[-1])]


def weights_of_nodes(belief: Float[Array, "*points S"], num_beliefs: int) -> Float[Array, "*points nodes"]:
    """The weight of each node in the value at each belief."""
    first, *others = weights_by_angle(belief, num_beliefs)
    return product(first, others)


def product(first: Array, others: list[Array]) -> Array:
    """The products of all combinations of entries along the last axes; the last factor varies fastest."""
    for other in others:
        first = (first[..., :, None] * other[..., None, :]).reshape(*first.shape[:-1], -1)
    return first


def at_prior(problem: Problem, value: Floats | Array, num_beliefs: int) -> float:
    """The value at the prior, interpolated between the nodes of belief."""
    return float(weights_of_nodes(jnp.asarray(problem.prior), num_beliefs) @ jnp.asarray(value))


def mean_of_state(belief: Any) -> Any:
    """The expected number of the state, for each belief of shape (..., S)."""
    return belief @ np.arange(belief.shape[-1], dtype=np.float64)


def variance_of_state(belief: Any) -> Any:
    """The variance of the number of the state, for each belief of shape (..., S)."""
    number = np.arange(belief.shape[-1], dtype=np.float64)
    # Summed over pairs of states, all terms are non-negative, so nothing cancels near certainty.
    return (belief * (belief @ (number[:, None] - number) ** 2)).sum(-1) / 2
