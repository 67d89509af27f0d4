"""The best collection of release distributions for a given loss: {F(z | y = 0), F(z | y = 1)} over an alphabet.

Write M = (F(.|0) + F(.|1)) / 2 and F(z|1) = M(z) (1 + t_z), F(z|0) = M(z) (1 - t_z) with -1 < t_z < 1. Both
distributions add up to 1 if sum M = 1 and sum M t = 0, and the Rényi loss is at most L in both directions if

    sum M phi(t) <= exp((alpha - 1) L)  and  sum M phi(-t) <= the same,    phi(t) = (1 + t)^alpha (1 - t)^(1 - alpha).

The cost after symbol z is h(t_z) per unit of M, independent of the other symbols. So the whole cost is
sum M(z) h(t_z). **All of this is linear in M**: the best collection solves a linear programme over measures on (-1, 1)
with two equations and two inequalities. Such a programme has an optimum on at most four points. Hence no alphabet, not
even a continuous one, is better than four symbols.

**Four symbols.** The programme is solved on nodes of t, to a proven optimum among them. The nodes reach so far that a
collection within the loss has at most a millionth of its weight beyond them on either side (or to likelihood ratios of
e^32, for orders near 1). The error between the nodes is measured: `dpfuse.optimal.solve_general` compares with half as
many nodes.

**Two symbols.** The weight of one symbol determines t_0 and t_1 at the limit that the loss allows. The cost is
evaluated along these weights.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpfuse._arrays import Floats
from dpfuse.optimal.programme import minimise

NUM_SYMBOLS = (2, 4)

# Nodes of log F(z|1) / F(z|0) on either side of 0: evenly spaced up to that of randomised response, which is a node,
# and then in equal ratios.
_NEAR = 12
_FAR = 48
# The nodes end where a symbol of this weight alone would use up the loss.
_LEAST_WEIGHT = 1e-6
# Largest half log-ratio. Near 19, t is 1 in double precision.
_LARGEST = 16.0
# Weights of the second of two symbols that are tried, between 0 and 1.
_NUM_PLACES = 64
_BISECTIONS = 60
# The two distributions are mixed by this share, so that rounding keeps the loss within the charge.
_SAFETY = 1e-6


class Options(NamedTuple):
    """The possible symbols for each loss; losses are the first axis.

    Attributes:
        shift: t. Four symbols: of each node, shape (losses, nodes). Two symbols: of both, for each weight that is
            tried, shape (losses, places, 2).
        weight: two symbols only: M of both, shape (losses, places, 2).
        rows: four symbols only: the constraints on M, with two slack columns, scaled by `column`.
        column: four symbols only: the scale of each column.
    """

    shift: Array
    weight: Array
    rows: Array
    column: Array


def make_options(losses: Floats, order: float, num_symbols: int, *, coarseness: int = 1) -> Options:
    """The options for losses above 0, shape (losses,). Coarseness 2 keeps every second node."""
    empty = np.zeros((len(losses), 0))
    if num_symbols == 2:
        place = np.linspace(0, 1, _NUM_PLACES + 1)[coarseness:-1:coarseness]
        shift = _farthest(place, losses[:, None], order)
        weight = np.stack([1 - place, place], axis=1)
        return _on_device(shift, np.tile(weight, (len(losses), 1, 1)), empty, empty)
    unit = _farthest(np.array(0.5), losses, order)[:, 1:]
    allowed = np.expm1((order - 1) * losses)[:, None]
    shift = _nodes(unit, allowed, order)[:, ::coarseness]
    moments = [np.ones_like(shift), shift / unit, *(_excess(t, order) / allowed for t in (shift, -shift))]
    unused = np.broadcast_to(np.eye(4)[:, 2:], (len(losses), 4, 2))
    rows = np.concatenate([np.stack(moments, axis=1), unused], axis=2)
    column = 1 / np.maximum(np.abs(rows).max(axis=1), 1.0)
    return _on_device(shift, empty, rows * column[:, None], column)


def _nodes(unit: Floats, allowed: Floats, order: float) -> Floats:
    """The t of the nodes for each loss, from that of randomised response and the allowed excess of phi, (n, 1)."""
    half_ratio = np.minimum(np.arctanh(unit), _LARGEST)
    low, high = half_ratio, np.full_like(half_ratio, _LARGEST)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        is_within = _LEAST_WEIGHT * _excess(np.tanh(middle), order) <= allowed
        low, high = np.where(is_within, middle, low), np.where(is_within, high, middle)
    near = half_ratio * np.arange(1, _NEAR + 1) / _NEAR
    far = half_ratio * (low / half_ratio) ** (np.arange(1, _FAR + 1) / _FAR)
    right = np.tanh(np.concatenate([near, far], axis=1))
    return np.concatenate([-right[:, ::-1], np.zeros_like(unit), right], axis=1)


def _on_device(*arrays: Floats) -> Options:
    return Options(*map(jnp.asarray, arrays))


def _farthest(place: Floats, losses: Floats, order: float) -> Floats:
    """The t of two symbols of weights 1 - place and place, as far apart as the loss allows, shape (..., 2)."""
    place, losses = np.broadcast_arrays(place, losses)
    weight, direction = np.stack([1 - place, place], axis=-1), np.stack([-place, 1 - place], axis=-1)
    low, high = np.zeros(place.shape), 1 / np.maximum(place, 1 - place)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        shift = direction * middle[..., None]
        moments = [(weight * _excess(t, order)).sum(-1) for t in (shift, -shift)]
        is_allowed = np.maximum(*moments) <= np.expm1((order - 1) * losses)
        low, high = np.where(is_allowed, middle, low), np.where(is_allowed, high, middle)
    return np.asarray(direction * low[..., None])


def _excess(shift: Floats, order: float) -> Floats:
    """phi(t) minus its tangent at 0. The tangent is equal for all collections; without it small losses are accurate."""
    return np.asarray(np.expm1(order * np.log1p(shift) + (1 - order) * np.log1p(-shift)) - (2 * order - 1) * shift)


def best_cost(options: Options, worth: Array) -> tuple[Array, Array]:
    """The least cost at one loss, and its distance from a proven optimum; `worth` is h at every `shift`."""
    if options.shift.ndim == 2:
        return (options.weight * worth).sum(-1).min(), jnp.zeros(())
    weight, gap = _programme(options, worth)
    return worth @ weight, gap


def best_kernel(options: Options, worth: Array) -> Float[Array, "symbols 2"]:
    """F(z | y) of least cost, with exactly two or four symbols."""
    if options.shift.ndim == 2:
        place = (options.weight * worth).sum(-1).argmin()
        return _as_kernel(options.weight[place], options.weight[place] * options.shift[place])
    weight, _ = _programme(options, worth)
    # An optimum has four points. The solver leaves small weights elsewhere, which join the nearest of the four.
    centres = jnp.sort(jax.lax.top_k(weight, 4)[1])
    group = (jnp.arange(len(weight))[:, None] * 2 > centres[:-1] + centres[1:]).sum(1)
    members = jax.nn.one_hot(group, 4)
    return _as_kernel(weight @ members, (weight * options.shift) @ members)


def _as_kernel(weight: Array, shifted: Array) -> Float[Array, "symbols 2"]:
    kernel = jnp.stack([weight - shifted, weight + shifted], axis=1)
    kernel = kernel / kernel.sum(axis=0)
    return (1 - _SAFETY) * kernel + _SAFETY * kernel.mean(axis=1, keepdims=True)


def _programme(options: Options, worth: Array) -> tuple[Array, Array]:
    """The optimal M on the nodes, and the gap in units of cost."""
    # A term linear in t is equal for all collections. Without it, and scaled, the programme is well conditioned.
    middle = len(worth) // 2
    slope = (worth[middle + 1] - worth[middle - 1]) / (options.shift[middle + 1] - options.shift[middle - 1])
    bend = worth - worth[middle] - slope * options.shift
    cost = jnp.concatenate([bend, jnp.zeros(2)]) * options.column
    scale = jnp.maximum(jnp.abs(cost).max(), 1e-12)
    optimum = minimise(cost / scale, options.rows, jnp.asarray(np.array([1.0, 0.0, 1.0, 1.0])))
    return (optimum.x * options.column)[:-2], optimum.gap * scale
