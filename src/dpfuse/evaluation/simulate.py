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
from dpfuse.policy.faults import with_fault
from dpfuse.policy.periods import begin_periods, period_starts
from dpfuse.policy.policy import Policy
from dpfuse.policy.rollout import PackedWindows, Rollout, cut, draw_noise, pad_rows, rollout, wait_for_bank
from dpfuse.trajectories import Trajectories

_BATCH = 64
_ROW_STEP = 256


class Batch(NamedTuple):
    """Some windows, their numbers in the data, and the rollout of the design over them."""

    numbers: Integers
    windows: PackedWindows
    result: Rollout


def simulate_windows(
    design: Design,
    data: Trajectories,
    *,
    num_draws: int,
    seed: int,
    fault: str | None = None,
    epoch_s: float | None = None,
) -> Iterator[Batch]:
    """Rollouts (Algorithm 1) over every run of `data`, each `num_draws` times with fresh simulated noise.

    Args:
        fault: one of `dpfuse.policy.faults.FAULTS`, in every window; None for none.
        epoch_s: of the bank that lends to the centre; None without a bank.
    """
    size = min(_BATCH, data.num_runs)
    period_s = None if design.guarantee is None else design.guarantee.period_s
    for first in range(0, data.num_runs, size):
        # The last batch is padded with its last window, so that all batches have one compiled shape.
        numbers = np.minimum(np.arange(first, first + size), data.num_runs - 1)
        windows = cut(data, numbers, np.zeros_like(numbers), data.num_steps)
        windows = begin_periods(windows, period_starts(data, numbers), period_s, data.interval_s)
        if fault is not None:
            windows = with_fault(windows, fault, np.random.default_rng([seed, first]), data.measurements.shape[-1])
        if epoch_s is not None:
            rng = np.random.default_rng([seed, first, 1])
            windows = wait_for_bank(windows, epoch_s / data.interval_s, rng, has_begun=False)
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
            skipped=windows.skipped[:, :count],
            joined=None if windows.joined is None else windows.joined[:count],
            opened=None if windows.opened is None else windows.opened[:, rows],
            public=None if windows.public is None else windows.public[:, :count],
            renewed=None if windows.renewed is None else windows.renewed[:, :count],
        ),
        Rollout(
            mean=result.mean[:, :count],
            std=result.std[:, :count],
            fusion_weight=result.fusion_weight[:, :count],
            contributions=result.contributions[:, rows],
            observed=result.observed[:, :count],
        ),
    )
