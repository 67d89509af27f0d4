"""Which parts of a centre answer: ledger, bank and broker. Public, like a skipped step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_LONGEST_S = 1e9


class CentreParts(NamedTuple):
    """The parts of a centre; None for a part that it does not have.

    Attributes:
        ledger: whether the ledger takes commits; once it does not, the centre releases nothing more.
        bank: whether the bank has answered within its patience.
        broker: whether the broker is connected.
        epoch_age_s: whole seconds since the bank last answered.
        epoch_s: from one boundary of the bank to the next.
    """

    ledger: bool = True
    bank: bool | None = None
    broker: bool | None = None
    epoch_age_s: float | None = None
    epoch_s: float | None = None

    @classmethod
    def from_dict(cls, answer: Any) -> CentreParts:
        """The parts in a centre's answer to a relay; what is not of the right kind is None."""
        answer = answer if isinstance(answer, Mapping) else {}
        bank, broker = answer.get("bank"), answer.get("broker")
        return cls(
            ledger=answer.get("ledger") is not False,
            bank=bank if isinstance(bank, bool) else None,
            broker=broker if isinstance(broker, bool) else None,
            epoch_age_s=_as_seconds(answer.get("epoch_age_s")),
            epoch_s=_as_seconds(answer.get("epoch_s")),
        )


def _as_seconds(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < _LONGEST_S else None
