"""The promise of a running centre, for anybody to read: in numbers and in plain words. All of it is public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfuse.privacy.budget import GRID
from dpfuse.privacy.conversion import chance_to_tell, epsilons, gdp_epsilon
from dpfuse.privacy.loss import charge_factor

if TYPE_CHECKING:
    from dpfuse.policy.design import Design

_DELTA = 1e-5


def describe_promise(design: Design, streams: Sequence[str], interval_s: float, delay_s: float) -> dict[str, Any]:
    """What `GET /v1/guarantee` answers; takes a second, as it loads an accountant."""
    guarantee, structure, constants = design.guarantee, design.structure, design.policy.constants
    assert guarantee is not None and structure.features != "unbounded"  # only designs with a promise are run
    ranges = zip(constants.measurement_low.tolist(), constants.measurement_high.tolist(), strict=True)
    return {
        "guarantee": guarantee.to_dict(),
        "in_words": _in_words(design, len(streams)),
        "delta": _DELTA,
        "epsilon": _epsilon(design, len(streams)),
        "chance_to_tell": chance_to_tell(guarantee.order, guarantee.budget),
        "charge_factor": charge_factor(
            structure.features, structure.dimension, guarantee.adjacency, guarantee.accounting
        ),
        "fingerprint": design.fingerprint,
        "streams": list(streams),
        "horizon": structure.horizon,
        "interval_s": interval_s,
        "delay_s": delay_s,
        "channels": [{"low": low, "high": high} for low, high in ranges],
        "num_states": structure.num_states,
        "dimension": structure.dimension,
        "grid": GRID,
    }


def _epsilon(design: Design, num_streams: int) -> dict[str, float]:
    """By every order at once, and, where it is known how much is released, by the exact curve with its surcharge."""
    guarantee, structure = design.guarantee, design.structure
    assert guarantee is not None
    order, budget = guarantee.order, guarantee.budget
    found = {"zcdp": epsilons(order, budget, _DELTA)["zcdp"]}
    if structure.horizon is not None:
        paid_together = 1 if guarantee.accounting == "total" else num_streams
        coordinates = structure.horizon * structure.dimension * paid_together
        found["gdp"] = gdp_epsilon(order, budget, _DELTA, coordinates)
    return found


def _in_words(design: Design, num_streams: int) -> list[str]:
    guarantee, horizon = design.guarantee, design.structure.horizon
    assert guarantee is not None
    is_total = guarantee.accounting == "total"
    neighbours = {
        "remove-one": "whether one sensor ever reported, or not",
        "replace-one": "whether one sensor reported what it did, or anything else",
    }[guarantee.adjacency]
    chance = chance_to_tell(guarantee.order, guarantee.budget)
    where = "of one stream" if is_total else "of this centre's ledger"
    words = [
        f"Everything ever published {where} is ({guarantee.order:g}, {guarantee.budget:g})-Rényi differentially "
        f"private for the whole trajectory of any one sensor ({guarantee.adjacency}).",
        f"Somebody who reads all of it, and knows the reports of all others, can tell {neighbours}, in at most "
        f"{chance:.0%} of the cases, where guessing would be right in 50%.",
    ]
    if is_total:
        words.append("Each release is charged for the worst sensor that there could be; what is left is public.")
        if num_streams > 1:
            words.append(f"A sensor that reports to several of the {num_streams} streams pays in each of them.")
    else:
        words.append("Each sensor pays for what it adds, from an account of its own; what is left in it is private.")
    words.append(
        f"There are {horizon} releases a stream, then it ends for good."
        if horizon
        else "There is no end: a sensor whose account is spent adds nothing any more."
    )
    words.append(
        "Centre and broker are trusted. What other sensors' reports say about one is not covered. The unit is one "
        "sensor id in one ledger: a sensor with a second id has a second budget."
    )
    return words
