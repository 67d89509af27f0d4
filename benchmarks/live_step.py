"""Time of one live step for 64 sensors: contributions, exact release and estimate, for both accountings."""

from __future__ import annotations

import time

import jax
import numpy as np

import dpfuse
from benchmarks.timing import keep, summarise
from dpfuse.policy import ExactStep
from dpfuse.policy.exact import compute_inline
from dpfuse.privacy import make_noise

SENSORS, STEPS = 64, 2000


def main() -> None:
    """Measure and write results/live_step.json."""
    compute_inline()
    make_noise(2)
    results = {accounting: measure(accounting) for accounting in ("total", "individual")}
    keep("live_step", {"settings": {"sensors": SENSORS, "steps": STEPS}, "ms": results})


def measure(accounting: str) -> dict[str, dict[str, float]]:
    """Milliseconds of each part of a step in which every sensor is present."""
    step = ExactStep(make_design(accounting), SENSORS)
    carry, ids = step.init(), np.arange(SENSORS)
    rng = np.random.default_rng(0)
    reports = rng.uniform([0, 0], [400, 20], size=(STEPS, SENSORS, 2)).astype(np.float32)
    parts: dict[str, list[float]] = {"contribute": [], "release": [], "estimate": [], "without noise": [], "all": []}
    for number, report in enumerate(reports):
        times = [time.perf_counter()]
        carry, charged = step.contribute(carry, ids, report)
        times.append(time.perf_counter())
        released = step.release(charged)
        times.append(time.perf_counter())
        carry, result = step.estimate(carry, released)
        jax.block_until_ready(result)
        times.append(time.perf_counter())
        if number < 20:
            continue  # the first steps compile, and fill caches
        contribute, release, estimate = np.diff(times)
        for name, value in zip(
            parts, [contribute, release, estimate, contribute + estimate, times[-1] - times[0]], strict=True
        ):
            parts[name].append(float(value))
    return {name: summarise(values).to_dict() for name, values in parts.items()}


def make_design(accounting: str, num_steps: int = STEPS) -> dpfuse.Design:
    """The demo's design, untrained: the time does not depend on the weights."""
    guarantee = dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one", accounting=accounting)
    return dpfuse.Design.untrained(
        guarantee,
        measurement_range=(0.0, [400.0, 20.0]),
        state_mean=230.0,
        state_std=45.0,
        interval_s=0.2,
        num_states=1,
        num_channels=2,
        features="ball",
        dimension=2,
        spending="adaptive",
        horizon=num_steps,
        expected_stay=num_steps,
        expected_sensors=float(SENSORS),
        recurrent_filter="guided",
    )


if __name__ == "__main__":
    main()
