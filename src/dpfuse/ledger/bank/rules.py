"""The rules of lending: how large a slice is, what one step may use of it, and what is sent for a boundary.

Time is cut into epochs of fixed length; boundary b is the moment at which epoch b begins. What a centre sends for
boundary b must have arrived at the deadline, half an epoch before it. Then one closer computes all slices of the
boundary, and each centre spends from its own slices during epoch b. All numbers are squared grid steps, in integers.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from dpfuse import _check
from dpfuse.errors import LedgerMismatch
from dpfuse.guarantee import Guarantee
from dpfuse.privacy.budget import squared_steps

_NEVER = 2**62
NOTHING = -1
"""Fills up the ids of a message to its capacity."""


def slice_of(left: int, budget: int, num_claimants: int) -> int:
    """floor(min(left / 2, budget / 8) / m), exactly.

    Args:
        left: what the account has neither spent nor lent out.
        num_claimants: m, how many centres claim the sensor at this boundary.
    """
    return min(left // 2, budget // 8) // num_claimants


class Loan(NamedTuple):
    """A slice of each of these sensors' accounts, lent to one centre for one epoch. Private.

    Attributes:
        sensors: ids in ascending order, each once.
        amounts: in squared grid steps, one for each sensor.
    """

    sensors: Sequence[int]
    amounts: Sequence[int]

    def __repr__(self) -> str:
        return "Loan()"


class LastAnswer(NamedTuple):
    """The last boundary at which the bank counted what a centre had sent, and lent to it; public.

    A centre keeps it in its ledger and shows it to the bank. A bank that does not know it is an old copy.

    Attributes:
        boundary: -1 for none.
        mark: a random name that the bank gave to the closing of this boundary.
    """

    boundary: int = -1
    mark: str = ""


NO_ANSWER = LastAnswer()


@dataclass(frozen=True)
class Submission:
    """What a centre sends for one boundary. Private.

    Attributes:
        last_answer: the last one that the centre has received.
        claims: the sensors that reported to the centre in the epoch before.
        statements: what was spent of each slice that the centre has closed and that the bank has not confirmed, by
            epoch; in the order of the loan's sensors. Sent again until it is confirmed; it counts once.
    """

    centre: str
    generation: int
    boundary: int
    claims: Sequence[int] = field(repr=False)
    statements: Mapping[int, Sequence[int]] = field(repr=False, default_factory=dict)
    last_answer: LastAnswer = NO_ANSWER


@dataclass(frozen=True, kw_only=True)
class BankTerms:
    """What a bank is created for. It never changes, and all of it is public.

    Attributes:
        bank_id: a random name.
        guarantee: what every sensor is guaranteed over all centres together. If it has periods, accounts, loans and
            claims of one period are void in the next one.
        epoch_s: seconds from one boundary to the next.
        patience: a centre that had no answer for so many boundaries releases nothing until it has one. A centre may
            begin anew elsewhere only after that.
        capacity: messages are filled up to a multiple of so many sensors. No number of sensors is refused.
    """

    bank_id: str
    guarantee: Guarantee
    epoch_s: float = 2.0
    patience: int = 30
    capacity: int = 10_000

    def __post_init__(self) -> None:
        if self.guarantee.accounting != "individual":
            raise ValueError(
                "guarantee must have individual accounting: in total accounting an account belongs to a stream, and a "
                "stream to one ledger; run centres without a bank"
            )
        _check.is_positive("epoch_s", self.epoch_s)
        _check.is_count("patience", self.patience, 3)
        _check.is_count("capacity", self.capacity)
        if (length_s := self.guarantee.period_s) is not None and length_s != self.epochs_per_period * self.epoch_s:
            raise ValueError(f"epoch_s must divide the period of {length_s:g} s, got {self.epoch_s:g}")

    @functools.cached_property
    def budget(self) -> int:
        """The budget of each account in squared grid steps."""
        return squared_steps(self.guarantee)

    @property
    def epochs_per_period(self) -> int:
        """How many epochs a period has; without periods more than there will ever be."""
        return _NEVER if self.guarantee.period_s is None else max(1, round(self.guarantee.period_s / self.epoch_s))

    def period_of(self, epoch: int) -> int:
        """The number of the period that the epoch is in; 0 without periods."""
        return max(epoch, 0) // self.epochs_per_period

    def may_claim(self, boundary: int, restored_at: int = -1) -> bool:
        """Whether claims count at that boundary: they are of reports two epochs before it, and its own period.

        In the period in which the bank was restored none counts: what it had lent there is unknown.
        """
        is_known = restored_at < 0 or self.period_of(boundary) > self.period_of(restored_at)
        return is_known and self.period_of(boundary) == self.period_of(boundary - 2)

    def epoch_at(self, unix_s: float) -> int:
        """The epoch at that moment."""
        return math.floor(unix_s / self.epoch_s)

    def begins_at(self, boundary: int) -> float:
        """The moment of that boundary, in seconds since 1970."""
        return boundary * self.epoch_s

    def deadline_of(self, boundary: int) -> float:
        """What arrives later is not counted at that boundary."""
        return (boundary - 0.5) * self.epoch_s

    def may_begin_anew(self, boundary: int, last_boundary: int) -> bool:
        """Whether a centre that last sent something for `last_boundary` releases nothing any more."""
        return boundary > last_boundary + self.patience + 2

    def check_guarantee(self, guarantee: Guarantee | None, name: object) -> None:
        """Refuse a design with another guarantee: its debits would not be comparable."""
        if guarantee != self.guarantee:
            raise LedgerMismatch(
                f"{name} lends for another guarantee (order, budget, adjacency, accounting) than the design's; use a "
                f"design with the bank's guarantee"
            )

    def to_json(self) -> str:
        fields = asdict(self) | {"guarantee": self.guarantee.to_dict()}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> BankTerms:
        fields = json.loads(text)
        return cls(**fields | {"guarantee": Guarantee(**fields["guarantee"])})
