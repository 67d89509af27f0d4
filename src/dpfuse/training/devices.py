"""Use every CPU core as a JAX device: XLA runs networks as small as these on one core."""

from __future__ import annotations

import os

import jax


def use_all_cores() -> int:
    """Let every core be a device that takes its share of each training batch; returns the number of devices.

    Call it before anything else uses JAX; later calls change nothing. With a GPU it has no effect.
    """
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        jax.config.update("jax_num_cpu_devices", num_cores)  # type: ignore[no-untyped-call]  # JAX's own
    except RuntimeError:
        pass  # JAX has chosen its devices already.
    return jax.local_device_count()
