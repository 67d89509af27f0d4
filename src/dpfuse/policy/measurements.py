"""Reports as numbers: what is not a row of numbers becomes NaN, which counts as absent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpfuse._arrays import Floats, Floats32

_LARGEST = float(np.finfo(np.float32).max)


def as_measurements(reported: ArrayLike, shape: tuple[int, int]) -> Floats32:
    """The reports as float32.

    A row that does not hold numbers, or has the wrong length, becomes NaN; the other rows are not affected. A finite
    value that is too large for float32 becomes the largest float32 number. No message shows a value.
    """
    if isinstance(reported, np.ndarray) and reported.dtype == np.float32 and reported.shape == shape:
        return reported
    try:
        values = np.asarray(reported, np.float64)
    except (TypeError, ValueError, OverflowError):
        values = _row_by_row(reported, shape)
    if values.shape != shape:
        values = _row_by_row(reported, shape)
    return np.where(np.isfinite(values), np.clip(values, -_LARGEST, _LARGEST), np.nan).astype(np.float32)


def _row_by_row(reported: Any, shape: tuple[int, int]) -> Floats:
    if not hasattr(reported, "__len__") or len(reported) != shape[0]:
        raise ValueError(f"measurements must have {shape[0]} rows, one for each id; use NaN for those without a report")
    values = np.full(shape, np.nan)
    for row, report in enumerate(reported):
        try:
            number = np.asarray(report, np.float64)
        except (TypeError, ValueError, OverflowError):
            continue
        if number.shape == shape[1:]:
            values[row] = number
    return values
