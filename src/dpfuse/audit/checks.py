"""What one check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check of an audit.

    Attributes:
        name: what was checked.
        passed: whether nothing spoke against the promise.
        found: in words.
        false_alarm: how often, at most, it fails where the promise holds; 0 for a check without chance.
    """

    name: str
    passed: bool
    found: str
    false_alarm: float = 0.0


def certain(name: str, what: str, failures: Iterable[str]) -> Check:
    """A check without chance: `what` holds unless there is a failure, of which the first is told."""
    first, *more = [*failures, None]
    if first is None:
        return Check(name, True, what)
    others = f" (and {len(more) - 1} more)" if len(more) > 1 else ""
    return Check(name, False, f"not so: {first}{others}")
