"""The search for the worst canary of a design: hand-made trajectories, then gradient ascent on the reach through f.

The reach of a pair of trajectories is the squared distance between the sums of the two worlds,

    sum_k |c_k - c'_k|^2,    c_k = g_k f(own measurements up to k),

as a share of 2 B / alpha. It depends on past releases through g_k, a guided f and, in individual accounting, accounts.
So it is averaged over some runs with simulated noise. Trajectories stay inside the measurement range of the design.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from dpfuse._arrays import Floats32
from dpfuse.audit.worlds import CANARY, OTHERS, Canary, make_attributes, make_inputs, measurement_range, other_reports
from dpfuse.policy.array_tree import AnyArray
from dpfuse.policy.design import Design
from dpfuse.policy.policy import Policy
from dpfuse.policy.step import (
    PrivateCarry,
    PublicCarry,
    Reports,
    contribute,
    estimate,
    init_private,
    init_public,
    make_query,
    release,
)

# The features of a guided f depend on the noise, so the reach is averaged over more paths.
_NUM_PATHS, _NUM_GUIDED_PATHS = 2, 16
_NUM_RANDOM = 4
_BATCH = 8
_MAX_CORNERS = 8
_ASCENT_STEPS = 60
_LEARNING_RATE = 0.2
# At the ends of the range the gradient with respect to log-odds is 0.
_START_INSIDE = 0.02, 0.98


class Found(NamedTuple):
    """The worst pair of trajectories that was found.

    Attributes:
        canary, replacement: the two trajectories; `replacement` is None where the canary is removed.
        by_hand: the largest reach of a hand-made pair; `by_ascent`: after gradient ascent.
    """

    canary: Canary
    replacement: Canary | None
    by_hand: float
    by_ascent: float


def find_pair(design: Design, num_steps: int, seed: int) -> Found:
    """The pair of neighbouring trajectories with the largest reach that the search finds."""
    assert design.guarantee is not None  # only designs with a guarantee are attacked
    low, high = measurement_range(design)
    others = jnp.asarray(other_reports(design, num_steps, seed), jnp.float32)
    noise_key = jax.random.key(seed)
    num_paths = _NUM_GUIDED_PATHS if design.policy.networks.recurrent_filter.is_guided else _NUM_PATHS
    noise = jax.random.normal(noise_key, (num_steps, num_paths, design.structure.dimension))
    attributes = make_attributes(design)
    ids = np.array([CANARY, *OTHERS])
    own = np.zeros((len(ids), 0)) if attributes is None else attributes.look_up(ids)
    published = make_inputs(design, num_steps, seed)
    inputs = np.zeros((num_steps, 0), np.float32) if published is None else published
    setting = _Setting(design.policy, others, noise, jnp.asarray(own, jnp.float32), jnp.asarray(inputs))
    singles = _hand_made(num_steps, len(low), seed)
    has_two = design.guarantee.adjacency == "replace-one"
    pairs = np.array(list(itertools.combinations(singles, 2)) if has_two else [[single] for single in singles])
    by_hand = _evaluate(setting, pairs)
    ascended, by_ascent = _ascend(setting, pairs[np.argsort(-by_hand)[:_BATCH]])
    best = np.concatenate([pairs, ascended])[np.argmax(np.concatenate([by_hand, by_ascent]))]
    always = np.ones(num_steps, bool)
    canary, *rest = (Canary(low + (high - low) * side, always) for side in best.astype(np.float64))
    return Found(canary, rest[0] if rest else None, float(by_hand.max()), float(by_ascent.max()))


def _hand_made(num_steps: int, num_channels: int, seed: int) -> list[Floats32]:
    """Trajectories in [0, 1]: at a corner, between two opposite corners, from one to the other, and random."""
    corners = list(itertools.islice(itertools.product((0.0, 1.0), repeat=num_channels), _MAX_CORNERS))
    constant = [np.tile(corner, (num_steps, 1)) for corner in corners]
    odd = (np.arange(num_steps) % 2 == 1)[:, None]
    alternating = [np.where(odd, 1 - path, path) for path in constant]
    sweep = np.tile(np.linspace(0, 1, num_steps)[:, None], (1, num_channels))
    rng = np.random.default_rng(seed)
    random = [rng.random((num_steps, num_channels)) for _ in range(_NUM_RANDOM)]
    return [path.astype(np.float32) for path in (*constant, *alternating, sweep, 1 - sweep, *random)]


class _Setting(NamedTuple):
    """What a search holds fixed.

    Attributes:
        others: the reports of the other sensors, shape (K, others, n_y).
        noise: shape (K, paths, d).
        attributes: of the canary and the others, shape (1 + others, n_a).
        inputs: public inputs, values and ages, shape (K, 2 n_p).
    """

    policy: Policy
    others: Array
    noise: Array
    attributes: Array
    inputs: Array


def _evaluate(setting: _Setting, pairs: Floats32) -> Floats32:
    """The reach of each pair, in batches of one compiled shape."""
    parts = []
    for first in range(0, len(pairs), _BATCH):
        part = pairs[first : first + _BATCH]
        padded = np.concatenate([part, np.repeat(part[-1:], _BATCH - len(part), axis=0)])
        parts.append(np.asarray(_values_and_grads(setting, padded)[0])[: len(part)])
    return np.concatenate(parts)


def _ascend(setting: _Setting, starts: Floats32) -> tuple[Floats32, Floats32]:
    """The best trajectories found from each start, and their reaches. Log-odds keep them inside the range."""
    optimiser = optax.adam(-_LEARNING_RATE)  # ascends
    inside = np.clip(starts, *_START_INSIDE)
    odds = jnp.log(inside / (1 - inside))
    train_state = optimiser.init(odds)
    best, best_values = np.array(starts), np.zeros(len(starts), np.float32)
    for _ in range(_ASCENT_STEPS):
        shares = jax.nn.sigmoid(odds)
        values, grads = _values_and_grads(setting, shares)
        is_better = np.asarray(values) > best_values
        best[is_better], best_values[is_better] = np.asarray(shares)[is_better], np.asarray(values)[is_better]
        updates, train_state = optimiser.update(grads * shares * (1 - shares), train_state)
        odds = odds + updates
    return best, best_values


@eqx.filter_jit
def _values_and_grads(setting: _Setting, pairs: Float[AnyArray, "pairs sides K n_y"]) -> tuple[Array, Array]:
    return jax.vmap(jax.value_and_grad(lambda pair: _reach(setting, pair)))(jnp.asarray(pairs))


def _reach(setting: _Setting, pair: Float[Array, "sides K n_y"]) -> Float[Array, ""]:
    """The mean over the noise paths of sum_k |c_k - c'_k|^2 / (2 B / alpha), for trajectories as shares of the range.

    The releases come from the world with the first trajectory. The second one is added to no sum.
    """
    policy, others, noise, attributes, published = setting
    num_paths, constants = noise.shape[1], policy.constants
    low, high = constants.measurement_low, constants.measurement_high
    rows = jnp.concatenate([low + (high - low) * jnp.swapaxes(pair, 0, 1), others], axis=1)
    by_row = jnp.concatenate([attributes[:1]] * len(pair) + [attributes[1:]])
    rows = jnp.concatenate([rows, jnp.broadcast_to(by_row, (*rows.shape[:2], by_row.shape[1]))], axis=-1)
    in_each = rows.shape[1]
    stream = jnp.repeat(jnp.arange(num_paths), in_each)
    has_two = len(pair) == 2
    is_in_sum = jnp.tile((jnp.arange(in_each) != 1) | (not has_two), num_paths)
    everybody = jnp.ones(num_paths * in_each, bool)

    def step(
        carry: tuple[PublicCarry, PrivateCarry], inputs: tuple[Array, Array, Array]
    ) -> tuple[tuple[PublicCarry, PrivateCarry], Array]:
        public, private = carry
        values, noise_now, held_now = inputs
        held = jnp.tile(held_now, (num_paths, 1)) if len(held_now) else None
        reports = Reports(jnp.tile(values, (num_paths, 1)), everybody, ~everybody, stream)
        public, query = make_query(policy, public)
        private, contributions, _ = contribute(policy, private, reports, query)
        into = jnp.where(is_in_sum, stream, num_paths)
        released = release(contributions, into, noise_now)
        public, _ = estimate(policy, public, query.fusion_weight, released, published=held)
        each = contributions.reshape(num_paths, in_each, -1)
        move = each[:, 0] - each[:, 1] if has_two else each[:, 0]
        return (public, private), jnp.sum(move**2, axis=-1).mean()

    start = init_public(policy, num_paths), init_private(policy, num_paths * in_each)
    _, squared = jax.lax.scan(step, start, (rows, noise, published))
    return squared.sum() / constants.squared_radius
