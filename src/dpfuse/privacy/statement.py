"""A guarantee in numbers and in words; reports, the page, the CLI and the API all quote this module.

Nothing here depends on a report: a statement is a function of public settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpfuse.guarantee import PERIODS, Guarantee
from dpfuse.privacy.conversion import Conversion, chance_to_tell, epsilons

NO_GUARANTEE = "No guarantee: this design adds no noise. It serves for comparison and is never released."

CONVERSIONS_EXPLAINED: dict[Conversion, str] = {
    "mironov": "from the loss at one order: Mironov's formula",
    "order": "from the loss at one order: the tightest known formula",
    "zcdp": "from the loss at every order; true for discrete noise",
    "gdp": "exact for continuous noise; --coordinates for discrete",
}

CHANCE_EXPLAINED = (
    "The chance to tell is that of the best possible observer, who sees every release, knows the data of all other "
    "sensors and believes beforehand, with probability 50%, that one given sensor took part. 50% is guessing, 100% is "
    "certainty. Below about 60% a sensor is well hidden, above 85% it is hardly hidden. Start with the largest "
    "budget whose chance you would defend to the person behind the sensor."
)

ASSUMED = (
    "The fusion centre, its machine and the carriers of reports are trusted, and sensor ids are authenticated. "
    "A person with n ids that report at the same time can have a loss of n^2 budgets: contributions add up, and the "
    "loss grows with the square of their sum.",
    "The reports of all other sensors are the same whether or not this sensor reports, and whatever it reports.",
    "Releases leave by the clock, and past releases and public settings alone decide what is spent. A dpfuse centre "
    "does both.",
    "The design was trained on public or simulated data, and is not tuned on live data.",
)

UNCOVERED = (
    "What the data of other sensors say about yours: if the cars around you report, their reports say something "
    "about you.",
    "The way to the centre: the carrier of a report sees that it was sent.",
    "Side channels of the machine, and flaws of its randomness.",
)

_NEIGHBOURS = {
    "remove-one": "the sensor reports, or it never reports",
    "replace-one": "the sensor reports its own data, or any other data throughout",
}
_CHARGES = {
    "total": "each release is charged for the worst possible sensor, to one public budget for each stream",
    "individual": "each sensor is charged for what it adds, to a budget of its own; what is left of it is private",
}
_LENT_UNIT = "one sensor id and all that it ever reports, over all centres of one bank and all their streams"
_LENT = (
    "The bank that lends the accounts, and the links to it, are trusted. Which of its boundaries a centre meets, and "
    "which steps it skips, does not depend on who reports.",
)
_UNITS = {
    "total": "one sensor id and all that it reports to one stream",
    "individual": "one sensor id and all that it ever reports, over all streams of one ledger",
}
_PERIODIC = (
    "The unit is reports, not events: a report that says something about an earlier period, such as that of a meter "
    "that counts up, is protected as a report of the period in which it is made. Attributes of a sensor that never "
    "change are not covered by periods. The clock of the centre (with a bank: of the bank) says which period it is.",
)
_WITH_INPUTS = (
    "The public inputs that the design reads are computed from no report, count, load or connection, unless that is a "
    "charged release. Their publishers see releases only.",
)
_UNCOVERED_BY_INPUTS = ("What a public input shows by itself: a detector in the road counts all cars that pass it.",)
_SPANS_D = {"any 7 days": 7, "any 365 days": 365}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a guarantee says about everything that is released.

    Attributes:
        horizon: the number of releases; None for a design without an end.
        num_streams: the streams that the ledger has had, retired ones too; total accounting has one budget for each.
        has_bank: a bank lends the accounts of the sensors to several centres.
        has_inputs: the design reads public inputs.
        epsilon: by each conversion; without `gdp` where the number of releases is unknown, or too large for this delta.
        chance_to_tell: see `privacy.chance_to_tell`.
    """

    guarantee: Guarantee
    horizon: int | None
    num_streams: int
    has_bank: bool
    has_inputs: bool
    delta: float
    epsilon: Mapping[Conversion, float]
    chance_to_tell: float

    @property
    def sentence(self) -> str:
        """What the guarantee means to one sensor, for people who do not know differential privacy."""
        is_one_budget = self.guarantee.accounting == "individual" or self.num_streams == 1
        period = name_period(self.guarantee)
        published = "everything ever published here" if is_one_budget else "everything that one stream ever publishes"
        if self.has_bank:
            published = "everything ever published by all centres of one bank together"
        otherwise = {
            "remove-one": "had never reported" if period is None else f"had not reported in one {period}",
            "replace-one": f"had reported something else {'throughout' if period is None else f'in one {period}'}",
        }[self.guarantee.adjacency]
        # Rounded up, which leaves room for what discrete noise adds over years (`conversion.discrete_surcharge`).
        times = min(100, math.floor(100 * self.chance_to_tell) + 1)
        return (
            f"For each sensor: {published} would be almost as likely if that sensor {otherwise}. An observer who sees "
            f"all of it, knows the data of every other sensor and guesses which of the two is true is right at most "
            f"{times} times in 100; a coin is right 50 times."
            + ("" if period is None else f" The next {period} has a budget of its own.")
        )

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """The parts of the guarantee, each with its name."""
        guarantee = self.guarantee
        unit = _LENT_UNIT if self.has_bank else _UNITS[guarantee.accounting]
        if guarantee.accounting == "total" and self.num_streams > 1:
            unit += f"; a sensor in all {self.num_streams} streams has {self.num_streams} budgets"
        if (period := name_period(guarantee)) is not None:
            unit = unit.replace("ever reports", "reports")
            unit += f", within one {period}"
        by: Conversion = "gdp" if "gdp" in self.epsilon else "zcdp"
        name = {"zcdp": "by zCDP", "gdp": "by GDP, with the cost of discrete noise"}[by]
        return (
            ("Unit of privacy", unit),
            ("Neighbouring worlds", f"{guarantee.adjacency}: {_neighbours(guarantee)}"),
            (
                "Budget",
                f"Rényi loss of at most {guarantee.budget:g} at order {guarantee.order:g}, {_in_all(guarantee)}",
            ),
            ("As (ε, δ)", f"ε = {self.epsilon[by]:.2f} at δ = {_power_of_ten(self.delta)}, {name}"),
            ("Accounting", f"{guarantee.accounting}: {_CHARGES[guarantee.accounting]}"),
            *((("Over time", self.over_time),) if period is not None else ()),
        )

    @property
    def over_time(self) -> str:
        """What periods add up to; empty without periods."""
        spans = losses_over_time(self.guarantee, self.delta)
        return "; ".join(f"{span}: loss {loss:g}, ε = {epsilon:.2f} by zCDP" for span, loss, epsilon in spans)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What has to be true."""
        others = (_LENT if self.has_bank else ()) + (() if self.guarantee.period is None else _PERIODIC)
        return ASSUMED + (_WITH_INPUTS if self.has_inputs else ()) + others

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""
        return UNCOVERED + (_UNCOVERED_BY_INPUTS if self.has_inputs else ())

    def to_text(self) -> str:
        """One paragraph; `docs/guarantee.md` has the whole of it."""
        guarantee = self.guarantee
        span = "for as long as the design runs" if self.horizon is None else f"in {self.horizon} steps"
        protected = "the whole trajectory of the sensor is protected"
        if (period := name_period(guarantee)) is not None:
            protected = f"all that the sensor reports within one {period} is protected ({self.over_time})"
        by_gdp = f"{self.epsilon['gdp']:.2f} by GDP, " if "gdp" in self.epsilon else ""
        return (
            f"Everything released {span} satisfies {in_short(guarantee)}: {protected}. "
            f"Neighbouring worlds: {_neighbours(guarantee)}. Accounting: "
            f"{_CHARGES[guarantee.accounting]}. At delta = {self.delta:g} epsilon is {by_gdp}"
            f"{self.epsilon['zcdp']:.2f} by zCDP and {self.epsilon['mironov']:.2f} from the order alone. "
            f"Assumed: {' '.join(self.assumed)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON takes it."""
        return {
            "guarantee": self.guarantee.to_dict(),
            "delta": self.delta,
            "epsilon": dict(self.epsilon),
            "chance_to_tell": self.chance_to_tell,
            "horizon": self.horizon,
            **({} if self.guarantee.period is None else {"over_time": self._over_time_as_json()}),
            "streams_in_ledger": self.num_streams,
            "in_words": [self.sentence, *(f"{name}: {fact}." for name, fact in self.facts)],
            "assumed": list(self.assumed),
            "uncovered": list(self.uncovered),
        }

    def _over_time_as_json(self) -> list[dict[str, Any]]:
        spans = losses_over_time(self.guarantee, self.delta)
        return [{"span": span, "loss": loss, "epsilon_zcdp": epsilon} for span, loss, epsilon in spans]


def name_period(guarantee: Guarantee) -> str | None:
    """The period in words; None without periods."""
    names = {"day": "calendar day (UTC)", "hour": "hour of the clock (UTC)", None: None}
    return names[guarantee.period] if guarantee.period in names else f"period of {guarantee.period:g} s"


def losses_over_time(guarantee: Guarantee, delta: float) -> list[tuple[str, float, float]]:
    """Spans of time, with the Rényi loss of all reports within each and its epsilon by zCDP; empty without periods.

    n whole periods lose n budgets at most. A span that begins inside a period touches one more than it is long.
    """
    if guarantee.period_s is None:
        return []
    length_s = guarantee.period_s
    length = {"day": "24 hours", "hour": "60 minutes"}.get(str(guarantee.period), f"{length_s:g} s")
    counts = {f"one {name_period(guarantee)}": 1, f"any {length}": 2}
    counts |= {span: math.ceil(days * PERIODS["day"] / Fraction(length_s)) + 1 for span, days in _SPANS_D.items()}
    return [
        (span, count * guarantee.budget, epsilons(guarantee.order, count * guarantee.budget, delta)["zcdp"])
        for span, count in counts.items()
    ]


def _neighbours(guarantee: Guarantee) -> str:
    within = "" if guarantee.period is None else "; they agree outside of one period"
    return _NEIGHBOURS[guarantee.adjacency] + within


def _in_all(guarantee: Guarantee) -> str:
    period = name_period(guarantee)
    return "in all" if period is None else f"in one {period}, and as much again in the next"


def state_guarantee(
    guarantee: Guarantee,
    *,
    horizon: int | None,
    dimension: int,
    num_streams: int = 1,
    has_bank: bool = False,
    has_inputs: bool = False,
    delta: float = 1e-5,
) -> Statement:
    """The statement of a guarantee; takes about a second the first time, as it loads an accountant.

    Args:
        horizon: the number of releases of each stream; None for a design without an end.
        dimension: the coordinates of one release.
        num_streams: the streams that the ledger has had, retired ones too; in individual accounting a sensor pays for
            all of them from one budget.
        has_bank: a bank lends the accounts to several centres, so how many streams a sensor meets is unknown.
        has_inputs: the design reads public inputs.
    """
    streams_of_budget = 1 if guarantee.accounting == "total" else num_streams
    coordinates = (horizon or 0) * dimension * streams_of_budget
    found = epsilons(guarantee.order, guarantee.budget, delta, coordinates)
    # Without a known number of releases the surcharge for discrete noise is unknown too.
    if horizon is None or has_bank or not math.isfinite(found["gdp"]):
        del found["gdp"]
    return Statement(
        guarantee=guarantee,
        horizon=horizon,
        num_streams=num_streams,
        has_bank=has_bank,
        has_inputs=has_inputs,
        delta=delta,
        epsilon=found,
        chance_to_tell=chance_to_tell(guarantee.order, guarantee.budget),
    )


def in_short(guarantee: Guarantee, *, has_bank: bool = False) -> str:
    """The guarantee in half a sentence."""
    units = {"total": "one sensor in one stream", "individual": "one sensor in all streams of a ledger"}
    unit = "one sensor at all centres of one bank" if has_bank else units[guarantee.accounting]
    return (
        f"({guarantee.order:g}, {guarantee.budget:g})-Rényi differential privacy for {unit} "
        f"({guarantee.adjacency})"
        + ("" if guarantee.period is None else f", renewed with every {name_period(guarantee)}")
    )


def _power_of_ten(value: float) -> str:
    """1e-05 as 10⁻⁵, and other numbers as they are."""
    exponent = round(math.log10(value))
    return f"10{str(exponent).translate(_SUPERSCRIPT)}" if value == float(f"1e{exponent}") else f"{value:g}"
