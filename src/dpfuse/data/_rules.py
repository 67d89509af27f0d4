"""What the numbers of a file must be. A wrong one is named by file, line and column; no value is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpfuse._arrays import Floats
from dpfuse.data._layouts import READ_ERRORS, Layout, arrow, records

Check = Callable[[dict[str, str]], str | None]


class Rule(NamedTuple):
    """What the numbers of a column must be."""

    lowest: float
    highest: float
    is_whole: bool
    text: str


class BrokenBatch(Exception):
    """A batch holds a value that breaks a rule."""


def to_numbers(column: Any, rule: Rule) -> Floats:
    """The column as numbers, checked by its rule. Times in ms are exact in float64."""
    pa = arrow()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            numbers = column.cast(pa.float64())
        except pa.ArrowInvalid:
            plain = pa.compute.replace_substring(pa.compute.utf8_trim_whitespace(column), ",", "")
            numbers = plain.cast(pa.float64())
    else:
        numbers = column.cast(pa.float64())
    if numbers.null_count:
        raise BrokenBatch
    values: Floats = numbers.to_numpy(zero_copy_only=False)
    # NaN is out of limits too.
    fits = (values >= rule.lowest) & (values <= rule.highest)
    if not fits.all() or (rule.is_whole and (values != np.floor(values)).any()):
        raise BrokenBatch
    return values


def fault_in(values: Mapping[str, str], rules: Mapping[str, Rule]) -> str | None:
    """Which column breaks its rule, and the rule; None if all are good."""
    for name, rule in rules.items():
        if not fits(values[name], rule):
            return f"{name} must be {rule.text}"
    return None


def fits(text: str, rule: Rule) -> bool:
    """Whether the text is a number that keeps the rule."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return False
    return rule.lowest <= number <= rule.highest and (not rule.is_whole or number == math.floor(number))


def find_fault(path: Path, layout: Layout, num_good: int, check: Check) -> str:
    """The error message of a file that cannot be read: its first wrong line after `num_good` good rows."""
    with suppress(arrow().ArrowException, *READ_ERRORS):
        for where, values in islice(records(path, layout), num_good, None):
            if fault := values if isinstance(values, str) else check(values):
                return f"{path}, {where}: {fault}"
    return f"{path} cannot be read: it is damaged or cut short; fetch it again"
