"""Steps that are to be committed, and the checks before noise is drawn for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse.errors import BudgetExceeded
from dpfuse.ledger.debits import NO_DEBITS, Debits
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.terms import Terms
from dpfuse.privacy.budget import as_ids
from dpfuse.privacy.release import Charged, Release
from dpfuse.public.rows import Row, to_bytes

# More than any budget, see `Guarantee`.
_TOO_MUCH = 2**62
_LOW_BITS = 2**31 - 1


@dataclass(eq=False)  # to make a frozen one, for every stream of every step, takes six times as long
class Entry:
    """One step of one stream, to be committed to a ledger: charged, and without noise. Private.

    Attributes:
        stream: its name.
        step: its number, from 1 on. Steps may be skipped. A skipped step is refused once a later one is committed.
        charged: what `ExactStep.contribute` or `Mechanism.charge` returned.
        ids: of the sensors that were charged, shape (m,); not needed in total accounting.
        inputs: the public inputs that E reads with the release, see `dpfuse.public_inputs.pack`; None for a design
            that reads none.
    """

    stream: str
    step: int
    charged: Charged
    ids: ArrayLike = field(default=(), repr=False)
    inputs: bytes | None = None


def check_entries(entries: Sequence[Entry], terms: Terms) -> None:
    """Refuse entries that no ledger with these terms could hold."""
    streams = dict.fromkeys(terms.streams)  # found at once, also among thousands
    for entry in entries:
        _check.is_one_of("stream", entry.stream, streams)
        if _check.is_count("step", entry.step, 1) >= 2**63:
            raise ValueError(f"step must be below 2^63, got {entry.step}")
        if terms.horizon is not None and entry.step > terms.horizon:
            raise ValueError(
                f"step must be at most {terms.horizon}, got {entry.step}; the design ends there and never starts again "
                f"on these sensors"
            )
        if not terms.has_inputs(entry.inputs):
            raise ValueError(
                f"inputs must be those that the design reads, {terms.num_public} for each step, got "
                f"{len(entry.inputs or b'')} bytes; see dpfuse.public_inputs.pack"
            )
    if len({entry.stream for entry in entries}) < len(entries):
        raise ValueError("entries must be of different streams; commit the steps of one stream one by one")


def check_undrawn(entries: Iterable[Entry], terms: Terms) -> None:
    """Refuse a step whose noise was drawn outside of the ledger: it may have been published."""
    for entry in entries:
        if entry.charged.exact_sum is None:
            raise RuntimeError("this step was drawn already; hand over what `charge` returned and let the ledger draw")
        if entry.charged.exact_sum.shape != (terms.dimension,):
            raise ValueError(f"charged must have a sum of shape ({terms.dimension},); charge it by this design")


def left_after(entry: Entry, left: int, factor: int) -> int:
    """What the stream has left after the entry, in total accounting."""
    cost = factor * int(entry.charged.fusion_weight) ** 2
    if entry.charged.debits.tolist() != [cost]:
        raise ValueError(f"charged must have been charged {cost} for its weight; take it from `Mechanism.charge`")
    if cost > left:
        raise BudgetExceeded(f"stream {entry.stream!r} has {left} squared grid steps left and the step costs {cost}")
    return left - cost


def make_rows(
    entries: Sequence[Entry], releases: Sequence[Release], progress: LedgerCheck, left: Mapping[str, int | None]
) -> list[Row]:
    """The rows of the entries with their releases; `left` is what each stream has left after them."""
    rows, design, period = [], progress.terms.design_id, progress.period
    for entry, release in zip(entries, releases, strict=True):
        stream, remaining = progress.streams[entry.stream], left[entry.stream]
        cost = None if stream.budget_left is None or remaining is None else stream.budget_left - remaining
        content = (entry.stream, int(entry.step), to_bytes(release), int(release.fusion_weight), cost, remaining)
        rows.append(Row.after(stream.last_hash, *content, design, period, entry.inputs))
    return rows


def sum_debits(entries: Sequence[Entry]) -> Debits:
    """What each sensor is charged for all entries together, in individual accounting."""
    pairs = [(as_ids(entry.ids), entry.charged.debits) for entry in entries]
    if any(sensors.shape != costs.shape for sensors, costs in pairs):
        raise ValueError("ids must be those that were charged, one for each debit")
    sensors, costs = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    if (costs < 0).any() or (sensors[costs > 0] < 0).any():
        raise ValueError("debits must be 0 or more, each of an id of 0 or more; take them from `Mechanism.charge`")
    order = np.flatnonzero(costs)
    order = order[np.argsort(sensors[order])]
    payers, paid = sensors[order], costs[order]
    first = np.flatnonzero(np.append(True, payers[1:] != payers[:-1])[: len(payers)])
    if not len(first):
        return NO_DEBITS
    # The high and the low bits are added separately, as a sum might wrap. No account has room for `_TOO_MUCH`.
    low = np.add.reduceat(paid & _LOW_BITS, first)
    high = np.minimum(np.add.reduceat(paid >> 31, first) + (low >> 31), 2**31)
    return Debits(payers[first], np.minimum((high << 31) + (low & _LOW_BITS), _TOO_MUCH))
