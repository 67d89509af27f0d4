"""Linear programmes, min c.x with A x = b and x >= 0, for few rows and many columns, in batches.

This is Mehrotra's predictor-corrector method with a fixed number of iterations and no branches, so that `jax.vmap` runs
it on batches. As there are few rows, the Cholesky factor of the normal equations is written out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_STEP_BACK = 0.995
_RIDGE = 1e-15
_DONE = 1e-9
_TINY = 1e-30


class Optimum(NamedTuple):
    """A solution and its distance from a proven optimum.

    Attributes:
        x: the solution, shape (columns,).
        gap: the largest violation of the optimality conditions x.s = 0, A x = b and c = A'y + s, where x, s >= 0.
    """

    x: Float[Array, " columns"]
    gap: Float[Array, ""]


def minimise(
    c: Float[Array, " columns"],
    matrix: Float[Array, "rows columns"],
    b: Float[Array, " rows"],
    num_iterations: int = 25,
) -> Optimum:
    """The optimum of one programme whose entries are of order 1. Use `jax.vmap` for many."""

    def iterate(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        x, y, s = carry
        short, dual = b - matrix @ x, c - matrix.T @ y - s
        ratio = x / s
        factor = _cholesky((matrix * ratio) @ matrix.T)

        def direction(centre: Array) -> tuple[Array, Array, Array]:
            """The Newton step towards x s = centre."""
            right = short + matrix @ (ratio * dual - centre / s + x)
            dy = _solve(factor, right)
            ds = dual - matrix.T @ dy
            return centre / s - x - ratio * ds, dy, ds

        dx, dy, ds = direction(jnp.zeros_like(x))
        mean = x @ s / len(x)
        ahead = (x + _longest(x, dx) * dx) @ (s + _longest(s, ds) * ds) / len(x)
        dx, dy, ds = direction((ahead / mean) ** 3 * mean - dx * ds)
        along_x, along_s = _STEP_BACK * _longest(x, dx), _STEP_BACK * _longest(s, ds)
        moved = x + along_x * dx, y + along_s * dy, s + along_s * ds
        # After convergence the normal equations hold rounding errors only.
        is_done = jnp.maximum(mean * len(x), jnp.abs(short).max()) < _DONE
        return jax.tree.map(lambda old, new: jnp.where(is_done, old, new), carry, moved), None

    start = jnp.full_like(c, 1 / len(c)), jnp.zeros_like(b), jnp.ones_like(c)
    (x, y, s), _ = jax.lax.scan(iterate, start, None, length=num_iterations)
    missing = [x @ s, jnp.abs(matrix @ x - b).max(), jnp.abs(c - matrix.T @ y - s).max()]
    return Optimum(x, jnp.stack(missing).max())


def _longest(value: Array, change: Array) -> Array:
    """The longest step along `change`, at most 1, that keeps every entry non-negative."""
    return jnp.minimum(1.0, jnp.min(jnp.where(change < 0, -value / jnp.where(change < 0, change, -1.0), jnp.inf)))


def _cholesky(normal: Float[Array, "rows rows"]) -> list[list[Array]]:
    size = normal.shape[0]
    factor: list[list[Array]] = []
    for i in range(size):
        row: list[Array] = []
        for j in range(i):
            known = sum((row[k] * factor[j][k] for k in range(j)), start=jnp.zeros(()))
            row.append((normal[i, j] - known) / factor[j][j])
        diagonal = normal[i, i] - sum((entry**2 for entry in row), start=jnp.zeros(()))
        row.append(jnp.sqrt(jnp.maximum(diagonal, _RIDGE * normal[i, i] + _TINY)))
        factor.append(row)
    return factor


def _solve(factor: list[list[Array]], right: Float[Array, " rows"]) -> Float[Array, " rows"]:
    size = len(factor)
    forward: list[Array] = []
    for i in range(size):
        known = sum((factor[i][k] * forward[k] for k in range(i)), start=jnp.zeros(()))
        forward.append((right[i] - known) / factor[i][i])
    result = [right[0]] * size
    for i in reversed(range(size)):
        known = sum((factor[k][i] * result[k] for k in range(i + 1, size)), start=jnp.zeros(()))
        result[i] = (forward[i] - known) / factor[i][i]
    return jnp.stack(result)
