"""A guarantee in numbers and in words; reports, the page, the CLI and the API all quote this module.

Nothing here depends on a report: a statement is a function of public settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpfuse.privacy.conversion import Conversion, chance_to_tell, epsilons
from dpfuse.types import Guarantee

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
_UNITS = {
    "total": "one sensor id and all that it reports to one stream",
    "individual": "one sensor id and all that it ever reports, over all streams of one ledger",
}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a guarantee says about everything that is released.

    Attributes:
        horizon: the number of releases; None for a design without an end.
        num_streams: the streams of the ledger; total accounting has one budget for each.
        epsilon: by each conversion; without `gdp` where the number of releases is unknown, or too large for this delta.
        chance_to_tell: see `privacy.chance_to_tell`.
    """

    guarantee: Guarantee
    horizon: int | None
    num_streams: int
    delta: float
    epsilon: Mapping[Conversion, float]
    chance_to_tell: float

    @property
    def sentence(self) -> str:
        """What the guarantee means to one sensor, for people who do not know differential privacy."""
        is_one_budget = self.guarantee.accounting == "individual" or self.num_streams == 1
        published = "everything ever published here" if is_one_budget else "everything that one stream ever publishes"
        otherwise = {
            "remove-one": "had never reported",
            "replace-one": "had reported something else throughout",
        }[self.guarantee.adjacency]
        # Rounded up, which leaves room for what discrete noise adds over years (`conversion.discrete_surcharge`).
        times = min(100, math.floor(100 * self.chance_to_tell) + 1)
        return (
            f"For each sensor: {published} would be almost as likely if that sensor {otherwise}. An observer who sees "
            f"all of it, knows the data of every other sensor and guesses which of the two is true is right at most "
            f"{times} times in 100; a coin is right 50 times."
        )

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """The parts of the guarantee, each with its name."""
        guarantee, unit = self.guarantee, _UNITS[self.guarantee.accounting]
        if guarantee.accounting == "total" and self.num_streams > 1:
            unit += f"; a sensor in all {self.num_streams} streams has {self.num_streams} budgets"
        by: Conversion = "gdp" if "gdp" in self.epsilon else "zcdp"
        name = {"zcdp": "by zCDP", "gdp": "by GDP, with the cost of discrete noise"}[by]
        return (
            ("Unit of privacy", unit),
            ("Neighbouring worlds", f"{guarantee.adjacency}: {_NEIGHBOURS[guarantee.adjacency]}"),
            ("Budget", f"Rényi loss of at most {guarantee.budget:g} at order {guarantee.order:g}, in all"),
            ("As (ε, δ)", f"ε = {self.epsilon[by]:.2f} at δ = {_power_of_ten(self.delta)}, {name}"),
            ("Accounting", f"{guarantee.accounting}: {_CHARGES[guarantee.accounting]}"),
        )

    def to_text(self) -> str:
        """One paragraph; `docs/guarantee.md` has the whole of it."""
        guarantee = self.guarantee
        span = "for as long as the design runs" if self.horizon is None else f"in {self.horizon} steps"
        by_gdp = f"{self.epsilon['gdp']:.2f} by GDP, " if "gdp" in self.epsilon else ""
        return (
            f"Everything released {span} satisfies {in_short(guarantee)}: the whole trajectory of the sensor is "
            f"protected. Neighbouring worlds: {_NEIGHBOURS[guarantee.adjacency]}. Accounting: "
            f"{_CHARGES[guarantee.accounting]}. At delta = {self.delta:g} epsilon is {by_gdp}"
            f"{self.epsilon['zcdp']:.2f} by zCDP and {self.epsilon['mironov']:.2f} from the order alone. "
            f"Assumed: {' '.join(ASSUMED)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The statement as JSON takes it."""
        return {
            "guarantee": self.guarantee.to_dict(),
            "delta": self.delta,
            "epsilon": dict(self.epsilon),
            "chance_to_tell": self.chance_to_tell,
            "horizon": self.horizon,
            "streams_in_ledger": self.num_streams,
            "in_words": [self.sentence, *(f"{name}: {fact}." for name, fact in self.facts)],
            "assumed": list(ASSUMED),
            "uncovered": list(UNCOVERED),
        }


def state_guarantee(
    guarantee: Guarantee, *, horizon: int | None, dimension: int, num_streams: int = 1, delta: float = 1e-5
) -> Statement:
    """The statement of a guarantee; takes about a second the first time, as it loads an accountant.

    Args:
        horizon: the number of releases of each stream; None for a design without an end.
        dimension: the coordinates of one release.
        num_streams: the streams of the ledger; in individual accounting a sensor pays for all of them from one budget.
    """
    streams_of_budget = 1 if guarantee.accounting == "total" else num_streams
    coordinates = (horizon or 0) * dimension * streams_of_budget
    found = epsilons(guarantee.order, guarantee.budget, delta, coordinates)
    # Without a known number of releases the surcharge for discrete noise is unknown too.
    if horizon is None or not math.isfinite(found["gdp"]):
        del found["gdp"]
    return Statement(
        guarantee=guarantee,
        horizon=horizon,
        num_streams=num_streams,
        delta=delta,
        epsilon=found,
        chance_to_tell=chance_to_tell(guarantee.order, guarantee.budget),
    )


def in_short(guarantee: Guarantee) -> str:
    """The guarantee in half a sentence."""
    unit = {"total": "one sensor in one stream", "individual": "one sensor in all streams of a ledger"}
    return (
        f"({guarantee.order:g}, {guarantee.budget:g})-Rényi differential privacy for {unit[guarantee.accounting]} "
        f"({guarantee.adjacency})"
    )


def _power_of_ten(value: float) -> str:
    """1e-05 as 10⁻⁵, and other numbers as they are."""
    exponent = round(math.log10(value))
    return f"10{str(exponent).translate(_SUPERSCRIPT)}" if value == float(f"1e{exponent}") else f"{value:g}"
