"""The result of one check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check of an audit.

    Attributes:
        passed: whether it found nothing against the guarantee.
        found: the finding in words.
        false_alarm: the largest probability to fail although the guarantee holds; 0 for an exact check.
    """

    name: str
    passed: bool
    found: str
    false_alarm: float = 0.0


def exact_check(name: str, what: str, failures: Iterable[str]) -> Check:
    """An exact check: it passes with the finding `what`, or fails with the first failure."""
    first, *more = [*failures, None]
    if first is None:
        return Check(name, True, what)
    others = f" (and {len(more) - 1} more)" if len(more) > 1 else ""
    return Check(name, False, f"failed: {first}{others}")
