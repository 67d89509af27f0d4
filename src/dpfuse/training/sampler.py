"""Random windows of recordings, in shares for the devices that compute a gradient step together."""

from __future__ import annotations

import numpy as np

from dpfuse.policy.rollout import PackedWindows, cut, pad_rows
from dpfuse.types import Trajectories

_ROW_STEP = 64
# The number of rows is set from the first batches, with a margin in standard deviations, and grows if a batch has more.
# Each new size compiles the update again.
_NUM_TRIAL_BATCHES = 16
_MARGIN = 4.0
_GROWTH = 1.1


class Sampler:
    """Draws batches of windows at random starts, padded to one shape.

    Args:
        data: recordings.
        window: steps of a window.
        batch_size: windows of a batch.
        num_devices: devices that may share a batch; as many are used as divide it evenly.
        partly_spent: whether the sensors at a window's first step have a random part of their budget left, uniformly,
            as in a stream that has run before; otherwise all of it.
        seed: of the starts.
    """

    def __init__(
        self,
        data: Trajectories,
        window: int,
        batch_size: int,
        *,
        num_devices: int = 1,
        partly_spent: bool = False,
        seed: int = 0,
    ) -> None:
        self._data, self._window, self._partly_spent = data, window, partly_spent
        self.num_shards = max(n for n in range(1, num_devices + 1) if batch_size % n == 0)
        self._shape = (self.num_shards, batch_size // self.num_shards)
        self._rng = np.random.default_rng(seed)
        rows = [max(len(shard.window) for shard in self._cut(self._rng)) for _ in range(_NUM_TRIAL_BATCHES)]
        self._num_rows = _round_up(float(np.mean(rows) + _MARGIN * np.std(rows)))

    def draw(self, rng: np.random.Generator | None = None) -> PackedWindows:
        """A batch, with a leading axis for the shards, drawn by the sampler's own generator or another."""
        rng = self._rng if rng is None else rng
        shards = self._cut(rng)
        largest = max(len(shard.window) for shard in shards)
        if largest > self._num_rows:
            self._num_rows = _round_up(_GROWTH * largest)
        windows = stack([pad_rows(shard, self._num_rows) for shard in shards])
        return spend_partly(windows, rng) if self._partly_spent else windows

    def _cut(self, rng: np.random.Generator) -> list[PackedWindows]:
        run = rng.integers(self._data.num_runs, size=self._shape)
        start = rng.integers(self._data.num_steps - self._window + 1, size=self._shape)
        return [cut(self._data, *at, self._window) for at in zip(run, start, strict=True)]


def _round_up(num_rows: float) -> int:
    return int(-(-num_rows // _ROW_STEP) * _ROW_STEP)


def spaced_windows(data: Trajectories, window: int, count: int, *, partly_spent: bool = False) -> PackedWindows:
    """At most `count` windows, evenly spaced over the recordings; `partly_spent` as for `Sampler`."""
    last = data.num_steps - window
    per_run = max(1, min(last + 1, count // data.num_runs))
    starts = np.unique(np.linspace(0, last, per_run).astype(np.int64))
    runs = np.arange(min(data.num_runs, count))
    run, start = (axis.ravel() for axis in np.meshgrid(runs, starts, indexing="ij"))
    windows = cut(data, run, start, window)
    return spend_partly(windows, np.random.default_rng(0)) if partly_spent else windows


def spend_partly(windows: PackedWindows, rng: np.random.Generator) -> PackedWindows:
    """The same windows, the sensors at their first steps with a random part of their budget left, uniformly."""
    share = rng.uniform(size=windows.account_share.shape).astype(np.float32)
    return windows._replace(account_share=share)


def stack(shards: list[PackedWindows]) -> PackedWindows:
    """The shards, of equal shapes, along a new first axis."""
    return PackedWindows(*(np.stack(leaves) for leaves in zip(*shards, strict=True)))
