"""What the page shows in a replay beside the releases."""

from __future__ import annotations

from typing import Any

_MAX_NOTES = 65536


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


def _drop_oldest(notes: dict[Any, Any]) -> None:
    if len(notes) > _MAX_NOTES:
        del notes[next(iter(notes))]
