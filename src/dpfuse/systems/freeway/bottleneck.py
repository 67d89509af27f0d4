"""The bottleneck at the end of the road, whose changes of speed start the waves."""

from __future__ import annotations

import math

import numpy as np

from dpfuse._arrays import Floats32
from dpfuse.systems.freeway.parameters import LARGEST_WAVE_DEPTH, Freeway

_RIPPLE_S = 12.0
# 45 minutes hold whole numbers of these periods, so that runs of 45 minutes have nearly the same mean speed.
_DRIFT_PERIODS_S = np.array([2700.0, 1350.0, 900.0])
_WAVE_SPREAD = 0.3  # relative standard deviation of depth and duration over waves
_WAVE_IRREGULARITY = 0.7  # share of the interval within which the time of its wave is drawn
_WAVE_LAG_S = 2.0  # standard deviation of a wave's time over lanes


def draw_bottleneck(freeway: Freeway, num_steps: int, step_s: float, rng: np.random.Generator) -> Floats32:
    """The speed at the end of each lane, shape (num_steps, num_lanes)."""
    ripple_rng, moment_rng, wave_rng, lane_rng = rng.spawn(4)
    second = np.arange(math.ceil(num_steps * step_s) + 1.0)
    phase = rng.uniform(0, 2 * np.pi, len(_DRIFT_PERIODS_S))
    drift = np.sin(2 * np.pi * second[:, None] / _DRIFT_PERIODS_S + phase).sum(1) * math.sqrt(2 / len(phase))
    knots = np.clip(ripple_rng.standard_normal(math.ceil(second[-1] / _RIPPLE_S) + 1), -2, 2)
    ripple = np.interp(second / _RIPPLE_S, np.arange(len(knots)), knots)
    between_waves = freeway.bottleneck_speed_mps * (1 + freeway.bottleneck_drift * drift)
    between_waves *= 1 + freeway.bottleneck_ripple * ripple
    fastest = np.maximum(between_waves, freeway.desired_speed_mps)
    by_lane = np.exp(freeway.lane_spread * np.clip(lane_rng.standard_normal(freeway.num_lanes), -1.5, 1.5))

    num_waves = math.ceil(second[-1] / freeway.wave_interval_s) + 2
    moment = np.arange(num_waves) - rng.uniform() + _WAVE_IRREGULARITY * moment_rng.uniform(size=num_waves)
    waves = np.clip(wave_rng.standard_normal((num_waves, 2 + freeway.num_lanes)), -2, 2)
    depth = np.minimum(freeway.wave_depth * (1 + _WAVE_SPREAD * waves[:, 0]), LARGEST_WAVE_DEPTH)
    duration = freeway.wave_duration_s * (1 + _WAVE_SPREAD * waves[:, 1])
    speed = np.empty((num_steps, freeway.num_lanes), np.float32)
    for lane in range(freeway.num_lanes):
        centre = freeway.wave_interval_s * moment + _WAVE_LAG_S * waves[:, 2 + lane]
        # The bell curve has half its height half a duration before and after its centre.
        left = np.prod(1 - depth * np.exp2(-4 * np.square((second[:, None] - centre) / duration)), axis=1)
        at_end = np.minimum(by_lane[lane] * between_waves * left, fastest)
        speed[:, lane] = np.interp(step_s * np.arange(num_steps), second, at_end)
    return speed
