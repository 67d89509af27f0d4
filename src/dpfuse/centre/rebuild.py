"""What g and E know after a restart: they read the committed rows again."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dpfuse._arrays import Booleans, Floats32, Integers
from dpfuse.ledger import Ledger
from dpfuse.ledger.memories import StoredMemory
from dpfuse.policy.array_tree import from_arrays, to_arrays
from dpfuse.policy.exact import Carry, ExactStep
from dpfuse.policy.step import Estimate
from dpfuse.privacy.budget import IndividualFilter
from dpfuse.privacy.release import Accounts
from dpfuse.public.hub import num_in_memory
from dpfuse.public.rows import Published, Row
from dpfuse.public_inputs import unpack

# How many past steps g and E read again after a restart, for a design without an end.
_REBUILT_STEPS = 20_000
_MEMORY_STEPS = 64

Released = tuple[Integers, Integers, Booleans, Floats32 | None]


class RowsOfStep:
    """Turns the rows of one step into what `ExactStep.estimate_many` reads."""

    def __init__(self, streams: Sequence[str], dimension: int, num_public: int = 0) -> None:
        self.numbers = {stream: number for number, stream in enumerate(streams)}
        self._dimension, self._num_public = dimension, num_public

    def __call__(self, rows: Sequence[Row]) -> Released:
        """Weights, values, which streams have no row, and public inputs, as `ExactStep.estimate_many` reads them."""
        num_streams = len(self.numbers)
        weights = np.zeros(num_streams, np.int64)
        values = np.zeros((num_streams, self._dimension), np.int64)
        places = [self.numbers[row.stream] for row in rows]
        weights[places] = [row.fusion_weight for row in rows]
        values[places] = np.frombuffer(b"".join(row.release for row in rows), "<i8").reshape(-1, values.shape[1])
        skipped = np.ones(num_streams, bool)
        skipped[places] = False
        return weights, values, skipped, self._inputs(rows, places)

    def _inputs(self, rows: Sequence[Row], places: list[int]) -> Floats32 | None:
        if not self._num_public:
            return None
        inputs = np.zeros((len(self.numbers), 2 * self._num_public), np.float32)
        for row, place in zip(rows, places, strict=True):
            inputs[place] = unpack(row.inputs or b"")
        return inputs


def rebuild(step: ExactStep, ledger: Ledger, accounts: Accounts, to_block: RowsOfStep) -> tuple[Carry, list[Published]]:
    """The carry after all committed steps, and the last rows with estimates: g and E read the rows again.

    A design without an end may have years of rows, so g and E read the last `_REBUILT_STEPS` only. That keeps the
    guarantee, since the weights may be any function of past releases, and changes little, since g and E hardly
    depend on a release that old. If the ledger has a memory of theirs (`to_memory`), they go on from there. The
    accounts hold everything that was ever spent. To g and E a step that another design released, before the ledger
    was upgraded, is one that was skipped.
    """
    last, horizon, streams = ledger.newest_step, ledger.terms.horizon, ledger.streams
    kept = num_in_memory(len(streams))
    carry = _remembered(step, ledger, accounts, last - kept)
    if carry is None:
        first = max(1, last - _REBUILT_STEPS + 1) if horizon is None else 1
        carry = step.init(accounts, _started_with(ledger, accounts))._replace(num_steps=first - 1)
    past: list[Published] = []
    own = (row for row in ledger.rows_by_step(carry.num_steps + 1) if row.stream in to_block.numbers)
    rows = (row for row in own if row.design == ledger.terms.design_id)
    for number, together in itertools.groupby(rows, key=lambda row: row.step):
        for _ in range(carry.num_steps + 1, number):
            carry, _ = step.follow(carry, *to_block([]))
        due = {row.stream: row for row in together}
        carry, estimate = step.follow(carry, *to_block(list(due.values())))
        if number > last - kept:
            past += as_published([due.get(stream) for stream in streams], estimate)
    for _ in range(carry.num_steps, min(last, horizon or last)):
        carry, _ = step.follow(carry, *to_block([]))
    return carry._replace(num_steps=last), past


def num_steps_between_memories(num_streams: int) -> int:
    """How often a centre stores what g and E remember; public."""
    return max(_MEMORY_STEPS, num_in_memory(num_streams))


def to_memory(carry: Carry) -> StoredMemory:
    """What g and E remember, to store in a ledger."""
    file = io.BytesIO()
    arrays: dict[str, Any] = to_arrays((carry.public, carry.query))
    np.savez(file, allow_pickle=False, **arrays)
    return StoredMemory(carry.num_steps, file.getvalue())


def _remembered(step: ExactStep, ledger: Ledger, accounts: Accounts, latest: int) -> Carry | None:
    """The carry from the newest memory of a step up to `latest`; None if there is none that can be read."""
    blank = step.init(accounts)
    for memory in ledger.memories():
        with suppress(ValueError, KeyError, OSError, zipfile.BadZipFile):
            if memory.step <= latest:
                with np.load(io.BytesIO(memory.content), allow_pickle=False) as arrays:
                    public, query = from_arrays((blank.public, blank.query), dict(arrays))
                return blank._replace(num_steps=memory.step, public=public, query=query)
    return None


def _own_rows(ledger: Ledger, stream: str, start: int = 1) -> Iterator[Row]:
    """The rows of this design."""
    return (row for row in ledger.rows(stream, start) if row.design == ledger.terms.design_id)


def _started_with(ledger: Ledger, accounts: Accounts) -> list[int] | None:
    """What each stream had left before the first release of this design; None where g reads no budget left."""
    if isinstance(accounts, IndividualFilter) or ledger.terms.guarantee.period is not None:
        return None
    rows = [next(_own_rows(ledger, stream), None) for stream in ledger.streams]
    return [
        account.left if row is None else (row.budget_left or 0) + (row.cost or 0)
        for account, row in zip(accounts, rows, strict=True)
    ]


def as_published(rows: Sequence[Row | None], estimate: Estimate) -> list[Published]:
    """The rows with their estimates, without the streams that have no row."""

    def tuples(values: Any) -> Iterator[tuple[float, ...]]:
        return map(tuple, np.asarray(values).tolist())

    estimates = zip(rows, tuples(estimate.mean), tuples(estimate.std), strict=True)
    return [Published(row, mean, std) for row, mean, std in estimates if row is not None]
