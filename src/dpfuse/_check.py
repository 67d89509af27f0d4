"""Checks of arguments: each returns the value, or raises an error with argument, rule, value and remedy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection
from typing import Any


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


def _then(remedy: str) -> str:
    return f"; {remedy}" if remedy else ""
