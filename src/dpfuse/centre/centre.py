"""The fusion centre: Algorithm 1 on live reports, for all streams of a ledger at once.

The centre has no clock, no transport and no thread of its own. Reports come in by `receive`, the caller of `tick`
decides when a step ends, and `tick` returns rows that are committed and may be published.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.attributes import SensorAttributes
from dpfuse.centre.held_inputs import HeldInputs
from dpfuse.centre.inbox import Inbox, as_report, is_whole
from dpfuse.centre.rebuild import RowsOfStep, as_published, num_steps_between_memories, rebuild, to_memory
from dpfuse.errors import LedgerMismatch
from dpfuse.ledger import Entry, Ledger
from dpfuse.policy.design import Design
from dpfuse.policy.exact import ExactStep, Proposal, join_proposals
from dpfuse.policy.measurements import as_measurements
from dpfuse.privacy.budget import IndividualFilter, TotalFilter, as_ids
from dpfuse.privacy.noise import Noise
from dpfuse.privacy.release import Accounts, split_by_stream
from dpfuse.public.rows import Published
from dpfuse.public_inputs import pack

if TYPE_CHECKING:
    from dpfuse.ledger.bank.client import BankClient

# Inboxes of steps that ended more than this many steps ago, by the clock, are dropped.
_KEPT_PAST_STEPS = 2
# Rows of the one compiled shape: enough for a street in one call. JAX splits the operations of larger shapes over
# threads, which takes longer.
_ROWS_PER_STREAM, _MOST_ROWS = 64, 512
_NOBODY = np.zeros(0, np.int64)


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
          releases that are more than 20,000 steps old. They never read the releases of another design.
        - A step that is skipped is never drawn later. g and E are told that there was none.
        - After a restart the next step is the one after the last committed step. Steps that were skipped after that one
          are repeated; nothing was released or charged for them.
        - Public inputs (`receive_inputs`) are those of the committed rows, for E, g and whoever reads the rows. No
          report, account or number of sensors changes them.
        - With periods all of this holds within each one. The period of a step is that of the moment at which the step
          begins, or of its first `work_ahead` or `tick` where no `begin_step` is called; it never goes back. At the
          first step of a period everything private starts afresh, in all streams: accounts, f's memory, whether a
          sensor is known, work done ahead, and what a bank has lent. A report is of the period of its step.
        - Neither `repr` nor any error shows a report, an account, an id, or how many there are.

    Args:
        design: the design to run.
        ledger: an open ledger, or its path; refused if it is missing.
        create: make a new ledger with one stream "main"; refused if there is one already.
        forget_after: after so many steps without a report a sensor's memory is dropped; its account is kept.
        bank: lends to this centre what its sensors may pay; needed by a ledger that was made for a bank. Then
            `begin_step` comes before each step, and a step without it adds noise alone.
        wall_clock: the time in seconds since 1970, for a guarantee with periods and without a bank.
        attributes: fixed public numbers of each sensor, for a design that reads them. A sensor without them is absent.
    """

    def __init__(
        self,
        design: Design,
        ledger: Ledger | str | os.PathLike[str],
        *,
        create: bool = False,
        forget_after: int = 50,
        bank: BankClient | None = None,
        wall_clock: Callable[[], float] = time.time,
        attributes: SensorAttributes | None = None,
    ) -> None:
        _check.is_count("forget_after", forget_after, 0)
        self._wall_clock = wall_clock
        self._ledger = _ledger_at(ledger, design, create)
        self._bank = bank
        if bank is None and self._ledger.terms.bank_id is not None:
            raise LedgerMismatch(f"{self._ledger.path} spends what a bank lends to it; name that bank: --bank, bank=")
        if bank is not None and not bank.lends_to(self._ledger):
            raise LedgerMismatch(f"{self._ledger.path} is not the ledger of this bank client; give the client's own")
        self.streams = self._ledger.streams
        self.design, self.attributes = design, attributes
        self._numbers = {stream: number for number, stream in enumerate(self.streams)}
        self._to_block = RowsOfStep(self.streams, design.structure.dimension, design.structure.num_public)
        num_rows = min(_ROWS_PER_STREAM * len(self.streams), _MOST_ROWS)
        self._step = ExactStep(design, num_rows, len(self.streams), forget_after, attributes)
        self.warm_up()
        self._carry, self.past = rebuild(self._step, self._ledger, self._accounts(), self._to_block)
        """The last rows that were committed before this centre was opened, with estimates; public."""
        held = self._carry.public.held
        self._held = HeldInputs.after(self._carry.num_steps, held, design.policy.constants)
        self._lock = threading.Lock()
        self._now = self._carry.num_steps + 1
        self._open_step: Callable[[], int] | None = None
        self._inboxes: dict[int, Inbox] = {}
        self._early = EarlyWork()
        self._period, self._begun_step = self._ledger.period, 0
        self._stored_step = self._carry.num_steps

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
        sensor with as many finite numbers as the design has channels. With a design that reads partial reports a
        channel that is None or not finite is missing, and one finite number is enough.
        """
        if not isinstance(stream, str) or not is_whole(sensor) or not is_whole(step):
            return
        structure = self.design.structure
        number, report = self._numbers.get(stream), as_report(values, structure.num_channels, structure.partial_reports)
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
            values: shape (m, n_y); a row with a number that is not finite is dropped. With a design that reads partial
                reports such a number is a missing channel, and a row without any finite number is dropped.
        """
        places, ids = as_ids(stream), as_ids(sensors)
        rows = as_measurements(values, (len(ids), self.design.structure.num_channels))
        is_enough = np.any if self.design.structure.partial_reports else np.all
        is_report = (places >= 0) & (places < len(self.streams)) & (ids >= 0) & is_enough(np.isfinite(rows), -1)
        block = places[is_report], ids[is_report], rows[is_report]  # copies: the caller may change its arrays
        with self._lock:
            inbox = self._inbox(step)
            if inbox is not None:
                inbox.add_block(block)

    def receive_inputs(self, stream: str, step: int, values: Any) -> None:
        """Take public inputs of a step, from any thread: as many numbers as the design reads, None for nothing new.

        They count from the row of the next step on, also if they are of an earlier one, and never if they are of a
        later one. A call that load delays past the end of its step changes a row: call early in a step, from a process
        that no report slows down. A row holds the value of the newest step of each input, and its age in steps.
        Without a clock they count for the step in progress.

        The caller vouches that inputs are public: computed from no report, count, load or connection.
        """
        open_step = self._open_step
        now = self._now - 1 if open_step is None else open_step()
        number = self._numbers.get(stream) if isinstance(stream, str) else None
        given = as_report(values, self.design.structure.num_public, partial_reports=True)
        if self._held is not None and number is not None and given is not None and is_whole(step):
            if 1 <= step <= now + 1:
                self._held.give(number, int(step), given, now + 1)

    def compute_inputs(self, compute: Callable[[int], ArrayLike]) -> None:
        """Compute public inputs from the step: constants, the time of day. The caller vouches that they are public.

        Args:
            compute: returns the inputs of a step, shape (n_p,), NaN for those that `receive_inputs` takes.
        """
        if self._held is not None:
            self._held.compute_by(compute)

    def follow_clock(self, open_step: Callable[[], int] | None) -> None:
        """Let a clock decide which reports are in time, however long a tick takes; None: `now` decides again.

        Args:
            open_step: returns the step in progress at the moment of the call. The caller of `tick` ends a step only
                after it is over by this clock, and skips a step that has been over for a whole step.
        """
        with self._lock:
            self._open_step = open_step

    @property
    def streams_in_ledger(self) -> int:
        """How many streams the ledger has had, also those that were retired; public."""
        return len(self._ledger.found.streams)

    @property
    def has_bank(self) -> bool:
        """Whether the accounts of the sensors are shared with other centres; public."""
        return self._bank is not None

    def check_interval(self, interval_s: float) -> None:
        """Refuse an interval that is too long for the bank's epochs."""
        if self._bank is not None:
            self._bank.check_interval(interval_s)

    def begin_step(self, closes_at_s: float, interval_s: float) -> bool:
        """Begin the period of the step in progress and, with a bank, borrow for it; returns whether to release it.

        Args:
            closes_at_s: the moment at which the step ends, by the monotonic clock.
            interval_s: from one step to the next.
        """
        if self._bank is None:
            self._follow_period(self._wall_clock() + closes_at_s - interval_s - time.monotonic())
            return True
        allowed = self._bank.begin_step(self._now, closes_at_s, interval_s)
        self._start_afresh()
        self._lend(*allowed)
        return self._bank.may_release

    def tick(self) -> list[Published]:
        """End the step of all streams: contribute, commit (debit, draw and record), estimate.

        Raises:
            ValueError: the design has ended.
            LedgerRefused: nothing of this step or a later one may be published.
        """
        if self._begun_step != self._now:
            self._follow_period(self._wall_clock())
        step, reports, early = self._close_step()
        noise = early.noise or self._draw_noise()
        block = reports.by_stream(self.design.structure.num_channels)
        if len(block[1]) or not early.proposals:
            early.proposals.append(self._step.propose(self._carry, *block))
        proposal = join_proposals(early.proposals)
        self._carry, many = self._step.charge(self._carry, proposal)
        own_ids = split_by_stream(proposal.sensors, proposal.stream, len(self.streams))
        inputs = [None] * len(many) if self._held is None else [pack(one) for one in self._held.at(step)]
        parts = zip(self.streams, many, own_ids, inputs, strict=True)
        entries = [Entry(name, step, one, own, given) for name, one, own, given in parts]
        rows = self._ledger.commit(entries, noise)
        if self._bank is not None:
            self._bank.note(proposal.sensors)
            self._lend(_NOBODY, _NOBODY)
        self._carry, estimate = self._step.estimate_many(self._carry, *self._to_block(rows))
        return as_published(rows, estimate)

    def work_ahead(self) -> None:
        """Start drawing the noise of the step in progress, and run the filter on the reports received so far.

        What a report adds is the same with and without this call. The caller of `tick` may call this, at moments that
        do not depend on the reports.
        """
        if self.is_over:
            return
        if self._begun_step != self._now:
            self._follow_period(self._wall_clock())
        self._early.noise = self._early.noise or self._draw_noise()
        with self._lock:
            reports = self._inboxes.pop(self._now, None)
        if reports is not None:
            block = reports.by_stream(self.design.structure.num_channels)
            self._early.proposals.append(self._step.propose(self._carry, *block))

    def skip(self) -> None:
        """End the step without a release; its reports are dropped."""
        self._close_step()
        self._carry, _ = self._step.follow(self._carry, *self._to_block([]))

    def warm_up(self) -> None:
        """Run one step without reports on throw-away accounts.

        Everything is then compiled and opened before the first real step. This is needed once in a process, and again
        in each thread that calls `tick` by a clock. It may take long, and it may fail.
        """
        self._draw_noise().take()
        carry = self._step.init()
        no_reports = Inbox().by_stream(self.design.structure.num_channels)
        carry, _ = self._step.charge(carry, self._step.propose(carry, *no_reports))
        self._step.estimate_many(carry, *self._to_block([]))

    def maintain(self) -> None:
        """Between steps: begin to draw noise, checkpoint the ledger, and store what g and E remember."""
        if not self.is_over:
            self._early.noise = self._early.noise or self._draw_noise()
        self._ledger.checkpoint()
        self._carry.grow()
        if self._carry.num_steps >= self._stored_step + num_steps_between_memories(len(self.streams)):
            self._ledger.keep_memory(to_memory(self._carry))
            self._stored_step = self._carry.num_steps

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

    def _follow_period(self, unix_s: float) -> None:
        """Begin the period of that moment for the step in progress, unless it or a later one has begun."""
        self._begun_step, period = self._now, self._ledger.terms.guarantee.period_at(unix_s)
        if self._bank is None and period is not None and period > (-1 if self._period is None else self._period):
            self._ledger.begin_period(period)
            self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget everything private of the period before, if the ledger is in a new one."""
        if self._ledger.period != self._period:
            self._period, self._early = self._ledger.period, EarlyWork()
            self._carry = self._step.begin_period(self._carry, self._accounts())

    def _draw_noise(self) -> Noise:
        return Noise(self.design.structure.dimension * len(self.streams))

    def _lend(self, sensors: Integers, amounts: Integers) -> None:
        """Let the sensors of the coming step pay these amounts, and nothing else."""
        mechanism = self._step.mechanism
        accounts = IndividualFilter.lending(mechanism.budget, mechanism.factor, sensors, amounts)
        self._carry = self._carry._replace(accounts=accounts)

    def _accounts(self) -> Accounts:
        if self._bank is not None:
            return IndividualFilter.lending(self._step.mechanism.budget, self._step.mechanism.factor, _NOBODY, _NOBODY)
        own = [self._ledger.accounts(stream) for stream in self.streams]
        if isinstance(own[0], IndividualFilter):
            return own[0]
        return tuple(account for account in own if isinstance(account, TotalFilter))


def _ledger_at(where: Ledger | str | os.PathLike[str], design: Design, create: bool) -> Ledger:
    if isinstance(where, str | os.PathLike):
        return Ledger.create(where, design) if create else Ledger.open(where, design)
    if create:
        raise ValueError("create must be False for a ledger that is open; name a path to make one")
    return where
