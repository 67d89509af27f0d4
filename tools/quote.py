"""Write the numbers of results files into pages: `make quote`.

A page holds a line `<!-- results NAME -->` and, further down, a line `<!-- /results -->`. What stands between them is
written by the function of that name in `QUOTES`, from results files alone. A test compares every page with its files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from experiments.known import report as known_report
from experiments.us101 import tables as us101_tables
from experiments.us101_defaults import tables as defaults_tables
from tools import benchmark_quotes, experiment_quotes
from tools.results import ROOT

QUOTES = {
    **experiment_quotes.QUOTES,
    **known_report.QUOTES,
    **us101_tables.QUOTES,
    **defaults_tables.QUOTES,
    **benchmark_quotes.QUOTES,
}
_BLOCK = re.compile(r"(?<=<!-- results )([^\n]+?)( -->\n).*?(?=<!-- /results -->)", re.S)


def pages() -> list[Path]:
    """Every page that may quote results."""
    folders = ("docs", "experiments", "benchmarks")
    return [ROOT / "README.md", *sorted(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]


def names_in(text: str) -> list[str]:
    """The names of the quotes in a page."""
    return [found[1] for found in _BLOCK.finditer(text)]


def fill(text: str) -> str:
    """The page with every quote as the results files have it now."""
    return _BLOCK.sub(lambda found: found[1] + found[2] + QUOTES[found[1]](), text)


def main() -> None:
    """Fill every page, and name those that changed."""
    for page in pages():
        before = page.read_text()
        if (after := fill(before)) != before:
            page.write_text(after)
            print(page.relative_to(ROOT), file=sys.stderr)


if __name__ == "__main__":
    main()
