"""Periods in recordings: where each one begins, and what starts afresh there."""

from __future__ import annotations

import numpy as np

from dpfuse._arrays import Floats, Integers
from dpfuse.policy.rollout import PackedWindows
from dpfuse.trajectories import Trajectories


def period_starts(data: Trajectories, run: Integers, start: Integers | int = 0) -> Floats:
    """The moment of step `start[i]` of run `run[i]`, in seconds since 1970.

    A recording that does not know when it began is taken to begin together with a period.
    """
    begins_ns = data.labels.starts_ns if data.labels is not None else ()
    of_recording = dict(enumerate(begins_ns))
    origins = [data.origins[number] for number in run.tolist()]
    first_s = np.array([of_recording.get(own.recording, 0) * 1e-9 + own.start * data.interval_s for own in origins])
    return np.asarray(first_s + np.asarray(start) * data.interval_s)


def begin_periods(windows: PackedWindows, start_s: Floats, period_s: float | None, interval_s: float) -> PackedWindows:
    """The windows with all that is private started afresh at the first step of each period, as in a live centre.

    A sensor is then a new one, with fresh memory and a full account. In total accounting the stream has its whole
    budget again; at the first step of a window it has as much of it as is left of the period.

    Args:
        start_s: the moment of each window's first step, shape (windows,).
        period_s: None leaves the windows as they are.
    """
    if period_s is None:
        return windows
    steps, count = windows.skipped.shape
    # A step that begins within a millionth of an interval of a boundary belongs to the later period.
    position = (start_s + 1e-6 * interval_s + np.arange(steps)[:, None] * interval_s) / period_s
    begins = np.zeros((steps, count), bool)
    begins[1:] = np.floor(position[1:]) > np.floor(position[:-1])
    renewed = begins.astype(np.float32)
    renewed[0] = np.clip(np.ceil(position[0]) - position[0], 0.0, 1.0)
    renewed[0] = np.where(renewed[0] > 0, renewed[0], 1.0)
    of_row = np.minimum(windows.window, count - 1)
    return windows._replace(arrived=np.asarray(windows.arrived) | begins[:, of_row], renewed=renewed)
