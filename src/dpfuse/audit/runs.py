"""Thousands of runs of the exact release path at once, in each of two neighbouring worlds.

Every run is a stream with its own accounts and its own noise from OpenDP. All runs get the same reports, so these are
prepared once, and the networks run over all streams in one call. Rounding, checks, debits and sums are
`Mechanism.charge`, stream by stream, and the noise is `ExactStep.release_many`: the functions that a live centre calls.
Each run also computes, from the same releases, the sums that the other world would have. An attacker who knows all but
the world can do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpfuse._arrays import Booleans, Floats, Integers
from dpfuse.audit.worlds import World, Worlds
from dpfuse.policy.exact import ExactStep
from dpfuse.policy.memory import Memory
from dpfuse.policy.public_part import to_block
from dpfuse.policy.step import PublicCarry
from dpfuse.privacy.budget import GRID, IndividualFilter
from dpfuse.privacy.release import Charged, Release

# Streams that run at once: few enough for little memory and a progress bar that moves.
_CHUNK = 500
_CERTAIN = 1e9


class Transcript(NamedTuple):
    """The releases of each run, and the sums of both worlds: index 0 is the canary's world, index 1 its neighbour.

    Attributes:
        truth: whether the run was in the canary's world, shape (R,).
        values: the releases, shape (R, K, d).
        sums: the sums without noise in both worlds, given the same past releases, shape (R, 2, K, d).
        weights: the weights in grid steps, shape (R, 2, K).
        budget_left: the budget left that is released, shape (R, 2, K); 0 in individual accounting.
    """

    truth: Booleans
    values: NDArray[Any]
    sums: Integers
    weights: Integers
    budget_left: Integers

    @property
    def noise(self) -> NDArray[Any]:
        """The noise of the releases, shape (R, K, d)."""
        return self.values - self.sums[np.arange(len(self.truth)), np.where(self.truth, 0, 1)]

    @property
    def is_public(self) -> Booleans:
        """Whether weights and budget left are the same in both worlds, shape (R,)."""
        same = (self.weights[:, 0] == self.weights[:, 1]) & (self.budget_left[:, 0] == self.budget_left[:, 1])
        return np.asarray(same.all(1))

    def distances(self) -> list[int]:
        """The squared distance between the sums of the two worlds in each run, in squared grid steps, exactly."""
        # Python integers: with a broken step the squares may exceed 64 bits.
        moves = (self.sums[:, 0] - self.sums[:, 1]).astype(object)
        return [int(distance) for distance in (moves * moves).sum(axis=(1, 2))]

    def scores(self) -> Floats:
        """The log-likelihood ratio of the canary's world to its neighbour, given all that is released, shape (R,).

        No test is better, by the lemma of Neyman and Pearson. Where weights differ, the world is certain.
        """
        one, other = self.sums[:, 0], self.sums[:, 1]
        ratio = ((one - other) / GRID * (2.0 * self.values - one - other) / (2 * GRID)).sum(axis=(1, 2))
        return np.where(self.is_public, ratio, np.where(self.truth, _CERTAIN, -_CERTAIN))


def run_worlds(
    step: ExactStep, worlds: Worlds, num_runs: int, advance: Callable[[int], object] = lambda steps: None
) -> Transcript:
    """The transcript of `num_runs` runs of the step in each world.

    Args:
        advance: called with the number of steps made, over all runs.
    """
    parts = [jax.jit(jax.vmap(part)) for part in (step.private_part, partial(_public_part, step))]
    transcripts = []
    for first in range(0, num_runs, _CHUNK):
        truth = np.arange(2 * min(_CHUNK, num_runs - first)) % 2 == 0
        streams = [_Streams(step, world, len(truth), *parts) for world in worlds]
        transcripts.append(_run_chunk(step, streams, truth, advance))
    return Transcript(*map(np.concatenate, zip(*transcripts, strict=True)))


def _run_chunk(
    step: ExactStep, streams: Sequence[_Streams], truth: Booleans, advance: Callable[[int], object]
) -> Transcript:
    values, sums, weights, left = [], [], [], []
    for k in range(len(streams[0].world.ids)):
        charged = [side.contribute(k) for side in streams]
        pairs = list(zip(*charged, strict=True))
        sums.append([[one.undrawn() for one in pair] for pair in pairs])
        weights.append([[one.fusion_weight for one in pair] for pair in pairs])
        left.append([[one.budget_left or 0 for one in pair] for pair in pairs])
        released = step.release_many([pair[0 if is_one else 1] for pair, is_one in zip(pairs, truth, strict=True)])
        values.append([release.value for release in released])
        for side in streams:
            side.estimate(released, k)
        advance(len(truth))
    return Transcript(
        truth,
        np.swapaxes(values, 0, 1),
        np.moveaxis(np.array(sums, np.int64), 0, 2),
        np.moveaxis(np.array(weights, np.int64), 0, 2),
        np.moveaxis(np.array(left, np.int64), 0, 2),
    )


def _public_part(step: ExactStep, public: PublicCarry, block: Any) -> Any:
    """Carry, query and estimate of one run."""
    return step.query_part([step.estimate_part(public, block)])


class _Streams:
    """Many runs in one of the two worlds."""

    def __init__(self, step: ExactStep, world: World, count: int, private_part: Any, public_part: Any) -> None:
        self.world, self._step = world, step
        self._private_part, self._public_part = private_part, public_part
        # One memory for all runs: they have the same sensors, and each run has its own hidden vectors of them.
        self._carry = step.init()._replace(memory=Memory(count, step.hidden_size))
        self._accounts = [step.mechanism.open_accounts() for _ in range(count)]
        self._public, self._query = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), (self._carry.public, self._carry.query)
        )

    def contribute(self, k: int) -> list[Charged]:
        """The private part of step k of every run."""
        step, world = self._step, self.world
        sensors, places, block = step.prepare(self._carry, world.ids[k], world.measurements[k], world.present[k])
        blocks = np.tile(block, (len(self._accounts), 1, 1))
        if isinstance(self._accounts[0], IndividualFilter):
            blocks[:, :, -1] = [step.accounts_left(accounts, sensors) for accounts in self._accounts]
        hidden = self._carry.memory.read(places).swapaxes(0, 1)
        hidden, proposed = self._private_part(self._query, hidden, blocks)
        step.remember(self._carry, np.zeros_like(sensors), sensors, places, np.asarray(hidden).swapaxes(0, 1))
        self._carry = self._carry._replace(num_steps=k + 1)
        weights, values = np.asarray(self._query.fusion_weight)[:, 0].tolist(), np.asarray(proposed)
        return [
            step.mechanism.charge(accounts, own_weight, sensors, own_values)
            for accounts, own_weight, own_values in zip(self._accounts, weights, values, strict=True)
        ]

    def estimate(self, released: Sequence[Release], k: int) -> None:
        """The public part of step k of every run, from its release."""
        weights, own = np.array([release.fusion_weight for release in released]), self.world.inputs_at(k)
        inputs = None if own is None else np.tile(own, (len(released), 1))
        blocks = to_block(weights, np.array([release.value for release in released]), inputs=inputs)
        self._public, self._query, _ = self._public_part(self._public, blocks[:, None])
