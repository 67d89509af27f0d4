"""Markdown tables and lists of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, ended by a line break."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def with_interval(value: float, interval: Sequence[float], form: str = ".2f") -> str:
    """A number and, in brackets, its interval."""
    low, high = interval
    return f"{value:{form}} ({low:{form}} to {high:{form}})"
