"""The `Guarantee` for the sensors: what a user asks for, and what every release keeps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Literal

from dpfuse import _check

Adjacency = Literal["replace-one", "remove-one"]
Accounting = Literal["total", "individual"]
ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "remove-one")
ACCOUNTINGS: tuple[Accounting, ...] = ("total", "individual")
PERIODS: dict[str, int] = {"hour": 3600, "day": 86_400}
"""The lengths of the named periods, in seconds. A day is a calendar day in UTC."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Guarantee:
    """(order, budget)-Rényi differential privacy of everything released, for one sensor's whole trajectory.

    Attributes:
        order: the Rényi order alpha, above 1.
        budget: the budget B_G at that order.
        adjacency: how two neighbouring data sets differ. `replace-one`: in the whole trajectory of one sensor.
            `remove-one`: one of them lacks one sensor. There is no default, as the two are different guarantees.
        accounting: `total` charges each release for the worst possible sensor, to one budget for the stream;
            `individual` charges each sensor for what it adds, to a budget of its own.
        period: `day`, `hour` or a number of seconds: the budget is for everything that one sensor reports within one
            period, and renewed at the next one. Periods are counted from 1970-01-01 00:00 UTC, so `day` is the calendar
            day in UTC. None: the budget is for everything that a sensor ever reports.
    """

    order: float
    budget: float
    adjacency: Adjacency
    accounting: Accounting = "total"
    period: str | float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", _check.is_positive("order", self.order))
        if self.order <= 1:
            raise ValueError(f"order must be > 1, got {self.order!r}; 2 is a usual choice")
        remedy = "train with guarantee=None for the non-private floor"
        object.__setattr__(self, "budget", _check.is_positive("budget", self.budget, remedy))
        if self.budget / self.order > 2**20:
            raise ValueError(f"budget must be at most 2^20 * order, got {self.budget!r}; it would protect nobody")
        _check.is_one_of("adjacency", self.adjacency, ADJACENCIES)
        _check.is_one_of("accounting", self.accounting, ACCOUNTINGS)
        if isinstance(self.period, str):
            _check.is_one_of("period", self.period, PERIODS, "give another length as a number of seconds")
        elif self.period is not None:
            object.__setattr__(self, "period", _check.is_positive("period", self.period))
            if self.period < 1:
                raise ValueError(f"period must be at least 1 s, got {self.period:g}; a budget is renewed with each one")

    @property
    def squared_radius(self) -> Fraction:
        """2 B / alpha: the largest squared distance of two worlds over all releases, in noise standard deviations."""
        return 2 * Fraction(self.budget) / Fraction(self.order)

    @property
    def period_s(self) -> float | None:
        """The length of a period in seconds; None without periods."""
        return PERIODS[self.period] if isinstance(self.period, str) else self.period

    def period_at(self, unix_s: float) -> int | None:
        """The number of the period at that moment, in seconds since 1970; None without periods."""
        return None if self.period_s is None else math.floor(unix_s / self.period_s)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them; `period` only if there is one."""
        described = asdict(self)
        if self.period is None:
            del described["period"]
        return described

    def __repr__(self) -> str:
        # Fingerprints of designs cover this text. Without a period it is as it was before there were periods.
        shown = (field.name for field in fields(self) if field.name != "period" or self.period is not None)
        return f"Guarantee({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"
