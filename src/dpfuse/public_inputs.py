"""Public inputs of a recording: what everybody may know of each step, such as a detector's count or the time of day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse._arrays import Floats32, Integers

NEVER = 65535
"""The age, in steps, of an input that was never published; the largest age there is."""

_VALUE, _AGE = np.dtype("<f4"), np.dtype("<u2")
PACKED_SIZE = _VALUE.itemsize + _AGE.itemsize
"""The bytes of one packed input."""

_DAY_S, _WEEK_S = 86_400.0, 604_800.0
# 1970 began on a Thursday; weeks begin on Mondays.
_MONDAY_S = 4 * _DAY_S


def hold(public: Floats32) -> tuple[Floats32, Integers]:
    """The last published value of each input at each step, and its age in steps; NaN and `NEVER` before the first.

    Args:
        public: shape (N, K, n_p), not finite where nothing was published.
    """
    step = np.arange(public.shape[1])[:, None]
    last = np.maximum.accumulate(np.where(np.isfinite(public), step, -1), axis=1)
    values = np.take_along_axis(public, np.maximum(last, 0), axis=1)
    is_known = last >= 0
    held = np.where(is_known, values, np.float32(np.nan)).astype(np.float32)
    return held, np.where(is_known, np.minimum(step - last, NEVER), NEVER)


def pack(held: ArrayLike) -> bytes:
    """Held inputs of one stream, n_p values and then n_p ages, as a committed row stores them."""
    values, ages = np.split(np.asarray(held, np.float32), 2)
    # One NaN stands for all, so that equal inputs are equal bytes.
    known = np.where(np.isnan(values), np.float32(np.nan), values)
    return known.astype(_VALUE).tobytes() + ages.astype(_AGE).tobytes()


def unpack(packed: bytes) -> Floats32:
    """The held inputs that `pack` packed, shape (2 n_p,)."""
    size = len(packed) // PACKED_SIZE * _VALUE.itemsize
    return np.concatenate([np.frombuffer(packed[:size], _VALUE), np.frombuffer(packed[size:], _AGE)], dtype=np.float32)


def join_inputs(parts: Sequence[tuple[Floats32 | None, Integers | None]]) -> dict[str, Any]:
    """Held values and ages of all parts of a recording, as fields of `Trajectories`; nothing if no part has some."""
    given = [part for part in parts if part[0] is not None]
    if not given:
        return {}
    if len(given) < len(parts) or len({values.shape[-1] for values, _ in given if values is not None}) > 1:
        raise ValueError("public must be given for all parts or for none, with the same number of inputs")
    values, ages = (np.concatenate(column) for column in zip(*given, strict=True))
    return {"public": values, "public_age": ages}


def clock_inputs(start_s: ArrayLike, num_steps: int, interval_s: float) -> Floats32:
    """Time of day and of week at each step, shape (N, K, 4): sine and cosine of the day, sine and cosine of the week.

    Args:
        start_s: the moment of each run's first step, in seconds since 1970 by the clock that matters: add the offset
            of a time zone for local time.
        num_steps: K.
        interval_s: seconds between steps.
    """
    _check.is_count("num_steps", num_steps)
    moment = np.atleast_1d(np.asarray(start_s, np.float64))[:, None]
    moment = moment + np.arange(num_steps) * _check.is_positive("interval_s", interval_s)
    angles = 2 * np.pi * moment / _DAY_S, 2 * np.pi * (moment - _MONDAY_S) / _WEEK_S
    both = [function(angle) for angle in angles for function in (np.sin, np.cos)]
    return np.stack(both, axis=-1).astype(np.float32)
