"""Training windows: stretches of the recordings, in one shape, drawn by a seed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpfuse.policy.rollout import cut
from dpfuse.training.pathwise import draw_randomness
from dpfuse.training.sampler import Sampler, spaced_windows
from support.designs import busy_data, make_structure


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


def joined_shards(batch):
    """The batch as one shard, without the rows that pad its shape."""
    num_shards, _, size, _ = batch.state.shape
    parts = []
    for shard in range(num_shards):
        real = batch.window[shard] < size
        rows = {name: getattr(batch, name)[shard][real] for name in ("window", "account_share")}
        rows["window"] = rows["window"] + shard * size
        rows |= {name: getattr(batch, name)[shard][:, real] for name in ("present", "arrived")}
        rows["measurements"] = batch.measurements[shard][:, real].swapaxes(1, 2)
        if batch.opened is not None:
            rows["opened"] = batch.opened[shard][:, real]
        rows |= {"state": batch.state[shard, ..., 0], "skipped": batch.skipped[shard]}
        parts.append(rows | ({} if batch.joined is None else {"joined": batch.joined[shard]}))
    return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}


@pytest.mark.parametrize("options", [{}, {"faults": 0.9}, {"partly_spent": True}, {"epoch_steps": 2.0, "faults": 0.5}])
def test_a_batch_is_the_same_for_any_number_of_shards(options):
    data = busy_data(num_runs=3, num_steps=20, num_slots=4)
    whole, shared = Sampler(data, 5, 6, **options), Sampler(data, 5, 6, num_devices=3, **options)
    for _ in range(3):
        one, three = whole.draw(), shared.draw()
        assert one.state.shape[0] == 1 and three.state.shape[0] == 3
        expected = joined_shards(one)
        for name, value in joined_shards(three).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.slow
def test_noise_and_exploration_are_the_same_for_any_number_of_shards():
    data, structure, key = busy_data(num_runs=3, num_steps=20), make_structure(), jax.random.key(4)
    for_one, for_three = (
        draw_randomness(structure, key, jnp.float32(0.5), Sampler(data, 5, 6, num_devices=number).draw())
        for number in (1, 3)
    )
    for one, three in zip(for_one, for_three, strict=True):
        assert one.shape[0] == 1 and three.shape[0] == 3
        np.testing.assert_array_equal(np.concatenate(three, axis=1), one[0])
