"""The guarantee in plain words, for people who are asked to trust it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfuse.privacy.conversion import chance_to_tell, epsilons
from dpfuse.types import Guarantee

DELTA = 1e-5


@dataclass(frozen=True)
class Words:
    """What is promised and on which conditions; sentences for a page.

    Attributes:
        promise: to whom, and what.
        facts: what each part of it is called, and its value.
        assumed: what must be true for the promise to hold.
        uncovered: what the promise is not about.
    """

    promise: str
    facts: tuple[tuple[str, str], ...]
    assumed: tuple[str, ...]
    uncovered: tuple[str, ...]


def in_words(guarantee: Guarantee, num_streams: int) -> Words:
    """The guarantee of a centre with that many streams."""
    is_one_budget = guarantee.accounting == "individual" or num_streams == 1
    published = "everything ever published here" if is_one_budget else "everything that one stream ever publishes"
    otherwise = "had never reported" if guarantee.adjacency == "remove-one" else "had reported something else throughout"
    return Words(
        promise=f"To each sensor: {published} is almost as likely as if that sensor {otherwise}. "
        f"Somebody who sees all of it, knows every other sensor's data and guesses which of the two it was, is right at "
        f"most {_times_in_100(guarantee)} times in 100; a coin is right 50 times.",
        facts=_facts(guarantee, num_streams),
        assumed=(
            "The fusion centre, its machine and whoever carries the reports to it are trusted, and sensor ids are "
            "authenticated. Somebody behind several ids has several budgets spent on them.",
            "What the other sensors report is the same in both worlds.",
            "Releases leave by the clock, and what is spent is decided from past releases and public settings alone. "
            "This centre does both.",
            "The design was trained on public or simulated data, and nobody tunes it on live data.",
        ),
        uncovered=(
            "What other sensors' data say about yours: if the cars around you report, they tell something about you.",
            "The way to the centre: whoever carries a report sees that it was sent.",
            "Side channels of the machine, and flaws of its randomness.",
        ),
    )


def _facts(guarantee: Guarantee, num_streams: int) -> tuple[tuple[str, str], ...]:
    epsilon = epsilon_of(guarantee)
    if guarantee.accounting == "individual":
        unit = "one sensor id and all that it ever reports, over all streams"
        account = "individual: each sensor pays for what it adds; what it has left is private and shown nowhere"
    else:
        unit = "one sensor id and all that it reports to one stream"
        account = "total: each release is charged for the worst sensor there could be, one public budget a stream"
        if num_streams > 1:
            unit += f"; in all {num_streams} streams it is {num_streams} budgets"
    neighbours = {
        "remove-one": "remove-one: the sensor is there, or it is not",
        "replace-one": "replace-one: the sensor's data are what they are, or any other",
    }
    return (
        ("Whom it protects", unit),
        ("Worlds not to be told apart", neighbours[guarantee.adjacency]),
        ("Budget", f"Rényi loss at most {guarantee.budget:g} at order {guarantee.order:g}, in all"),
        ("The same as (ε, δ)", f"ε = {epsilon:.2f} at δ = {DELTA:g}, by zCDP with ρ = {guarantee.rho:g}"),
        ("Accounting", account),
    )


def epsilon_of(guarantee: Guarantee) -> float:
    """The epsilon at `DELTA` that holds for the released noise as it is, however long a stream runs."""
    return epsilons(guarantee.order, guarantee.budget, DELTA)["zcdp"]


def _times_in_100(guarantee: Guarantee) -> int:
    """Rounded up, which has room for what discrete noise adds over years (`conversion.discrete_surcharge`)."""
    return min(100, math.floor(100 * chance_to_tell(guarantee.order, guarantee.budget)) + 1)
