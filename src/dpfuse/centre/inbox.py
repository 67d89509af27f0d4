"""The reports for one step."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

from dpfuse._arrays import Floats32, Integers
from dpfuse.policy.measurements import as_measurements

Block = tuple[Integers, Integers, Floats32]


class Inbox:
    """The reports for one step, single ones and blocks, in the order of arrival. Private."""

    def __init__(self) -> None:
        self._parts: list[dict[tuple[int, int], tuple[float, ...]] | Block] = [{}]

    def add(self, stream: int, sensor: int, report: tuple[float, ...]) -> None:
        if not isinstance(last := self._parts[-1], dict):
            self._parts.append(last := {})
        last.setdefault((stream, sensor), report)

    def add_block(self, block: Block) -> None:
        self._parts.append(block)

    def by_stream(self, num_channels: int) -> Block:
        """Stream, id and values of all reports, sorted by stream; within a stream in the order of arrival."""
        blocks = (_as_block(part, num_channels) if isinstance(part, dict) else part for part in self._parts)
        streams, sensors, rows = zip(*blocks, strict=True)
        order = np.argsort(np.concatenate(streams), kind="stable")
        return np.concatenate(streams)[order], np.concatenate(sensors)[order], np.concatenate(rows)[order]


def _as_block(reports: dict[tuple[int, int], tuple[float, ...]], num_channels: int) -> Block:
    stream, ids = np.array(list(reports), np.int64).reshape(-1, 2).T
    return stream, ids, as_measurements(list(reports.values()), (len(ids), num_channels))


def as_report(values: Any, num_channels: int, partial_reports: bool = False) -> tuple[float, ...] | None:
    """The values as finite numbers; None if they are not `num_channels` finite numbers.

    Args:
        partial_reports: whether a report may lack channels. One that is None or not finite then is NaN, and a report
            without any channel is None.
    """
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, list | tuple) or len(values) != num_channels:
        return None
    if partial_reports:
        values = [math.nan if value is None else value for value in values]
    try:
        report = tuple(float(value) for value in values if _is_number(value))
    except OverflowError:
        return None
    if len(report) < num_channels:
        return None
    is_enough = any if partial_reports else all
    return report if is_enough(map(math.isfinite, report)) else None


# The plain types come first, as a check against the abstract class takes ten times as long.
def is_whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))


def _is_number(value: Any) -> bool:
    return type(value) in (float, int) or (isinstance(value, numbers.Real) and not isinstance(value, bool))
