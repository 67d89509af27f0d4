"""The guarantee in plain words, for people who are asked to trust it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


def in_words(promise: Mapping[str, Any]) -> Words:
    """The promise of a centre, given what `GET /v1/guarantee` answers."""
    guarantee, num_streams = promise["guarantee"], promise["streams_in_ledger"]
    is_one_budget = guarantee["accounting"] == "individual" or num_streams == 1
    published = "everything ever published here" if is_one_budget else "everything that one stream ever publishes"
    otherwise = {
        "remove-one": "had never reported",
        "replace-one": "had reported something else throughout",
    }[guarantee["adjacency"]]
    # Rounded up, which has room for what discrete noise adds over years (`conversion.discrete_surcharge`).
    times = min(100, math.floor(100 * promise["chance_to_tell"]) + 1)
    return Words(
        promise=f"To each sensor: {published} is almost as likely as if that sensor {otherwise}. Somebody who sees all "
        f"of it, knows every other sensor’s data and guesses which of the two it was, is right at most {times} times "
        f"in 100; a coin is right 50 times.",
        facts=_facts(promise, num_streams),
        assumed=(
            "The fusion centre, its machine and whoever carries the reports to it are trusted, and sensor ids are "
            "authenticated. Somebody behind several ids has several budgets spent on them.",
            "What the other sensors report is the same in both worlds.",
            "Releases leave by the clock, and what is spent is decided from past releases and public settings alone. "
            "This centre does both.",
            "The design was trained on public or simulated data, and nobody tunes it on live data.",
        ),
        uncovered=(
            "What other sensors’ data say about yours: if the cars around you report, they tell something about you.",
            "The way to the centre: whoever carries a report sees that it was sent.",
            "Side channels of the machine, and flaws of its randomness.",
        ),
    )


def _facts(promise: Mapping[str, Any], num_streams: int) -> tuple[tuple[str, str], ...]:
    guarantee = promise["guarantee"]
    if guarantee["accounting"] == "individual":
        unit = "one sensor id and all that it ever reports, over all streams of one ledger"
        account = "individual: each sensor pays for what it adds; what it has left is private and shown nowhere"
    else:
        unit = "one sensor id and all that it reports to one stream"
        account = "total: each release is charged for the worst sensor there could be, one public budget a stream"
        if num_streams > 1:
            unit += f"; in all {num_streams} streams it is {num_streams} budgets"
    neighbours = {
        "remove-one": "remove-one: the sensor is there, or it is not",
        "replace-one": "replace-one: the sensor’s data are what they are, or any other",
    }[guarantee["adjacency"]]
    by, epsilon = min(promise["epsilon"].items(), key=lambda item: item[1])
    name = {"zcdp": "by zCDP", "gdp": "by GDP, with what discrete noise adds"}[by]
    return (
        ("Whom it protects", unit),
        ("Worlds not to be told apart", neighbours),
        ("Budget", f"Rényi loss of at most {guarantee['budget']:g} at order {guarantee['order']:g}, in all"),
        ("The same as (ε, δ)", f"ε = {epsilon:.2f} at δ = {_power_of_ten(promise['delta'])}, {name}"),
        ("Accounting", account),
    )


def _power_of_ten(value: float) -> str:
    """1e-05 as 10⁻⁵, and other numbers as they are."""
    exponent = round(math.log10(value))
    return f"10{str(exponent).translate(_SUPERSCRIPT)}" if value == float(f"1e{exponent}") else f"{value:g}"
