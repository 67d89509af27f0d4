"""Figures of a sweep, a set for each recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfuse.evaluation import figures
from dpfuse.evaluation.report import Report
from dpfuse.sweeps.result import SweepResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_result(result: SweepResult) -> dict[str, Figure]:
    """Error against budget, spread of seeds and price of privacy, by name; a figure without data is left out."""
    drawn: dict[str, Figure] = {}
    recordings = list(dict.fromkeys(row["recording"] for row in result.rows))
    for recording in recordings:
        own = result.select(recording=recording)
        suffix = "" if len(recordings) == 1 else f"-{recording}"
        lines, kinds = _by_line(own), _by_guarantee(own)
        floors = [report for report in own.reports if report.guarantee is None]
        if any(report.guarantee for report in own.reports):
            drawn[f"error-against-budget{suffix}"] = figures.plot_error_against_budget(lines)
        drawn[f"seeds{suffix}"] = figures.plot_seeds(kinds)
        private = {name: [r for r in reports if r.guarantee] for name, reports in lines.items()}
        if floors and any(private.values()):
            shown = {name: reports for name, reports in private.items() if reports}
            drawn[f"price-of-privacy{suffix}"] = figures.plot_price_of_privacy(shown, floors)
    return drawn


def _by_line(result: SweepResult) -> dict[str, list[Report]]:
    """Reports by setting; by adjacency, accounting, period and order too, where a setting has several."""
    names = "order", "adjacency", "accounting", "period"
    kinds = {tuple(row[name] for name in names) for row in result.rows if row["budget"] is not None}
    lines: dict[str, list[Report]] = {}
    for row, report in zip(result.rows, result.reports, strict=True):
        name = row["setting"]
        if len(kinds) > 1 and report.guarantee is not None:
            name += f", {row['adjacency']}, {row['accounting']}"
            name += "" if row["period"] is None else f", per {row['period']}"
            name += f", order {row['order']:g}" if len({order for order, *_ in kinds}) > 1 else ""
        lines.setdefault(name, []).append(report)
    return lines


def _by_guarantee(result: SweepResult) -> dict[str, list[Report]]:
    """Reports that differ in their seed alone."""
    kinds: dict[str, list[Report]] = {}
    for name, reports in _by_line(result).items():
        for report in reports:
            budget = f"budget {report.guarantee.budget:g}" if report.guarantee else "no guarantee"
            kinds.setdefault(f"{name}, {budget}", []).append(report)
    return kinds
