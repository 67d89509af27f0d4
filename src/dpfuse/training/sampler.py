"""Random windows of recordings, in shares for the devices that compute a gradient step together."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dpfuse._arrays import Integers
from dpfuse.policy.faults import with_random_faults
from dpfuse.policy.periods import begin_periods, period_starts
from dpfuse.policy.rollout import PackedWindows, cut, pad_rows, wait_for_bank
from dpfuse.trajectories import Trajectories

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
        faults: share of the windows that have a fault of live streams, see `dpfuse.policy.faults`.
        epoch_steps: of the bank that lends to the centre, see `wait_for_bank`; None without a bank.
        period_s: of the guarantee, see `begin_periods`; None without periods.
        seed: of the starts, faults and waits.
    """

    def __init__(
        self,
        data: Trajectories,
        window: int,
        batch_size: int,
        *,
        num_devices: int = 1,
        partly_spent: bool = False,
        faults: float = 0.0,
        epoch_steps: float | None = None,
        period_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self._data, self._window, self._partly_spent = data, window, partly_spent
        self._period_s = period_s
        self._faults, self._epoch_steps = faults, epoch_steps
        self.num_shards = max(n for n in range(1, num_devices + 1) if batch_size % n == 0)
        self._batch_size = batch_size
        self._rng = np.random.default_rng(seed)
        rows = [max(_rows_of(self._cut(self._rng), self.num_shards)) for _ in range(_NUM_TRIAL_BATCHES)]
        self._num_rows = _round_up(float(np.mean(rows) + _MARGIN * np.std(rows)))

    def draw(self, rng: np.random.Generator | None = None) -> PackedWindows:
        """A batch, with a leading axis for the shards, drawn by the sampler's own generator or another.

        All that is random is drawn for the whole batch, so the number of shards does not change what is drawn.
        """
        rng = self._rng if rng is None else rng
        windows = self._cut(rng)
        largest = max(_rows_of(windows, self.num_shards))
        if largest > self._num_rows:
            self._num_rows = _round_up(_GROWTH * largest)
        if self._faults:
            windows = with_random_faults(windows, self._faults, rng, self._data.measurements.shape[-1])
        if self._partly_spent:
            windows = spend_partly(windows, rng)
        if self._epoch_steps is not None:
            windows = wait_for_bank(windows, self._epoch_steps, rng, has_begun=self._partly_spent)
        return stack([pad_rows(shard, self._num_rows) for shard in _divide(windows, self.num_shards)])

    def _cut(self, rng: np.random.Generator) -> PackedWindows:
        run = rng.integers(self._data.num_runs, size=self._batch_size)
        start = rng.integers(self._data.num_steps - self._window + 1, size=self._batch_size)
        return self._cut_at(run, start)

    def _cut_at(self, run: Integers, start: Integers) -> PackedWindows:
        windows, data = cut(self._data, run, start, self._window), self._data
        return begin_periods(windows, period_starts(data, run, start), self._period_s, data.interval_s)


def _rows_of(windows: PackedWindows, num_shards: int) -> Integers:
    """How many rows each shard has."""
    of_window = np.bincount(windows.window, minlength=windows.state.shape[1])
    rows: Integers = of_window.reshape(num_shards, -1).sum(1)
    return rows


def _divide(windows: PackedWindows, num_shards: int) -> list[PackedWindows]:
    """The windows in shards of equally many; rows are in the order of their windows."""
    ends = np.cumsum(_rows_of(windows, num_shards))
    size = windows.state.shape[1] // num_shards
    shards = []
    for shard, end in enumerate(ends):
        row = slice(0 if shard == 0 else int(ends[shard - 1]), int(end))
        own = slice(shard * size, (shard + 1) * size)
        index: dict[str, Any] = {"window": row, "account_share": row, "joined": own}
        index |= {name: (slice(None), row) for name in ("measurements", "present", "arrived", "opened")}
        index |= {name: (slice(None), own) for name in ("state", "skipped", "renewed", "public")}
        given = {name: at for name, at in index.items() if getattr(windows, name) is not None}
        part = windows._replace(**{name: getattr(windows, name)[at] for name, at in given.items()})
        shards.append(part._replace(window=part.window - own.start))
    return shards


def _round_up(num_rows: float) -> int:
    return int(-(-num_rows // _ROW_STEP) * _ROW_STEP)


def spaced_windows(
    data: Trajectories,
    window: int,
    count: int,
    *,
    partly_spent: bool = False,
    epoch_steps: float | None = None,
    period_s: float | None = None,
) -> PackedWindows:
    """At most `count` windows, evenly spaced over the recordings; other arguments as for `Sampler`."""
    last = data.num_steps - window
    per_run = max(1, min(last + 1, count // data.num_runs))
    starts = np.unique(np.linspace(0, last, per_run).astype(np.int64))
    runs = np.arange(min(data.num_runs, count))
    run, start = (axis.ravel() for axis in np.meshgrid(runs, starts, indexing="ij"))
    windows = cut(data, run, start, window)
    windows = begin_periods(windows, period_starts(data, run, start), period_s, data.interval_s)
    if epoch_steps is not None:
        windows = wait_for_bank(windows, epoch_steps, np.random.default_rng(1), has_begun=partly_spent)
    return spend_partly(windows, np.random.default_rng(0)) if partly_spent else windows


def spend_partly(windows: PackedWindows, rng: np.random.Generator) -> PackedWindows:
    """The same windows, the sensors at their first steps with a random part of their budget left, uniformly."""
    share = rng.uniform(size=windows.account_share.shape).astype(np.float32)
    return windows._replace(account_share=share)


def stack(shards: list[PackedWindows]) -> PackedWindows:
    """The shards, of equal shapes, along a new first axis."""
    joined: PackedWindows = jax.tree.map(lambda *leaves: np.stack(leaves), *shards)
    return joined
