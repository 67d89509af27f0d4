"""Reports in words: a table of designs, and what is promised to whom."""

from __future__ import annotations

from collections.abc import Mapping

from dpfuse.evaluation.report import Comparison, Report
from dpfuse.policy.design import Design

_NEIGHBOURS = {
    "remove-one": "the data with one sensor left out",
    "replace-one": "the data with one sensor's trajectory replaced by any other",
}
_ACCOUNTS = {
    "total": "every release is charged for the worst sensor there could be, from one budget for the stream",
    "individual": "every sensor is charged for what it adds, from a budget of its own, which stays secret",
}


def to_text(
    reports: Mapping[str, Report], comparisons: Mapping[str, Comparison] | None = None, reference: str = ""
) -> str:
    """A Markdown table with a row for each design.

    Args:
        reports: by the design's name.
        comparisons: with the `reference` design, by the design's name.
    """
    comparisons = comparisons or {}
    heads = ["design", "squared error", "95% interval", "coverage", "most spent", "budget"]
    heads += [f"error / {reference}", "95% interval"] if comparisons else []
    rows = [[name, *_figures(report)] for name, report in reports.items()]
    if comparisons:
        rows = [[*row, *_ratio(comparisons.get(row[0]))] for row in rows]
    prior = next(iter(reports.values())).prior_mse
    rows.append(["no releases at all (prior)", f"{prior:.4g}", *[""] * (len(heads) - 2)])
    table = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in table)


def _figures(report: Report) -> list[str]:
    spent = "" if report.budget_spent_max is None else f"{report.budget_spent_max:.4f}"
    budget = "none" if report.guarantee is None else f"{report.guarantee.budget:g}"
    return [f"{report.mse:.4g}", _interval(report.ci95), f"{report.coverage:.0%}", spent, budget]


def _ratio(comparison: Comparison | None) -> list[str]:
    return ["", ""] if comparison is None else [f"{comparison.ratio:.3f}", _interval(comparison.ci95)]


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f"{bounds[0]:.4g} to {bounds[1]:.4g}"


def state_guarantee(design: Design, epsilon: Mapping[str, float], delta: float) -> str:
    """What the releases of a design guarantee, in plain words; `docs/guarantee.md` has the whole of it."""
    guarantee = design.guarantee
    if guarantee is None:
        return "Nothing is promised: this design adds no noise and is a yardstick, never to be released."
    horizon = design.structure.horizon
    span = "for as long as it runs" if horizon is None else f"over its {horizon} releases"
    # The Gaussian curve grows, if by next to nothing, with the number of releases; zCDP holds for any number.
    by_curve = "" if horizon is None else f"{epsilon['gdp']:.2f} by the exact Gaussian curve, "
    return (
        f"Everything this design releases {span} satisfies ({guarantee.order:g}, {guarantee.budget:g})-Rényi "
        f"differential privacy for the whole trajectory of any one sensor, against {_NEIGHBOURS[guarantee.adjacency]} "
        f"({guarantee.adjacency}); {_ACCOUNTS[guarantee.accounting]}. As (epsilon, delta) at delta = {delta:g}: "
        f"epsilon = {by_curve}{epsilon['zcdp']:.2f} by zCDP, "
        f"{epsilon['mironov']:.2f} by the order alone. Assumed: centre trusted, what other sensors report held fixed, "
        f"releases by the clock, the design trained on public or simulated data."
    )
