"""Both halves of a batch at once: on a CPU, XLA runs these small networks on one core."""

from __future__ import annotations

import os

import jax


def use_all_cores() -> int:
    """Let every core be a device that takes its share of each training batch; the number of devices.

    Call it once, before anything else uses JAX; afterwards it changes nothing. With a GPU it is of no use and does no
    harm.
    """
    try:
        num_cores = len(os.sched_getaffinity(0))
        jax.config.update("jax_num_cpu_devices", num_cores)  # type: ignore[no-untyped-call]  # JAX's own
    except (RuntimeError, AttributeError):
        # JAX has chosen its devices already, or the system has no affinity to ask for.
        pass
    return jax.local_device_count()
