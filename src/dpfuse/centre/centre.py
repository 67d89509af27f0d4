"""The fusion centre: Algorithm 1 on live reports, for all streams of a ledger at once.

The centre has no clock, no transport and no thread of its own. Reports come in by `receive`, the caller of `tick`
decides when a step ends, and `tick` returns rows that are committed and may be published.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.centre.inbox import Inbox, as_report, is_whole
from dpfuse.ledger import Entry, Ledger, create_ledger, open_ledger
from dpfuse.policy.design import Design
from dpfuse.policy.exact import Carry, ExactStep, Proposal, join_proposals
from dpfuse.policy.measurements import as_measurements
from dpfuse.policy.step import Estimate
from dpfuse.privacy.budget import IndividualFilter, TotalFilter, as_ids
from dpfuse.privacy.noise import Noise
from dpfuse.privacy.release import Accounts, split_by_stream
from dpfuse.public.hub import num_in_memory
from dpfuse.public.rows import Published, Row

# Inboxes of steps that ended more than this many steps ago, by the clock, are dropped.
_KEPT_PAST_STEPS = 2
# How many past steps g and E read again after a restart, for a design without an end.
_REBUILT_STEPS = 20_000
# Rows of the one compiled shape: enough for a street in one call. JAX splits the operations of larger shapes over
# threads, which takes longer.
_ROWS_PER_STREAM, _MOST_ROWS = 64, 512


@dataclass
class EarlyWork:
    """What was computed for a step before the step ended. Private."""

    noise: Noise | None = None
    proposals: list[Proposal] = field(default_factory=list)


class FusionCentre:
    """The trusted centre: takes reports, and returns what may be published.

        centre = FusionCentre(dpfuse.load("us101.dpfuse"), "us101.db")
        published = centre.step({17: [103.2, 9.8], 4: [250.0, 7.1]})

    **Guarantees**
        - Unit, adjacency, order and budget are those of the design's guarantee. They cover everything that was ever
          committed to the ledger, see `Ledger` and `ExactStep`.
        - What a sensor adds to a stream depends on its own reports, past releases and, in individual accounting, its
          own account. It does not depend on who else reports, in which order, or how many.
        - Whether a report is in time depends on when it arrives, not on how long the work on other reports takes
          (see `follow_clock`).
        - A sensor counts once a step and stream, by its first valid report.
        - `receive` returns None for any input. A report that is late, early, repeated or malformed is dropped.
        - `tick` returns committed rows only.
        - A centre whose ledger fails raises `LedgerRefused` and releases nothing more.
        - After a restart weights, estimates and accounts continue as if the centre had never stopped. What the
          recurrent filter remembers of each sensor starts anew. In a design without an end, g and E no longer know
          releases that are more than 20,000 steps old.
        - A step that is skipped is never drawn later. g and E read it as a release of 0 with weight 0.
        - After a restart the next step is the one after the last committed step. Steps that were skipped after that one
          are repeated; nothing was released or charged for them.
        - Neither `repr` nor any error shows a report, an account, an id, or how many there are.

    Args:
        design: the design to run.
        ledger: an open ledger, a path, or postgresql://USER@HOST/DATABASE; refused if it is missing.
        create: make a new ledger with one stream "main"; refused if there is one already.
        forget_after: after so many steps without a report a sensor's memory is dropped; its account is kept.
    """

    def __init__(
        self,
        design: Design,
        ledger: Ledger | str | os.PathLike[str],
        *,
        create: bool = False,
        forget_after: int = 50,
    ) -> None:
        _check.is_count("forget_after", forget_after, 0)
        self._ledger = _ledger_at(ledger, design, create)
        self.streams = self._ledger.streams
        self.ledger_streams = self._ledger.terms.streams
        """All streams of the ledger, also those that other centres write; public."""
        self.design = design
        self._numbers = {stream: number for number, stream in enumerate(self.streams)}
        num_rows = min(_ROWS_PER_STREAM * len(self.streams), _MOST_ROWS)
        self._step = ExactStep(design, num_rows, len(self.streams), forget_after)
        self.warm_up()
        self.past: list[Published] = []
        """The last rows that were committed before this centre was opened, with estimates; public."""
        self._carry = self._rebuild()
        self._lock = threading.Lock()
        self._now = self._carry.num_steps + 1
        self._open_step: Callable[[], int] | None = None
        self._inboxes: dict[int, Inbox] = {}
        self._early = EarlyWork()

    @property
    def now(self) -> int:
        """The step that `tick` ends next; public. Reports are collected for it, unless a clock is ahead."""
        return self._now

    @property
    def is_over(self) -> bool:
        """Whether the last step of a finite design has ended; public."""
        horizon = self.design.structure.horizon
        return horizon is not None and self._now > horizon

    def receive(self, stream: str, sensor: int, step: int, values: Any) -> None:
        """Take a report, from any thread. Nothing shows whether it counts.

        It counts if it is for the step in progress or the next one, for a stream of this centre, and the first of this
        sensor with as many finite numbers as the design has channels.
        """
        if not isinstance(stream, str) or not is_whole(sensor) or not is_whole(step):
            return
        number, report = self._numbers.get(stream), as_report(values, self.design.structure.num_channels)
        if number is None or report is None or not 0 <= sensor < 2**63:
            return
        with self._lock:
            inbox = self._inbox(int(step))
            if inbox is not None:
                inbox.add(number, int(sensor), report)

    def receive_many(self, stream: ArrayLike, sensors: ArrayLike, step: int, values: ArrayLike) -> None:
        """Take the reports of many sensors for one step.

        Args:
            stream: the place of each report's stream in `streams`, shape (m,).
            sensors: their ids, shape (m,).
            values: shape (m, n_y); a row with a number that is not finite is dropped.
        """
        places, ids = as_ids(stream), as_ids(sensors)
        rows = as_measurements(values, (len(ids), self.design.structure.num_channels))
        is_report = (places >= 0) & (places < len(self.streams)) & (ids >= 0) & np.isfinite(rows).all(-1)
        block = places[is_report], ids[is_report], rows[is_report]  # copies: the caller may change its arrays
        with self._lock:
            inbox = self._inbox(step)
            if inbox is not None:
                inbox.add_block(block)

    def follow_clock(self, open_step: Callable[[], int] | None) -> None:
        """Let a clock decide which reports are in time, however long a tick takes; None: `now` decides again.

        Args:
            open_step: returns the step in progress at the moment of the call. The caller of `tick` ends a step only
                after it is over by this clock, and skips a step that has been over for a whole step.
        """
        with self._lock:
            self._open_step = open_step

    def tick(self) -> list[Published]:
        """End the step of all streams: contribute, commit (debit, draw and record), estimate.

        Raises:
            ValueError: the design has ended.
            LedgerRefused: nothing of this step or a later one may be published.
        """
        step, reports, early = self._close_step()
        noise = early.noise or self._draw_noise()
        block = reports.by_stream(self.design.structure.num_channels)
        self._ledger.refresh(block[1])
        if len(block[1]) or not early.proposals:
            early.proposals.append(self._step.propose(self._carry, *block))
        proposal = join_proposals(early.proposals)
        self._carry, many = self._step.charge(self._carry, proposal)
        own_ids = split_by_stream(proposal.sensors, proposal.stream, len(self.streams))
        entries = [Entry(name, step, one, own) for name, one, own in zip(self.streams, many, own_ids, strict=True)]
        rows = self._ledger.commit(entries, noise)
        self._carry, estimate = self._step.estimate_many(self._carry, *self._released(rows))
        return _published(rows, estimate)

    def work_ahead(self) -> None:
        """Start drawing the noise of the step in progress, and run the filter on the reports received so far.

        What a report adds is the same with and without this call. The caller of `tick` may call this, at moments that
        do not depend on the reports.
        """
        if self.is_over:
            return
        self._early.noise = self._early.noise or self._draw_noise()
        if self._ledger.is_shared:  # what a sensor has left is known only once its account is locked
            return
        with self._lock:
            reports = self._inboxes.pop(self._now, None)
        if reports is not None:
            block = reports.by_stream(self.design.structure.num_channels)
            self._early.proposals.append(self._step.propose(self._carry, *block))

    def skip(self) -> None:
        """End the step without a release; its reports are dropped."""
        self._close_step()
        self._carry, _ = self._step.follow(self._carry, *self._released([]))

    def warm_up(self) -> None:
        """Run one step without reports on throw-away accounts.

        Everything is then compiled and opened before the first real step. This is needed once in a process, and again
        in each thread that calls `tick` by a clock. It may take long, and it may fail.
        """
        self._draw_noise().take()
        carry = self._step.init()
        no_reports = Inbox().by_stream(self.design.structure.num_channels)
        carry, _ = self._step.charge(carry, self._step.propose(carry, *no_reports))
        self._step.estimate_many(carry, *self._released([]))

    def maintain(self) -> None:
        """Checkpoint the ledger and make room for more sensors, between steps, so that the next steps are quick."""
        self._ledger.checkpoint()
        self._carry.grow()

    def step(self, reports: Mapping[int, Any], stream: str = "main") -> Published:
        """One whole step: takes each sensor's report, by id, and returns what may be published of that stream."""
        _check.is_one_of("stream", stream, self.streams)
        for sensor, values in reports.items():
            self.receive(stream, sensor, self.now, values)
        return self.tick()[self._numbers[stream]]

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FusionCentre({len(self.streams)} streams, step {self.now})"

    def _inbox(self, step: int) -> Inbox | None:
        """The inbox for that step, None if a report for it is not in time now. The caller holds the lock.

        The clock is read under the lock, so a report that is in time arrives before its step is closed.
        """
        now = self._now if self._open_step is None else self._open_step()
        last = min(now + 1, self.design.structure.horizon or now + 1)
        if not max(self._now, now) <= step <= last:
            return None
        if step not in self._inboxes:
            self._inboxes = {past: box for past, box in self._inboxes.items() if past >= now - _KEPT_PAST_STEPS}
            self._inboxes[step] = Inbox()
        return self._inboxes[step]

    def _close_step(self) -> tuple[int, Inbox, EarlyWork]:
        """The step that ends, its reports that are not in the early work, and the early work."""
        with self._lock:
            step = self._now
            self._now += 1
            early, self._early = self._early, EarlyWork()
            return step, self._inboxes.pop(step, None) or Inbox(), early

    def _draw_noise(self) -> Noise:
        return Noise(self.design.structure.dimension * len(self.streams))

    def _rebuild(self) -> Carry:
        """The carry after all committed steps: g and E read the rows again, and the accounts are the ledger's.

        A design without an end may have years of rows, so g and E read the last `_REBUILT_STEPS` only. That keeps the
        guarantee, since the weights may be any function of past releases, and changes little, since g and E hardly
        depend on a release that old. The accounts hold everything that was ever spent.
        """
        last = max(map(self._ledger.last_step, self.streams))
        first = max(1, last - _REBUILT_STEPS + 1) if self.design.structure.horizon is None else 1
        carry = self._step.init(self._accounts())._replace(num_steps=first - 1)
        own_rows = (self._ledger.rows(stream, first) for stream in self.streams)
        rows = heapq.merge(*own_rows, key=lambda row: row.step)
        for step, together in itertools.groupby(rows, key=lambda row: row.step):
            for _ in range(carry.num_steps + 1, step):
                carry, _ = self._step.follow(carry, *self._released([]))
            due = {row.stream: row for row in together}
            carry, estimate = self._step.follow(carry, *self._released(list(due.values())))
            if step > last - num_in_memory(len(self.streams)):
                self.past += _published([due.get(stream) for stream in self.streams], estimate)
        return carry

    def _released(self, rows: Sequence[Row]) -> tuple[Integers, Integers]:
        """The weights, shape (streams,), and values, shape (streams, d), of these rows; zeros for other streams."""
        weights = np.zeros(len(self.streams), np.int64)
        values = np.zeros((len(self.streams), self.design.structure.dimension), np.int64)
        places = [self._numbers[row.stream] for row in rows]
        weights[places] = [row.fusion_weight for row in rows]
        values[places] = np.frombuffer(b"".join(row.release for row in rows), "<i8").reshape(-1, values.shape[1])
        return weights, values

    def _accounts(self) -> Accounts:
        own = [self._ledger.accounts(stream) for stream in self.streams]
        if isinstance(own[0], IndividualFilter):
            return own[0]
        return tuple(account for account in own if isinstance(account, TotalFilter))


def _published(rows: Sequence[Row | None], estimate: Estimate) -> list[Published]:
    def tuples(values: Any) -> Iterator[tuple[float, ...]]:
        return map(tuple, np.asarray(values).tolist())

    estimates = zip(rows, tuples(estimate.mean), tuples(estimate.std), strict=True)
    return [Published(row, mean, std) for row, mean, std in estimates if row is not None]


def _ledger_at(where: Ledger | str | os.PathLike[str], design: Design, create: bool) -> Ledger:
    if isinstance(where, str | os.PathLike):
        return create_ledger(where, design) if create else open_ledger(where, design)
    if create:
        raise ValueError("create must be False for a ledger that is open; name a path to make one")
    return where
