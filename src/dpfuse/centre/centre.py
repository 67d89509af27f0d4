"""The fusion centre: Algorithm 1, live, for all streams of a ledger at once.

It has no clock, no transport and no thread of its own: reports come in by `receive`, whoever calls `tick` says when a
step ends, and what comes back was committed and may be published.
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
from dpfuse.policy.exact import Carry, ExactStep, Proposed, as_measurements, join
from dpfuse.policy.step import Estimate
from dpfuse.privacy.budget import IndividualFilter, TotalFilter, as_ids
from dpfuse.privacy.noise import Noise
from dpfuse.privacy.release import Accounts, split_by_stream
from dpfuse.public.hub import num_kept
from dpfuse.public.rows import Published, Row

# Steps that a clock may be ahead of the work: whoever ticks by a clock skips what is older, see `Ticker`.
_STEPS_AHEAD = 2
# Steps of the past that public memory is made up from anew, for a design without an end.
_REBUILT_STEPS = 20_000
# Rows of the one compiled shape: a street in one turn. In larger shapes JAX shares out each operation, and loses time.
_ROWS_PER_STREAM, _MOST_ROWS = 64, 512


@dataclass
class Ahead:
    """What was done for a step before it ended; private, and gone with the step."""

    noise: Noise | None = None
    proposed: list[Proposed] = field(default_factory=list)


class FusionCentre:
    """The trusted centre: takes reports, and gives out what may leave the building.

        centre = FusionCentre(dpfuse.load("us101.dpfuse"), "us101.db")
        published = centre.step({17: [103.2, 9.8], 4: [250.0, 7.1]})

    **Guarantees**
        - Unit, adjacency, order and budget are those of the design's guarantee, over everything that was ever committed
          to the ledger: see `Ledger` and `ExactStep`.
        - What a sensor adds to a stream depends on its own reports, past releases and (individual) its own account: not
          on who else is there, in which order they report, or how many.
        - Whether a report is in time depends on when it comes, not on how long the others' take (see `keep_time`).
        - A sensor counts once a step and stream, by its first report. Whatever is sent, `receive` returns None: what is
          late, early, double or no report is dropped without a word.
        - Nothing is handed out that is not committed. A centre whose ledger fails raises `LedgerRefused` and releases
          nothing more. Opened again, it goes on as if it had never stopped, but for the sensors' memories, which begin
          afresh, and what was released more than 20,000 steps ago, which g and E of a design without an end no longer
          remember. The accounts are those that they were.
        - A step that is skipped is not drawn later; to g and E it is a release of 0 with weight 0. A centre that is
          opened again goes on with the step after the last one committed: steps that were skipped after it come back,
          as nothing was released or paid for them.
        - Neither `repr` nor any error shows a report, an account, an id, or how many there are.

    Args:
        design: what to run.
        ledger: one that is open, or where it is, a path or postgresql://USER@HOST/DATABASE; refused if it is missing.
        create: make a new ledger there, with one stream "main"; refused if there is one already.
        forget_after: steps after which the memory of a silent sensor is dropped; its account never is.
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
        """Those of the whole ledger, which sensors pay for together; other centres may write the rest. Public."""
        self.design = design
        self._numbers = {stream: number for number, stream in enumerate(self.streams)}
        num_rows = min(_ROWS_PER_STREAM * len(self.streams), _MOST_ROWS)
        self._step = ExactStep(design, num_rows, len(self.streams), forget_after)
        self.warm_up()
        self.past: list[Published] = []
        """The last that was committed before this centre was made, with estimates; public."""
        self._carry = self._rebuild()
        self._lock = threading.Lock()
        self._now = self._carry.num_steps + 1
        self._open_step: Callable[[], int] | None = None
        self._inboxes: dict[int, Inbox] = {}
        self._ahead = Ahead()

    @property
    def now(self) -> int:
        """The step that ends next: the one that reports are collected for, unless a clock is ahead; public."""
        return self._now

    @property
    def is_over(self) -> bool:
        """Whether a finite design has come to its end; public."""
        horizon = self.design.structure.horizon
        return horizon is not None and self._now > horizon

    def receive(self, stream: str, sensor: int, step: int, values: Any) -> None:
        """Take a report, from any thread; nobody is told what becomes of it.

        It counts if the stream is known, the step is the one that is collected for at this moment, or the next, and it
        is the first of this sensor that holds as many finite numbers as the design has channels.
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
            stream: the number of each report's stream among `streams`, shape (m,).
            sensors: their ids, shape (m,).
            values: shape (m, n_y); a row that is not finite numbers is no report.
        """
        places, ids = as_ids(stream), as_ids(sensors)
        rows = as_measurements(values, (len(ids), self.design.structure.num_channels))
        is_report = (places >= 0) & (places < len(self.streams)) & (ids >= 0) & np.isfinite(rows).all(-1)
        block = places[is_report], ids[is_report], rows[is_report]  # copies: the caller may go on with theirs
        with self._lock:
            inbox = self._inbox(step)
            if inbox is not None:
                inbox.add_block(block)

    def keep_time(self, open_step: Callable[[], int] | None) -> None:
        """Let a clock decide what is in time, however long a tick takes; None: `now` decides again.

        Args:
            open_step: the step that is collected for at the moment when it is asked. Whoever ticks ends no step before
                it is over by this clock, and skips one that has been over for a whole step.
        """
        with self._lock:
            self._open_step = open_step

    def tick(self) -> list[Published]:
        """End the step of all streams: contribute, commit (debit, draw and record), estimate.

        Raises:
            ValueError: the design has come to its end.
            LedgerRefused: nothing of this step may be published, and no other step will be.
        """
        step, reports, ahead = self._close_step()
        noise = ahead.noise or self._draw_noise()
        block = reports.by_stream(self.design.structure.num_channels)
        self._ledger.refresh(block[1])
        if len(block[1]) or not ahead.proposed:
            ahead.proposed.append(self._step.propose(self._carry, *block))
        proposed = join(ahead.proposed)
        self._carry, many = self._step.charge(self._carry, proposed)
        own_ids = split_by_stream(proposed.sensors, proposed.stream, len(self.streams))
        entries = [Entry(name, step, one, own) for name, one, own in zip(self.streams, many, own_ids, strict=True)]
        rows = self._ledger.commit(entries, noise)
        self._carry, estimate = self._step.estimate_many(self._carry, *self._released(rows))
        return _published(rows, estimate)

    def work_ahead(self) -> None:
        """Do what can be done before the step ends: begin to draw its noise, look at the reports that are in already.

        What comes of a report is the same, whether and when this is called. Whoever calls `tick` may call this, at
        moments that do not depend on the reports.
        """
        if self.is_over:
            return
        self._ahead.noise = self._ahead.noise or self._draw_noise()
        if self._ledger.is_shared:  # what is left to a sensor is known only once its account is locked
            return
        with self._lock:
            reports = self._inboxes.pop(self._now, None)
        if reports is not None:
            block = reports.by_stream(self.design.structure.num_channels)
            self._ahead.proposed.append(self._step.propose(self._carry, *block))

    def skip(self) -> None:
        """Let the step pass without a release; its reports are dropped."""
        self._close_step()
        self._carry, _ = self._step.follow(self._carry, *self._released([]))

    def warm_up(self) -> None:
        """Do all that a step does, with nobody and accounts that are thrown away: compile, open devices, build tables.

        What is done for the first time, ever or in the calling thread, may take long or fail. A thread that calls
        `tick` by a clock does this before, so that no step waits for it.
        """
        self._draw_noise().take()
        nobody = np.zeros(0, np.int64)
        carry = self._step.init()
        nothing = np.zeros((0, self.design.structure.num_channels))
        carry, _ = self._step.charge(carry, self._step.propose(carry, nobody, nobody, nothing))
        self._step.estimate_many(carry, *self._released([]))

    def tidy(self) -> None:
        """Do what can wait until a step is out, so that the next ones need not, unless very many come at once."""
        self._ledger.tidy()
        self._carry.grow()

    def step(self, reports: Mapping[int, Any], stream: str = "main") -> Published:
        """One whole step: each sensor's report, by id, in; what may be published out."""
        _check.is_one_of("stream", stream, self.streams)
        for sensor, values in reports.items():
            self.receive(stream, sensor, self.now, values)
        return self.tick()[self._numbers[stream]]

    def close(self) -> None:
        """Let go of the ledger."""
        self._ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"FusionCentre({len(self.streams)} streams, step {self.now})"

    def _inbox(self, step: int) -> Inbox | None:
        """Where a report for this step goes at this moment, if it is in time; the lock is held.

        The moment is taken under the lock: a report that is in time by the clock comes before its step is closed.
        """
        now = self._now if self._open_step is None else self._open_step()
        last = min(now + 1, self.design.structure.horizon or now + 1)
        if not max(self._now, now) <= step <= last:
            return None
        if step not in self._inboxes:
            self._inboxes = {past: box for past, box in self._inboxes.items() if past >= now - _STEPS_AHEAD}
            self._inboxes[step] = Inbox()
        return self._inboxes[step]

    def _close_step(self) -> tuple[int, Inbox, Ahead]:
        """The step that ends, the reports that are still to be looked at, and what was done ahead."""
        with self._lock:
            step = self._now
            self._now += 1
            ahead, self._ahead = self._ahead, Ahead()
            return step, self._inboxes.pop(step, None) or Inbox(), ahead

    def _draw_noise(self) -> Noise:
        return Noise(self.design.structure.dimension * len(self.streams))

    def _rebuild(self) -> Carry:
        """The carry after all that was committed: public memory from the rows, accounts from the ledger.

        A design without an end runs for years, so its memory is made up from the last `_REBUILT_STEPS` alone. That is
        allowed, as the weights may be any function of past releases, and changes little: what g and E made of a release
        an hour ago has faded. The accounts hold everything that was ever spent.
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
            if step > last - num_kept(len(self.streams)):
                self.past += _published([due.get(stream) for stream in self.streams], estimate)
        return carry

    def _released(self, rows: Sequence[Row]) -> tuple[Integers, Integers]:
        """Weights and values of each stream's release, zeros for a stream without one."""
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
