"""Intervals of confidence for means over windows that overlap or follow each other in time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpfuse._arrays import Floats, Integers
from dpfuse.types import Trajectories

_NUM_RESAMPLES = 4000

MIN_BLOCKS = 8
"""With fewer blocks a percentile interval is far too narrow."""


def blocks_of(data: Trajectories, block_steps: int) -> Integers:
    """The number of the block that each run belongs to, shape (N,).

    Runs of one recording that start within the same stretch of `block_steps` are one block: near ones share vehicles
    and traffic, so whole blocks are drawn, never single runs. Runs of different recordings are independent.
    """
    labels = [(origin.recording, origin.start // block_steps) for origin in data.origins]
    return np.unique(labels, axis=0, return_inverse=True)[1].ravel()


def block_interval(
    values: Floats,
    blocks: Integers,
    statistic: Callable[[Floats], Floats],
    *,
    level: float = 0.95,
    seed: int = 0,
) -> Floats | None:
    """A percentile interval for a function of means, by drawing blocks with replacement.

    Args:
        values: one row a window, shape (N, columns).
        blocks: the block of each window.
        statistic: of the resampled column means, shape (resamples, columns), to (resamples, ...).

    Returns:
        Low and high end, shape (2, ...); None where there are too few blocks to speak of an interval.
    """
    num_blocks = int(blocks.max()) + 1
    if num_blocks < MIN_BLOCKS:
        return None
    sums = np.zeros((num_blocks, values.shape[1]))
    np.add.at(sums, blocks, values)
    sizes = np.bincount(blocks, minlength=num_blocks)
    # How often each block is drawn, in every resample.
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=_NUM_RESAMPLES)
    means = (counts @ sums) / (counts @ sizes)[:, None]
    return np.quantile(statistic(means), [(1 - level) / 2, (1 + level) / 2], axis=0)
