"""Budget filters in exact integers: one account for a stream (total), or one for each sensor (individual).

The noise has a standard deviation of `GRID` grid steps, and the unit of account is the squared grid step. A guarantee
of order alpha and budget B is S = floor(2 B GRID^2 / alpha) of them. A release that moves the mean by an integer vector
q costs c q.q, with c from `privacy.loss.charge_factor`. A cost that fits is debited. A cost that does not fit changes
nothing, and a smaller one may follow. Costs may be chosen from past releases: a filter that stops by what was spent so
far keeps the guarantee at every order (Feldman and Zrnic 2021; for zCDP Whitehouse et al. 2023).

numpy integers wrap without a warning and floats round, so whatever could exceed 63 bits is a Python integer. The
accounts of sensors, tens of thousands in one step, are int64. This is exact: an account is between 0 and S, a cost is
compared with what is left before it is added, and the entries of q are bounded by sqrt(S / c) before they are squared,
so that c q.q <= d S, and d S < 2^63 is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse._arrays import Booleans, Floats, Integers
from dpfuse._keyed_arrays import ABSENT, KeyedArrays, hash_keys
from dpfuse.errors import BudgetExceeded
from dpfuse.guarantee import Guarantee
from dpfuse.trajectories import NOBODY

GRID = 2**20
"""Grid steps in one standard deviation of the noise."""


def squared_steps(guarantee: Guarantee) -> int:
    """The budget S = floor(2 B GRID^2 / alpha) in squared grid steps, exactly."""
    return math.floor(guarantee.squared_radius * GRID**2)


@overload
def as_loss(order: float, steps: int) -> float: ...
@overload
def as_loss(order: float, steps: Integers) -> Floats: ...
def as_loss(order: float, steps: int | Integers) -> float | Floats:
    """Squared grid steps as a Rényi loss at that order, for display: alpha n / (2 GRID^2)."""
    return order * steps / (2 * GRID**2)


def check_exact(budget: int, dimension: int) -> None:
    """Raise if squared lengths in `dimension` coordinates could exceed 63 bits within this budget."""
    if budget * dimension >= 2**63:
        raise ValueError(
            f"budget times dimension must be below 2^63 squared grid steps, got {budget} * {dimension}; "
            f"use a smaller budget: a budget this large gives no protection"
        )


def counts_once(ids: ArrayLike, stream: Integers | int = 0) -> Booleans:
    """Which rows count, shape (m,): the first row of each id in each stream; rows with a negative id do not."""
    sensors = as_ids(ids)
    is_counted = sensors > NOBODY
    rows = _possible_repeats(sensors)
    if len(rows):  # sorting is slow, so only these rows are sorted
        own_ids, streams = sensors[rows], np.broadcast_to(stream, sensors.shape)[rows]
        order = np.lexsort((own_ids, streams))  # stable: of equal rows the first comes first
        is_same = [part[order[1:]] == part[order[:-1]] for part in (own_ids, streams)]
        is_counted[rows[order[1:]]] &= ~(is_same[0] & is_same[1])
    return is_counted


def _possible_repeats(sensors: Integers) -> Integers:
    """All rows whose id occurs twice, and a few others: the rows that share a place of a hash table."""
    num_bits = max(7, len(sensors).bit_length() + 3)
    place = hash_keys(sensors, num_bits)
    row = np.arange(len(sensors), dtype=np.int32)
    first = np.empty(2**num_bits, np.int32)
    first[place[::-1]] = row[::-1]  # of several rows at one place the first stays, as it is written last
    is_later = first[place] != row
    if not is_later.any():
        return np.zeros(0, np.int64)
    is_shared = np.zeros(2**num_bits, bool)
    is_shared[place[is_later]] = True
    return np.flatnonzero(is_shared[place])


class TotalFilter:
    """One account for a whole stream. What is left of it is public.

    **Guarantees**
        - The sum of all debits is at most the budget, for any costs in any order. It may equal the budget.
        - A cost above what is left raises `BudgetExceeded` and changes nothing.
        - A cost that is negative, a float or a bool raises and changes nothing; numpy integers are accepted.
    """

    def __init__(self, budget: int, spent: int = 0) -> None:
        self._budget = _check.is_count("budget", budget, 0)
        self._spent = _check.is_count("spent", spent, 0)
        if self._spent > self._budget:
            raise ValueError(f"spent must be at most the budget, {self._budget}, got {self._spent}")

    @property
    def budget(self) -> int:
        return self._budget

    @property
    def spent(self) -> int:
        return self._spent

    @property
    def left(self) -> int:
        """What may still be spent, in squared grid steps."""
        return self._budget - self._spent

    def largest_weight(self, factor: int) -> int:
        """The largest integer weight G with factor G^2 <= left: the clip of Theorem 2 on the grid."""
        return math.isqrt(self.left // _check.is_count("factor", factor))

    def spend(self, cost: int) -> None:
        """Debit the cost if it fits, else raise `BudgetExceeded`."""
        whole = _check.is_count("cost", cost, 0)
        if whole > self.left:
            raise BudgetExceeded(
                f"cost must be at most the {self.left} squared grid steps left, got {whole}; use a smaller weight"
            )
        self._spent += whole

    def __repr__(self) -> str:
        return f"TotalFilter(budget={self._budget}, spent={self._spent})"


@dataclass(frozen=True)
class Admitted:
    """The contributions of one step that the accounts paid for. Private: they depend on the accounts.

    Attributes:
        contributions: as given, with zeros for every row that did not fit, shape (m, d).
        costs: the debit of each row, shape (m,).
    """

    contributions: Integers = field(repr=False)
    costs: Integers = field(repr=False)


class IndividualFilter:
    """One account for each sensor id, charged for what the sensor adds. All accounts are private.

    **Guarantees**
        - Unit: one id. The debits of an id add up to at most the budget, for any input in any order. They may equal it.
        - A new id starts with the whole budget, less `charged_to_all`, or with nothing in accounts made by `lending`.
          No account is ever deleted.
        - A row that does not fit becomes zeros and costs nothing; a smaller one may follow.
        - An id counts once a step and stream, by the first of its rows. A row with a negative id becomes zeros.
        - An id in several streams pays for each of them, row by row, each from what the rows before have left.
        - The debit of an id, and the row that is returned for it, depend on its own rows alone.
        - `repr` and errors show no account, no row and not the number of accounts. `left` and `accounts` return
          private values: they are never published, logged or shown.
        - Assumes that contributions have no negative entry where `factor` relies on it; `privacy.release` checks this.
    """

    def __init__(
        self, budget: int, factor: int, spent: Mapping[int, int] | None = None, charged_to_all: int = 0
    ) -> None:
        """Accounts of that budget; `charged_to_all` is what each id, known or new, has spent beside its debits."""
        self._budget = _check.is_count("budget", budget, 0)
        self._factor = _check.is_count("factor", factor)
        self._limit = max(0, self._budget - _check.is_count("charged_to_all", charged_to_all, 0))
        check_exact(self._budget, 1)
        self._spent_by_new = 0
        self._accounts = KeyedArrays(spent=np.int64(0))
        self.update(spent or {})

    @classmethod
    def lending(cls, budget: int, factor: int, sensors: Integers, amounts: Integers) -> IndividualFilter:
        """Accounts in which each of these ids has that amount left, and every other id nothing.

        Args:
            sensors: ids, each once, shape (m,).
            amounts: between 0 and the budget, shape (m,).
        """
        if ((amounts < 0) | (amounts > budget)).any():
            raise ValueError(f"amounts must be between 0 and the budget, {budget}, for every id")
        accounts = cls(budget, factor)
        accounts._spent_by_new = accounts.budget
        accounts._accounts = KeyedArrays(spent=np.int64(accounts.budget))
        row = accounts._open(sensors)
        accounts._accounts["spent"][row] = accounts.budget - amounts
        return accounts

    @property
    def budget(self) -> int:
        """The budget of an id in squared grid steps; public."""
        return self._budget

    @property
    def factor(self) -> int:
        return self._factor

    @property
    def is_lent(self) -> bool:
        """Whether `lending` made these accounts, for one step; public."""
        return self._spent_by_new > 0

    def left(self, ids: ArrayLike) -> Integers:
        """What each id may still spend, in squared grid steps, shape (m,). Private: never publish it."""
        sensors = as_ids(ids)
        row = self._accounts.find(np.zeros_like(sensors), sensors)
        # Exact: both are between 0 and the budget, which has 63 bits.
        return self._limit - np.where(row == ABSENT, self._spent_by_new, self._accounts["spent"][row])

    def accounts(self) -> dict[int, int]:
        """What each id was debited, to store in a ledger. Private: never publish it."""
        rows, _, ids = self._accounts.keys()
        pairs = zip(ids.tolist(), self._accounts["spent"][rows].tolist(), strict=True)
        return {sensor: spent for sensor, spent in pairs if spent}

    def update(self, spent: Mapping[int, int]) -> None:
        """Replace what these ids were debited by the ledger's numbers; the other accounts stay."""
        accounts = _as_accounts(spent, self._limit)
        row = self._open(np.fromiter(accounts, np.int64, len(accounts)))
        self._accounts["spent"][row] = np.fromiter(accounts.values(), np.int64, len(accounts))

    def spend(self, ids: ArrayLike, contributions: ArrayLike, stream: Integers | int = 0) -> Admitted:
        """Debit each contribution of one step that fits, and set each other one to zeros.

        Args:
            ids: of the sensors, shape (m,).
            contributions: in whole grid steps, shape (m, d).
            stream: the number of the stream of each row, shape (m,).
        """
        sensors, rows = as_ids(ids), _as_rows(contributions)
        if len(sensors) != len(rows):
            raise ValueError(
                f"ids must have one entry for each row of contributions, {rows.shape}, got {sensors.shape}"
            )
        check_exact(self._budget, rows.shape[1])
        largest = math.isqrt(self._budget // self._factor)
        rows = clear_rows(rows, counts_once(sensors, stream) & all_entries((rows >= -largest) & (rows <= largest)))
        costs = self._factor * np.vecdot(rows, rows)
        refused = self._debit(sensors, costs)
        rows[refused], costs[refused] = 0, 0
        return Admitted(rows, costs)

    def grow(self) -> None:
        """Make room for more accounts now, so that a later step need not."""
        self._accounts.grow()

    def _debit(self, sensors: Integers, costs: Integers) -> Integers:
        """Debit each cost that fits, row by row; the rows whose cost does not fit."""
        rows = np.flatnonzero(costs)
        account, costs = self._open(sensors[rows]), costs[rows]
        spent = self._accounts["spent"]
        fits, later_rows = np.zeros(len(rows), bool), np.arange(len(rows))
        first = np.empty(len(spent), np.int64)
        # The first row of every account, all at once, then the second ones, then the further rows, one by one.
        for _ in range(2):
            own = account[later_rows]
            first[own[::-1]] = later_rows[::-1]  # of several rows of one account the first stays, as it is written last
            is_first = first[own] == later_rows
            # A cost is below 2^63 and is compared before it is added.
            paid = later_rows[is_first & (costs[later_rows] <= self._limit - spent[own])]
            spent[account[paid]] += costs[paid]
            fits[paid] = True
            later_rows = later_rows[~is_first]
        for later in later_rows.tolist():
            cost = int(costs[later])
            if cost <= self._limit - int(spent[account[later]]):
                spent[account[later]] += cost
                fits[later] = True
        return np.asarray(rows[~fits])

    def _open(self, sensors: Integers) -> Integers:
        """The row of each sensor's account; a new account is opened where there is none."""
        return self._accounts.find_or_add(np.zeros_like(sensors), sensors)

    def __repr__(self) -> str:
        return f"IndividualFilter(budget={self._budget}, factor={self._factor})"


def clear_rows(rows: Integers, keep: Booleans) -> Integers:
    """The rows, with zeros where `keep` is False."""
    return rows * keep[..., None]


def all_entries(entries: Booleans) -> Booleans:
    """Whether all entries of a row are True, shape (...). A loop over the few columns is faster than `all(axis=-1)`."""
    result = np.ones(entries.shape[:-1], bool)
    for number in range(entries.shape[-1]):
        result &= entries[..., number]
    return result


def as_ids(ids: ArrayLike) -> Integers:
    return _as_integers("ids", ids, "(m,)", 1)


def _as_rows(contributions: ArrayLike) -> Integers:
    return _as_integers("contributions", contributions, "(m, d)", 2)


def _as_integers(name: str, values: ArrayLike, axes: str, ndim: int) -> Integers:
    """The values as int64, if that is exact. No message shows them."""
    if isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == ndim:
        return values
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} must have shape {axes}, got rows of different lengths") from None
    if array.size == 0 and array.ndim == ndim:
        return array.astype(np.int64)
    if array.dtype == bool or not np.can_cast(array.dtype, np.int64, "safe"):
        raise TypeError(f"{name} must hold whole numbers of at most 64 bits, got {array.dtype.type.__name__}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have shape {axes}, got {array.shape}")
    return array.astype(np.int64)


def _as_accounts(spent: Mapping[Any, Any], budget: int) -> dict[int, int]:
    """A copy with Python integers; no message shows an account."""
    accounts = dict(spent)
    is_whole = set(map(type, chain(accounts, accounts.values()))) <= {int}
    if not is_whole or min(chain(accounts, accounts.values()), default=0) < 0:  # numpy integers, or an error
        try:
            accounts = {_check.is_count("id", key, 0): _check.is_count("spent", cost, 0) for key, cost in spent.items()}
        except (TypeError, ValueError):
            raise ValueError("spent must map ids of 0 or more to whole numbers of 0 or more") from None
    if max(accounts.values(), default=0) > budget:
        raise ValueError(f"spent must be at most the budget, {budget}, for every id")
    return accounts
