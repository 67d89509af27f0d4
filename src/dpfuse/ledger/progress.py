"""How far a ledger has come: what follows from its rows and events. The writer keeps it, and a check recomputes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.events import PERIOD, RESTORE, Restored
from dpfuse.ledger.terms import Terms
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from dpfuse.ledger.signed import Signed

REMEDY = "put the right one back, never an old copy, or start a new ledger for new sensors"
"""The remedy for a ledger that was changed."""


@dataclass
class StreamCheck:
    """What a check found of one stream. All of it is public.

    Attributes:
        num_rows: how many rows it has.
        last_step: the step of the last row, 0 for none.
        budget_left: in squared grid steps; None in individual accounting.
        last_hash: the hash of the last row.
    """

    num_rows: int
    last_step: int
    budget_left: int | None
    last_hash: bytes

    def add(self, row: Row) -> None:
        """Follow the stream by one row."""
        self.num_rows += 1
        self.last_step, self.budget_left, self.last_hash = row.step, row.budget_left, row.hash


@dataclass
class LedgerCheck:
    """What a check found of a ledger that is in order. All of it is public except the private tip.

    Attributes:
        terms: the design and the streams that the ledger is for now.
        num_commits: the number of the last commit, 0 before the first.
        tip: stands for all rows ever committed; a copy kept elsewhere shows later whether they were changed.
        streams: by name, also those that were retired.
        private_tip: stands for all debits and accounts. **Private**: for the operator and a trusted witness.
        charged_to_all: what every sensor or stream, known or new, was charged by restores from a backup; in this
            period, if there are periods.
        period: the number of the period in progress; None without periods, and before the first one.
        signed: what `verify` found of the centre's signatures; None from anything else.
    """

    terms: Terms
    num_commits: int
    tip: bytes
    streams: dict[str, StreamCheck]
    private_tip: bytes = field(repr=False)
    charged_to_all: int = 0
    period: int | None = None
    signed: Signed | None = None

    @classmethod
    def at_start(cls, terms: Terms) -> LedgerCheck:
        """A ledger without a commit."""
        found = cls(terms, 0, terms.first_tip, {}, hashlib.sha256(terms.first_tip).digest())
        found._open_streams()
        return found

    def adopt(self, kind: str, content: str) -> None:
        """Go on after an event, which is part of the last commit."""
        if kind == RESTORE:
            self._restore(Restored.from_json(content))
        elif kind == PERIOD:
            self._begin_period(int(content))
        else:  # new terms; what was spent stays spent
            terms = Terms.from_json(content)
            if terms.bank_id != self.terms.bank_id:
                raise LedgerRefused("a ledger never changes its bank: nobody would know what was spent elsewhere")
            self.terms = terms
            self._open_streams()

    def _begin_period(self, period: int) -> None:
        """Every account starts afresh. Periods never go back."""
        if (
            self.terms.guarantee.period is None
            or not 0 <= period
            or period <= (-1 if self.period is None else self.period)
        ):
            raise LedgerRefused(f"period {period} cannot begin here: periods never go back; {REMEDY}")
        self.period, self.charged_to_all = period, 0
        for stream in self.streams.values():
            stream.budget_left = self.terms.mechanism.budget if self.terms.is_total else None

    def _restore(self, restored: Restored) -> None:
        self.charged_to_all += restored.charge
        for name, stream in self.streams.items():
            if stream.budget_left is not None:
                stream.budget_left = max(0, stream.budget_left - restored.charge)
            if not restored.is_witnessed:
                stream.last_step = max(stream.last_step, restored.last_step)
                stream.last_hash = self._first_hash(name)

    def follow(self, row: Row, path: Path) -> None:
        """Add the row; refused if it does not follow from the rows before it."""
        terms, stream = self.terms, self.streams.get(row.stream)
        if stream is None:
            raise LedgerRefused(f"{path}: a row names stream {row.stream!r}, which is not in the ledger; {REMEDY}")
        if row.step <= stream.last_step or row != Row.after(stream.last_hash, *row[:-1]):
            raise LedgerRefused(
                f"{path}: step {row.step} of stream {row.stream!r} was changed, or one before it is missing; {REMEDY}"
            )
        cost, left = None, None
        if stream.budget_left is not None:
            cost = terms.mechanism.factor * row.fusion_weight**2
            left = stream.budget_left - cost
        is_of_design = row.design == terms.design_id and len(row.release) == 8 * terms.dimension
        is_of_design = is_of_design and row.step <= (terms.horizon or row.step)
        is_of_design = is_of_design and row.period == self.period and terms.has_inputs(row.inputs)
        if not is_of_design or (row.cost, row.budget_left) != (cost, left) or (left is not None and left < 0):
            raise LedgerRefused(
                f"{path}: step {row.step} of stream {row.stream!r} does not have the size, cost, period or public "
                f"inputs of its design; {REMEDY}"
            )
        stream.add(row)

    def _open_streams(self) -> None:
        budget = max(0, self.terms.mechanism.budget - self.charged_to_all) if self.terms.is_total else None
        for name in self.terms.streams:
            self.streams.setdefault(name, StreamCheck(0, 0, budget, self._first_hash(name)))

    def _first_hash(self, stream: str) -> bytes:
        return hashlib.sha256(self.tip + stream.encode()).digest()
