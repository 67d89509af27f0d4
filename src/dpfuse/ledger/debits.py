"""What entries are to be charged, in whole numbers, before anything is drawn or written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.errors import BudgetExceeded
from dpfuse.ledger.terms import Entry, Terms
from dpfuse.privacy.budget import as_ids

_ENTRY = np.dtype("<i8")
# More than any budget, see `Guarantee`.
_TOO_MUCH = 2**62


class Debits(NamedTuple):
    """What each sensor is charged, in the order of their ids. Private; no message shows one.

    Attributes:
        sensors: ids, each once, shape (m,).
        costs: in squared grid steps, above 0, shape (m,).
    """

    sensors: Integers
    costs: Integers

    @classmethod
    def from_bytes(cls, sensors: bytes, costs: bytes) -> Debits:
        """The inverse of `to_bytes`; ValueError if it is not."""
        debits = cls(*(np.frombuffer(part, _ENTRY).astype(np.int64) for part in (sensors, costs)))
        is_ascending = (debits.sensors >= 0).all() and (np.diff(debits.sensors) > 0).all()
        if debits.sensors.shape != debits.costs.shape or not is_ascending or not (debits.costs > 0).all():
            raise ValueError("no debits")
        return debits

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Sensors and costs as they are stored: 8 bytes each, little-endian."""
        sensors, costs = (part.astype(_ENTRY, copy=False).tobytes() for part in self)
        return sensors, costs

    @property
    def total(self) -> int:
        """The sum, exactly: numpy's wraps where costs are large, so the halves of their bits are added up apart."""
        return (int((self.costs >> 31).sum()) << 31) + int((self.costs & (2**31 - 1)).sum())


NO_DEBITS = Debits(np.zeros(0, np.int64), np.zeros(0, np.int64))


def check_entries(entries: Sequence[Entry], terms: Terms, streams: Collection[str]) -> None:
    """Refuse what no ledger with these terms and streams could take, whatever is in it."""
    for entry in entries:
        _check.is_one_of("stream", entry.stream, streams)
        if _check.is_count("step", entry.step, 1) >= 2**63:
            raise ValueError(f"step must be below 2^63, got {entry.step}")
        if terms.horizon is not None and entry.step > terms.horizon:
            raise ValueError(
                f"step must be at most {terms.horizon}, got {entry.step}; the design ends there and never starts again "
                f"on these sensors"
            )
    if len({entry.stream for entry in entries}) < len(entries):
        raise ValueError("entries must be of different streams; commit the steps of one stream one by one")


def check_undrawn(entries: Iterable[Entry], terms: Terms) -> None:
    """Refuse a step that was drawn outside of the ledger: it may have been published."""
    for entry in entries:
        if entry.charged.exact_sum is None:
            raise RuntimeError("this step was drawn already; hand over what `charge` returned and let the ledger draw")
        if entry.charged.exact_sum.shape != (terms.dimension,):
            raise ValueError(f"charged must have a sum of shape ({terms.dimension},); charge it by this design")


def left_after(entry: Entry, left: int, factor: int) -> int:
    """What a stream with its own account has left after the entry."""
    cost = factor * int(entry.charged.fusion_weight) ** 2
    if entry.charged.debits.tolist() != [cost]:
        raise ValueError(f"charged must have been charged {cost} for its weight; take it from `Mechanism.charge`")
    if cost > left:
        raise BudgetExceeded(f"stream {entry.stream!r} has {left} squared grid steps left and the step costs {cost}")
    return left - cost


def debits_of(entries: Sequence[Entry]) -> Debits:
    """What each sensor is charged for all entries together, in individual accounting."""
    pairs = [(as_ids(entry.ids), entry.charged.debits) for entry in entries]
    if any(sensors.shape != costs.shape for sensors, costs in pairs):
        raise ValueError("ids must be those that were charged, one for each debit")
    sensors, costs = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    if (costs < 0).any() or (sensors[costs > 0] < 0).any():
        raise ValueError("debits must be 0 or more, of somebody; take them from `Mechanism.charge`")
    order = np.flatnonzero(costs)
    order = order[np.argsort(sensors[order])]
    payers, paid = sensors[order], costs[order]
    is_first = np.append(True, payers[1:] != payers[:-1])[: len(payers)]
    totals, place = paid[is_first], np.cumsum(is_first) - 1
    # Who is in several streams: added up as Python integers, which do not wrap; no account has room for so much.
    for row in np.flatnonzero(~is_first).tolist():
        totals[place[row]] = min(int(totals[place[row]]) + int(paid[row]), _TOO_MUCH)
    return Debits(payers[is_first], totals)
