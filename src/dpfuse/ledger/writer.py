"""The one writer of a ledger."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from dpfuse import _check
from dpfuse.errors import LedgerMismatch, LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.debits import NO_DEBITS, Debits
from dpfuse.ledger.entries import Entry, check_entries, check_undrawn, left_after, make_rows, sum_debits
from dpfuse.ledger.head import Head, HeadFile, head_path, read_head
from dpfuse.ledger.migrations import bring_up_to_date
from dpfuse.ledger.open_ledger import Place, look_at_files
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.reader import check, check_pages
from dpfuse.ledger.store import (
    check_exists,
    connect,
    make_tables,
    raising_ledger_refused,
    read_terms,
    sqlite,
    sync_folder,
)
from dpfuse.ledger.stored_rows import find_row, row_pages
from dpfuse.ledger.terms import Terms
from dpfuse.ledger.transactions import LedgerTransactions
from dpfuse.privacy.budget import IndividualFilter, TotalFilter
from dpfuse.privacy.noise import Noise
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from apsw import Connection

    from dpfuse.policy.design import Design

# `checkpoint` adds debits to the accounts once so many commits have some that are not added yet. Without a call of
# `checkpoint` a commit does it, after `_MOST_PENDING` of them.
_PENDING_COMMITS = 16
_MOST_PENDING = 8 * _PENDING_COMMITS


class Ledger(LedgerTransactions):
    """The durable record of every release of a design's streams, and of what was charged for it.

        with Ledger.open("us101.db", design) as ledger:
            carry = step.init(ledger.accounts("main"))
            carry, charged = step.contribute(carry, ids, measurements)
            [row] = ledger.commit([Entry("main", 17, charged, ids)])      # draws the noise; the row is durable
            carry, estimate = step.estimate(carry, row.to_release())

    **Guarantees**
        - Unit: one sensor id. In individual accounting it has one budget for all streams of the ledger, in total
          accounting one budget for each stream.
        - What was spent never exceeds the budget, for any sequence of calls. It is checked and debited in integers, in
          the transaction that records the release.
        - With periods all of this holds within each period. `begin_period` deletes all accounts; periods never go back.
        - With a bank a debit is made from the open slice of its sensor and within what is left of it, or not at all.
        - Noise is drawn inside `commit`, which returns a row only when it is durable.
        - A step that was committed is never drawn again: `commit` returns the stored row.
        - A step that was skipped is refused once a later one of its stream is committed. There are no refunds.
        - There is one writer. A second one is refused while this one, or its process, lives. A forked child is refused.
        - A full disk, a damaged file, and a file that was changed, rolled back, replaced or lost raise `LedgerRefused`,
          and nothing is released.
        - After an error of the disk the ledger closes itself, as it does not know what was committed. Opening it again
          reads that from the file.
        - No error shows an account, an id, or how many there are.
        - Assumption: everybody who may write to the file is trusted. The chain of hashes shows accidents and simple
          changes. A copy of the tip, kept elsewhere, shows every other change.
    """

    def __init__(
        self,
        path: Path,
        head: HeadFile,
        connection: Connection,
        place: Place,
        found: LedgerCheck,
        balances: Balances,
    ) -> None:
        """Use `create` or `open`."""
        super().__init__(path, head, connection, place, found, balances)
        self._mechanism = self.terms.mechanism
        self._individual: IndividualFilter | None = None

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        design: Design,
        streams: Iterable[str] = ("main",),
        bank_id: str | None = None,
    ) -> Ledger:
        """A new ledger for that design and these streams. Folders that are missing are made for their owner alone.

        Args:
            bank_id: of the bank whose slices alone may be spent (`BankClient`); None for accounts of its own.
        """
        target = Path(path).resolve()
        terms = Terms.of(design, streams, secrets.token_hex(16), bank_id)
        if target.exists() or head_path(target).exists():
            raise LedgerMismatch(f"{target} or its head file is there already; open it, or choose another name")
        with raising_ledger_refused(target):
            # The head file comes first: after a crash in between there is one without a ledger, which is refused.
            head = HeadFile(head_path(target), create=True)
            try:
                start = LedgerCheck.at_start(terms)
                head.write(Head(terms.ledger_id, 0, start.tip, start.private_tip), sync=True)
                make_tables(target, terms)
            except BaseException:  # nothing was released yet
                head.path.unlink()
                raise
            finally:
                head.close()
        return cls.open(target, design)

    @classmethod
    def open(cls, path: str | os.PathLike[str], design: Design, *, is_full_check: bool = True) -> Ledger:
        """The ledger in that file, checked and opened for writing.

        Args:
            is_full_check: check every row. False checks the rows since the last seal, unless the head file is older.
                That makes the restart of a long ledger quick; `verify` can check the rest while the writer works.
        """
        return cls._open(Path(path).resolve(), design, is_full_check)

    @classmethod
    def open_for_events(cls, path: str | os.PathLike[str]) -> Ledger:
        """The ledger in that file with whatever design it has, for `append_event`; it is checked as by `open`."""
        return cls._open(Path(path).resolve(), None, is_full_check=True)

    @classmethod
    def _open(cls, target: Path, design: Design | None, is_full_check: bool) -> Ledger:
        with raising_ledger_refused(target), ExitStack() as opened:
            check_exists(target)
            head = opened.enter_context(closing(HeadFile(head_path(target))))
            bring_up_to_date(target, read_head(head.path))
            place = look_at_files(target, head)  # what is put there from now on is another ledger
            connection = opened.enter_context(closing(connect(target)))
            if design is not None:
                read_terms(connection, target).check_design(design, target)
            if is_full_check:
                check_pages(connection, target)
            ledger = cls(
                target, head, connection, place, *check(connection, target, read_head(head.path), is_full=is_full_check)
            )
            ledger._seal()
            # Rows that a crash or a failed sync left in the log are synced to the file before they may be published.
            connection.wal_checkpoint(mode=sqlite().SQLITE_CHECKPOINT_FULL)
            sync_folder(target.parent)
            opened.pop_all()  # from here on the ledger closes them
        return ledger

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams, sorted."""
        return self.terms.streams

    @property
    def found(self) -> LedgerCheck:
        """How far the ledger has come; to read, not to change."""
        return self._progress

    def last_step(self, stream: str) -> int:
        """The last step that was committed, 0 for none."""
        return self._progress.streams[self._known(stream)].last_step

    @property
    def newest_step(self) -> int:
        """The last step that was committed to any stream, also one that was retired; 0 for none."""
        return max(one.last_step for one in self._progress.streams.values())

    def accounts(self, stream: str) -> TotalFilter | IndividualFilter:
        """The accounts to charge that stream's steps to.

        In total accounting this is a copy of the stream's own account. In individual accounting all streams share one
        set of accounts, which is private.
        """
        self._check_open()
        left = self._progress.streams[self._known(stream)].budget_left
        if left is not None:
            return TotalFilter(self._mechanism.budget, self._mechanism.budget - left)
        if self._individual is None:
            self._individual = IndividualFilter(
                self._mechanism.budget, self._mechanism.factor, self._balances.spent(), self._progress.charged_to_all
            )
        return self._individual

    def rows(self, stream: str, start: int = 1) -> Iterator[Row]:
        """The committed rows of a stream from step `start` on, in order; for example to publish them again."""
        return self._rows(start, self._known(stream))

    def rows_by_step(self, start: int = 1) -> Iterator[Row]:
        """The committed rows of all streams from step `start` on, sorted by step."""
        return self._rows(start)

    def _rows(self, start: int, stream: str | None = None) -> Iterator[Row]:
        # Up to the last commit that is durable: another thread may have written one more.
        pages = row_pages(self._connection, start, self.num_commits, stream)
        while True:
            self._check_open()
            with self._closing_on_error():
                page = next(pages, None)
            if page is None:
                return
            yield from page

    def commit(self, entries: Sequence[Entry], noise: Noise | None = None) -> list[Row]:
        """The durable rows of these steps, which may be published. All steps are committed, or none.

        A step is debited, drawn and recorded. For a step that was committed before, its stored row is returned and
        nothing is charged.

        Args:
            entries: at most one for each stream.
            noise: the noise of all entries, in their order; None draws it here.

        Raises:
            BudgetExceeded: a step costs more than its stream has left; nothing was recorded.
            LedgerRefused: nothing may be published; if the ledger closed itself, open it again.
        """
        self._check_open()
        check_entries(entries, self.terms)
        if self.terms.guarantee.period is not None and self.period is None:
            raise LedgerRefused(f"{self.path} has a budget for each period; call `begin_period` before the first step")
        rows = {entry.stream: row for entry in entries if (row := self._stored(entry))}
        if fresh := [entry for entry in entries if entry.stream not in rows]:
            check_undrawn(fresh, self.terms)
            left = {entry.stream: self._left_after(entry) for entry in fresh}
            debits = NO_DEBITS if self.terms.is_total else sum_debits(fresh)
            noise = noise if len(fresh) == len(entries) else None
            with self._closing_on_error():
                if self._num_pending >= _MOST_PENDING:
                    self._seal()
                rows |= {row.stream: row for row in self._record(fresh, left, debits, noise)}
        return [rows[entry.stream] for entry in entries]

    def _record(
        self, entries: Sequence[Entry], left: dict[str, int | None], debits: Debits, noise: Noise | None
    ) -> list[Row]:
        """Debit, draw and record in one transaction, which is durable when this returns."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._check_only_writer()
        commitment = self._debit(debits)
        releases = self._mechanism.draw_many([entry.charged for entry in entries], noise)
        rows = make_rows(entries, releases, self._progress, left)
        tip = self._insert(commitment, rows)
        self._connection.execute("COMMIT")
        self._advance(tip, commitment, rows)
        self._write_head()
        return rows

    @property
    def period(self) -> int | None:
        """The number of the period in progress, public; None without periods, and before the first one."""
        return self._progress.period

    def begin_period(self, period: int) -> None:
        """Begin that period, in one durable transaction: every account starts afresh, in all streams.

        Nothing happens if it is the one in progress. Take `accounts` again afterwards.

        Raises:
            ValueError: the guarantee has no periods, or a later one is in progress: periods never go back.
        """
        self._check_open()
        if self.terms.guarantee.period is None:
            raise ValueError("begin_period must come with a guarantee that has a period")
        if self.period is not None and period < self.period:
            raise ValueError(f"period must be at least {self.period}, the one in progress, got {period}")
        if period == self.period:
            return
        with self._closing_on_error():
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_only_writer()
            self._enter_period(period)
            self._connection.execute("COMMIT")
            self._write_head(sync=True)
        self._individual, self._open_slice = None, None

    def append_event(
        self, kind: str, content: str, known: Iterable[Sequence[Row]] = (), period: int | None = None
    ) -> None:
        """Record an event in one durable transaction, and close the ledger: it is another one from then on.

        For `dpfuse.ledger.upgrade` and `dpfuse.ledger.restore`.

        Args:
            kind, content: of the event, see `dpfuse.ledger.events`.
            known: rows that were released before and that the ledger lacks, checked; one commit for each sequence.
            period: the period in which the event happens, if there are periods.
        """
        self._check_open()
        with self._closing_on_error():
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_only_writer()
            for rows in known:
                self._catch_up(rows[0].period)
                commitment = self._debit(NO_DEBITS)
                self._advance(self._insert(commitment, rows), commitment, rows)
            self._catch_up(period)
            commitment = self._debit(NO_DEBITS)
            tip = self._insert(commitment, (), (kind, content))
            values = self._progress.num_commits + 1, kind, content
            self._connection.execute("INSERT INTO events VALUES (?, ?, ?)", values)
            self._connection.execute("COMMIT")
            self._advance(tip, commitment, ())
            self._progress.adopt(kind, content)
        self.close()

    @property
    def num_commits(self) -> int:
        """The number of the last commit, 0 before the first."""
        return self._progress.num_commits

    def checkpoint(self) -> None:
        """Do between steps what makes later steps quick.

        Copies the log to the database file, makes room for more accounts and, after several commits, adds their debits
        to the accounts and signs the last rows (`sign_with`). Packs old rows (`pack_rows_after`).
        """
        self._check_open()
        with self._closing_on_error():
            if self._num_pending >= _PENDING_COMMITS or self._has_old_rows:
                self._seal()
            self._sign(_PENDING_COMMITS)
            self._balances.grow()
            self._connection.wal_checkpoint(mode=sqlite().SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        """Close file and lock. The ledger may then be opened again."""
        if self._is_open and os.getpid() == self._process:
            with suppress(LedgerRefused), self._closing_on_error():  # `open` and `sign_with` do it, too
                self._sign()
                if self._num_pending:
                    self._seal()
        self._close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name, num_commits = type(self).__name__, self._progress.num_commits
        return f"{name}({str(self.path)!r}, {len(self.streams)} streams, {num_commits} commits)"

    def _known(self, stream: str) -> str:
        return _check.is_one_of("stream", stream, self.streams)

    def _stored(self, entry: Entry) -> Row | None:
        """The committed row of that step, None if the step is later than the last one."""
        last = self._progress.streams[entry.stream].last_step
        if entry.step > last:
            if entry.step <= self._packed_step:
                raise LedgerRefused(
                    f"step {entry.step} of stream {entry.stream!r} comes too late: the rows of all streams up to step "
                    f"{self._packed_step} are packed; use a later one"
                )
            return None
        with self._closing_on_error():
            found = find_row(self._connection, entry.stream, entry.step)
        if found is None:
            raise LedgerRefused(
                f"step {entry.step} of stream {entry.stream!r} was skipped: step {last} is committed; use a later one"
            )
        return found

    def _left_after(self, entry: Entry) -> int | None:
        left = self._progress.streams[entry.stream].budget_left
        return None if left is None else left_after(entry, left, self._mechanism.factor)
