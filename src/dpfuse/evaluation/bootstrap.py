"""Confidence intervals for means over dependent windows, by block bootstrap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpfuse._arrays import Floats, Integers
from dpfuse.trajectories import Trajectories

_NUM_RESAMPLES = 4000
_LEVEL = 0.95

MIN_BLOCKS = 8
"""A percentile interval from fewer blocks is much too narrow."""


def blocks_of(data: Trajectories, block_steps: int) -> Integers:
    """The block number of each run, shape (N,).

    Runs of one recording that start in the same interval of `block_steps` steps are one block, as neighbouring runs are
    dependent. Runs of different recordings are independent.
    """
    labels = [(origin.recording, origin.start // block_steps) for origin in data.origins]
    return np.unique(labels, axis=0, return_inverse=True)[1].ravel()


def block_interval(
    values: Floats,
    blocks: Integers,
    statistic: Callable[[Floats], Floats],
    *,
    seed: int = 0,
) -> Floats | None:
    """The 95% interval of a function of column means, shape (2, ...); None with fewer than `MIN_BLOCKS` blocks.

    This is the percentile bootstrap: whole blocks are drawn with replacement.

    Args:
        values: one row for each window, shape (N, columns).
        blocks: the block of each window, shape (N,).
        statistic: a function of the resampled column means, from shape (resamples, columns) to (resamples, ...).
    """
    num_blocks = int(blocks.max()) + 1
    if num_blocks < MIN_BLOCKS:
        return None
    sums = np.zeros((num_blocks, values.shape[1]))
    np.add.at(sums, blocks, values)
    sizes = np.bincount(blocks, minlength=num_blocks)
    # How often each block is drawn in each resample.
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(num_blocks, np.full(num_blocks, 1 / num_blocks), size=_NUM_RESAMPLES)
    means = (counts @ sums) / (counts @ sizes)[:, None]
    return np.quantile(statistic(means), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
