"""The numbers that docs/theory.md quotes: written into it from results.json, which run.py makes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs/theory.md"
RESULTS = Path(__file__).with_name("results.json")
_BLOCK = re.compile(r"(?<=<!-- audit -->\n).*?(?=<!-- /audit -->)", re.S)


def quoted() -> str:
    """The part of the page that quotes results."""
    results = json.loads(RESULTS.read_text())
    runs = results["command"].split("--runs ")[1].split()[0]
    rows = [
        _row(f"worst f, budget {row['budget']:g}", row["epsilon_claimed"], row["epsilon_bound"], row["reach"], runs)
        for row in results["budgets"]
    ]
    for name, design in results["designs"].items():
        for attack in design["attacks"]:
            what = f"{name}, {attack['name']}"
            rows.append(
                _row(what, design["epsilon_claimed"], attack["epsilon_bound"], attack["reach"], design["num_runs"])
            )
    heads = "| attack on | epsilon claimed | at least | share | budget reached | runs in each world |"
    return "\n".join(
        [
            f"Epsilon at delta = {results['setting']['delta']:g}, bounds at a confidence of "
            f"{results['setting']['confidence']:g}. First the worst f at several budgets (order 2, ten releases), then",
            "the designs of `make demo` (budget 0.5, a hundred releases). *Budget reached* is computed, not estimated:",
            "the squared distance of the two worlds over the budget, on average over the runs.",
            "",
            heads,
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(what: str, claim: float, bound: float, reach: float, runs: Any) -> str:
    return f"| {what} | {claim:.3f} | {bound:.3f} | {bound / claim:.0%} | {reach:.1%} | {int(runs):,} |"


def main() -> None:
    """Write the numbers into the page."""
    PAGE.write_text(_BLOCK.sub(lambda _: quoted(), PAGE.read_text()))


if __name__ == "__main__":
    main()
