"""The promise of a running centre, for anybody to read: in numbers and in plain words. All of it is public."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dpfuse.privacy.budget import GRID
from dpfuse.privacy.conversion import chance_to_tell, epsilons, gdp_epsilon
from dpfuse.public.words import in_words

if TYPE_CHECKING:
    from dpfuse.policy.design import Design

_DELTA = 1e-5


def describe_promise(
    design: Design, streams: Sequence[str], num_in_ledger: int, interval_s: float, delay_s: float
) -> dict[str, Any]:
    """What `GET /v1/guarantee` answers; takes a second, as it loads an accountant.

    Args:
        streams: those of this centre.
        num_in_ledger: how many the ledger has; in PostgreSQL other centres may write the rest, and sensors pay for all.
    """
    guarantee, structure, constants = design.guarantee, design.structure, design.policy.constants
    assert guarantee is not None  # only designs with a promise are run
    ranges = zip(constants.measurement_low.tolist(), constants.measurement_high.tolist(), strict=True)
    promise = {
        "guarantee": guarantee.to_dict(),
        "delta": _DELTA,
        "epsilon": _epsilon(design, num_in_ledger),
        "chance_to_tell": chance_to_tell(guarantee.order, guarantee.budget),
        "fingerprint": design.fingerprint,
        "streams": list(streams),
        "streams_in_ledger": num_in_ledger,
        "horizon": structure.horizon,
        "interval_s": interval_s,
        "delay_s": delay_s,
        "channels": [{"low": low, "high": high} for low, high in ranges],
        "num_states": structure.num_states,
        "dimension": structure.dimension,
        "grid": GRID,
    }
    words = in_words(promise)
    return promise | {
        "in_words": [words.promise, *(f"{name}: {fact}." for name, fact in words.facts)],
        "assumed": list(words.assumed),
        "uncovered": list(words.uncovered),
    }


def _epsilon(design: Design, num_streams: int) -> dict[str, float]:
    """By every order at once, and, where it is known how much is released, by the exact curve with its surcharge."""
    guarantee, structure = design.guarantee, design.structure
    assert guarantee is not None
    found = {"zcdp": epsilons(guarantee.order, guarantee.budget, _DELTA)["zcdp"]}
    if structure.horizon is not None:
        paid_together = 1 if guarantee.accounting == "total" else num_streams
        coordinates = structure.horizon * structure.dimension * paid_together
        found["gdp"] = gdp_epsilon(guarantee.order, guarantee.budget, _DELTA, coordinates)
    return found
