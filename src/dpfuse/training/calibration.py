"""The scale of the band: E's standard deviations, corrected on validation data, or on all data where that is small."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from dpfuse._stats import Z95
from dpfuse.policy.faults import with_random_faults
from dpfuse.policy.policy import Constants, Networks, Policy
from dpfuse.policy.rollout import PackedWindows, draw_noise
from dpfuse.policy.structure import Structure
from dpfuse.training.pathwise import few_at_once, standard_errors
from dpfuse.trajectories import Trajectories

_NUM_DRAWS = 4
_LEVEL, _HIGHEST_LEVEL = 0.95, 0.97
# Fewer windows than these that share no step may be easier than others by chance.
_ENOUGH_WINDOWS = 100


def calibration_windows(
    training: Trajectories, validation: Trajectories, cut: Callable[[Trajectories], PackedWindows], faults: float
) -> tuple[list[PackedWindows], float]:
    """Windows to set the band on, and the share of their errors that it must cover.

    A band that covers 95% of the errors in n windows covers less of those in others. So with few windows the share
    is (n + 1) / n times as high, up to 97%. Few validation windows may be
    easy by chance, and they chose the weights; then the band must cover windows of the training part, too.

    Args:
        training, validation: recordings.
        cut: gives the windows of a recording.
        faults: share of the windows that get a fault, as in training.
    """
    windows = cut(validation)
    steps, count = windows.skipped.shape
    num_apart = min(count, validation.num_runs * (validation.num_steps // steps))
    parts = [windows] if num_apart >= _ENOUGH_WINDOWS else [windows, cut(training)]
    rng = np.random.default_rng(2)
    level = min(_HIGHEST_LEVEL, _LEVEL * (num_apart + 1) / num_apart)
    width = validation.measurements.shape[-1]
    return [with_random_faults(part, faults, rng, width) if faults else part for part in parts], level


def band_scales(
    structure: Structure, networks: Networks, constants: Constants, parts: list[PackedWindows], level: float
) -> Float[Array, "designs n_x"]:
    """By how much to multiply E's standard deviations so that the 95% band covers that share of the errors.

    Networks and constants lead with the designs. Training fits the standard deviations to windows and noise that it has
    seen, so on others they are too small. The noise here is not that of training. Of several parts, the one with the
    largest errors for their standard deviations decides.
    """

    def of_design(networks: Networks, constants: Constants, windows: PackedWindows) -> Array:
        policy = Policy(networks, constants, structure)

        def ratios(key: PRNGKeyArray) -> Array:
            squared, std = standard_errors(policy, windows, draw_noise(structure, windows, key))
            return jnp.sqrt(squared) / std

        every = jax.lax.map(ratios, jax.random.split(jax.random.key(1), _NUM_DRAWS))
        return jnp.quantile(every, level, axis=(0, 1, 2)) / Z95

    find = jax.jit(partial(few_at_once, of_design))
    return jnp.stack([find(networks, constants, windows) for windows in parts]).max(0)
