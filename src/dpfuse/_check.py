"""Checks of arguments: each returns the value, or raises an error with argument, rule, value and remedy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_positive(name: str, value: Any, remedy: str = "") -> float:
    """The value as a float, if it is a finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be finite and > 0, got {value!r}{_then(remedy)}")
    return float(value)


def is_count(name: str, value: Any, minimum: int = 1, remedy: str = "") -> int:
    """The value as an int, if it is a whole number of at least `minimum`."""
    # Most values are of type int; isinstance with an abstract class takes ten times as long.
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}{_then(remedy)}")
    return int(value)


def is_share(name: str, value: Any) -> float:
    """The value as a float, if it is in (0, 1]."""
    if not 0 < is_positive(name, value) <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {value!r}")
    return float(value)


def is_one_of(name: str, value: Any, choices: Collection[str], remedy: str = "") -> str:
    """The value, if it is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}{_then(remedy)}")
    return str(value)


def as_array(name: str, value: Any, dtype: Any, axes: str, ndim: int) -> NDArray[Any]:
    """The value as an array with these axes, none of them empty."""
    try:
        # 1e308 becomes inf in float32, and inf counts as absent.
        with np.errstate(over="ignore", invalid="ignore"):
            given = np.asarray(value)
            array = np.asarray(given, dtype)
    except (TypeError, ValueError) as error:
        _refuse_unequal_parts(name, value, axes)
        raise TypeError(f"{name} must be an array of {np.dtype(dtype).name}, shape {axes}") from error
    if given.dtype.kind == "f" and array.dtype.kind == "i" and (array != given).any():
        raise ValueError(f"{name} must be whole numbers; Trajectories.from_table takes ids of any kind")
    if array.ndim != ndim or 0 in array.shape:
        raise ValueError(f"{name} must have shape {axes}, none of them 0, got {array.shape}")
    return array


def _refuse_unequal_parts(name: str, value: Any, axes: str) -> None:
    """Raise if the value is a list of arrays of unequal length, as runs often are."""
    if not isinstance(value, list | tuple):
        return
    lengths = sorted({len(part) for part in value if hasattr(part, "__len__") and not isinstance(part, str)})
    if len(lengths) > 1:
        raise ValueError(
            f"{name} must have shape {axes}, all runs of one length, got {lengths[0]} and {lengths[-1]} steps; cut "
            f"them to one length, or give a table with a column for the run to Trajectories.from_table"
        )


def or_default(name: str, value: Any, dtype: Any, default: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """The value as an array of this shape; the default, if it is None."""
    if value is None:
        return np.broadcast_to(np.asarray(default, dtype), shape)
    array = as_array(name, value, dtype, "(N, K, m)", 3)
    if array.shape != shape:
        raise ValueError(f"{name} must have the (N, K, m) of measurements, {shape}, got {array.shape}")
    return array


def _then(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""
