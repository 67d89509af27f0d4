"""Reports as a Markdown table."""

from __future__ import annotations

from collections.abc import Mapping

from dpfuse.evaluation.report import Comparison, Report


def to_text(
    reports: Mapping[str, Report], comparisons: Mapping[str, Comparison] | None = None, reference: str = ""
) -> str:
    """A Markdown table with a row for each design, and below it how the errors fell in training.

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
    lines = ["| " + " | ".join(row) + " |" for row in table]
    falls = [f"- {name}: {_fall(report)}" for name, report in reports.items() if report.validation_quarters]
    if falls:
        lines += ["", "Squared error on the validation part after 25%, 50%, 75% and 100% of the updates:", *falls]
    return "\n".join(lines)


def _fall(report: Report) -> str:
    return ", ".join(f"{error:.4g}" for error in report.validation_quarters)


def _cells(report: Report) -> list[str]:
    spent = "" if report.budget_spent_max is None else f"{report.budget_spent_max:.4f}"
    budget = "none" if report.guarantee is None else f"{report.guarantee.budget:g}"
    return [f"{report.mse:.4g}", _interval(report.ci95), f"{report.coverage:.0%}", spent, budget]


def _ratio(comparison: Comparison | None) -> list[str]:
    return ["", ""] if comparison is None else [f"{comparison.ratio:.3f}", _interval(comparison.ci95)]


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{bounds[0]:.4g} to {bounds[1]:.4g}"
