"""What the page shows in a replay beside the releases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

_MAX_NOTES = 65536
MAX_TRUTH_STATES = 64
"""Coordinates of a true state."""


class ReplayNotes:
    """Truth, number of reports and latency of the last steps of a replay, where the data is simulated or public.

    These are the only values in `public` that depend on anything but releases and public settings. A centre with real
    sensors has no object of this class: there the number of reports and the time of a step are private.
    """

    def __init__(self) -> None:
        self.truth: dict[tuple[str, int], list[float]] = {}
        self.num_reports: dict[tuple[str, int], int] = {}
        self.latency_s: dict[int, float] = {}

    def set_truth(self, stream: str, step: int, state: list[float]) -> None:
        self.truth[stream, step] = state
        _drop_oldest(self.truth)

    def count_report(self, stream: str, step: int) -> None:
        self.num_reports[stream, step] = self.num_reports.get((stream, step), 0) + 1
        _drop_oldest(self.num_reports)

    def set_latency(self, step: int, latency_s: float) -> None:
        self.latency_s[step] = latency_s
        _drop_oldest(self.latency_s)

    def of_step(self, stream: str, step: int) -> dict[str, Any]:
        """The notes of one step, for `set_step` of another process."""
        at = stream, step
        return {
            "truth": self.truth.get(at),
            "num_reports": self.num_reports.get(at, 0),
            "latency_s": self.latency_s.get(step),
        }

    def set_step(self, stream: str, step: int, notes: Mapping[str, Any]) -> None:
        """Take the notes that `of_step` described; anything else is left out."""
        truth, num_reports, latency_s = (notes.get(name) for name in ("truth", "num_reports", "latency_s"))
        if isinstance(truth, list) and len(truth) <= MAX_TRUTH_STATES and all(map(is_number, truth)):
            self.set_truth(stream, step, truth)
        if type(num_reports) is int and 0 <= num_reports < 2**63:
            self.num_reports[stream, step] = num_reports
            _drop_oldest(self.num_reports)
        if is_number(latency_s):
            self.set_latency(step, latency_s)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value from elsewhere is a float, or a whole number that becomes one."""
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _drop_oldest(notes: dict[Any, Any]) -> None:
    if len(notes) > _MAX_NOTES:
        del notes[next(iter(notes))]
