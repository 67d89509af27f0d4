"""Reports as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping

from dpfuse.evaluation.report import Comparison, Report


def to_text(
    reports: Mapping[str, Report], comparisons: Mapping[str, Comparison] | None = None, reference: str = ""
) -> str:
    """A Markdown table with a row for each design.

    Args:
        reports: by name of the design.
        comparisons: with the design named `reference`, by name of the design.
    """
    comparisons = comparisons or {}
    heads = ["design", "squared error", "95% interval", "coverage", "most spent", "budget"]
    heads += [f"error / {reference}", "95% interval"] if comparisons else []
    rows = [[name, *_cells(report)] for name, report in reports.items()]
    if comparisons:
        rows = [[*row, *_ratio(comparisons.get(row[0]))] for row in rows]
    prior = next(iter(reports.values())).prior_mse
    rows.append(["no releases at all (prior)", f"{prior:.4g}", *[""] * (len(heads) - 2)])
    table = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def _cells(report: Report) -> list[str]:
    spent = "" if report.budget_spent_max is None else f"{report.budget_spent_max:.4f}"
    budget = "none" if report.guarantee is None else f"{report.guarantee.budget:g}"
    return [f"{report.mse:.4g}", _interval(report.ci95), f"{report.coverage:.0%}", spent, budget]


def _ratio(comparison: Comparison | None) -> list[str]:
    return ["", ""] if comparison is None else [f"{comparison.ratio:.3f}", _interval(comparison.ci95)]


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{bounds[0]:.4g} to {bounds[1]:.4g}"
