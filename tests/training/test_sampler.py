"""Training windows: stretches of the recordings, in one shape, drawn by a seed."""

from __future__ import annotations

import numpy as np

from dpfuse.policy.rollout import cut
from dpfuse.training.sampler import Sampler, spaced_windows
from support.designs import busy_data


def test_batches_are_stretches_of_the_recording_in_one_shape():
    data = busy_data(num_runs=2, num_steps=20, num_slots=4)
    sampler = Sampler(data, window=5, batch_size=6, num_devices=2, seed=0)
    batches = [sampler.draw() for _ in range(5)]
    assert len({leaf.shape for batch in batches for leaf in [batch.measurements]}) == 1
    stretches = {data.state[run, start : start + 5].tobytes() for run in range(2) for start in range(16)}
    for batch in batches:
        assert batch.state.shape == (2, 5, 3, 1)
        for shard, window in np.ndindex(2, 3):
            assert np.ascontiguousarray(batch.state[shard, :, window]).tobytes() in stretches
        assert (batch.account_share[batch.window < 3] == 1).all()


def test_equal_seeds_draw_equal_batches():
    data = busy_data(num_steps=20)
    one, two, other = (Sampler(data, 5, 4, seed=seed).draw() for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one.state, other.state)


def test_accounts_may_start_partly_spent():
    share = Sampler(busy_data(num_steps=20), 5, 64, partly_spent=True).draw().account_share
    assert share.min() < 0.1 and share.max() > 0.9


def test_validation_windows_are_spread_over_the_recordings():
    data = busy_data(num_runs=2, num_steps=21, num_slots=3)
    windows = spaced_windows(data, 5, 6)
    expected = cut(data, np.repeat([0, 1], 3), np.tile([0, 8, 16], 2), 5)
    assert all(np.array_equal(a, b) for a, b in zip(windows, expected, strict=True))
    assert spaced_windows(data, 21, 100).state.shape[1] == 2
