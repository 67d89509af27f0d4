"""Rollouts of a design over many windows, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from dpfuse._arrays import Integers
from dpfuse.policy.design import Design
from dpfuse.policy.policy import Policy
from dpfuse.policy.rollout import PackedWindows, Rollout, cut, draw_noise, pad_rows, rollout
from dpfuse.types import Trajectories

_BATCH = 64
_ROW_STEP = 256


class Batch(NamedTuple):
    """Some windows, their numbers in the data, and the rollout of the design over them."""

    numbers: Integers
    windows: PackedWindows
    result: Rollout


def simulate_windows(design: Design, data: Trajectories, *, num_draws: int, seed: int) -> Iterator[Batch]:
    """Rollouts (Algorithm 1) over every run of `data`, each `num_draws` times with fresh simulated noise."""
    size = min(_BATCH, data.num_runs)
    for first in range(0, data.num_runs, size):
        # The last batch is padded with its last window, so that all batches have one compiled shape.
        numbers = np.minimum(np.arange(first, first + size), data.num_runs - 1)
        windows = cut(data, numbers, np.zeros_like(numbers), data.num_steps)
        windows = pad_rows(windows, -(-len(windows.window) // _ROW_STEP) * _ROW_STEP)
        num_real = min(size, data.num_runs - first)
        for draw in range(num_draws):
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), draw), first)
            result = jax.device_get(_run(design.policy, windows, key))
            yield Batch(numbers[:num_real], *_first_windows(windows, result, num_real))


@eqx.filter_jit
def _run(policy: Policy, windows: PackedWindows, key: PRNGKeyArray) -> Rollout:
    return rollout(policy, windows, draw_noise(policy.structure, windows, key))


def _first_windows(windows: PackedWindows, result: Rollout, count: int) -> tuple[PackedWindows, Rollout]:
    rows = windows.window < count
    return (
        PackedWindows(
            state=windows.state[:, :count],
            measurements=windows.measurements[:, rows],
            present=windows.present[:, rows],
            arrived=windows.arrived[:, rows],
            window=windows.window[rows],
            account_share=windows.account_share[rows],
        ),
        Rollout(
            mean=result.mean[:, :count],
            std=result.std[:, :count],
            fusion_weight=result.fusion_weight[:, :count],
            contributions=result.contributions[:, rows],
            observed=result.observed[:, :count],
        ),
    )
