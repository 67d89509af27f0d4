"""The one writer of a ledger in SQLite."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.debits import NO_DEBITS, Debits
from dpfuse.ledger.entries import Entry, check_entries, check_undrawn, left_after, sum_debits
from dpfuse.ledger.head import Head, HeadFile, head_path, read_head
from dpfuse.ledger.reader import COLUMNS, LedgerCheck, check
from dpfuse.ledger.store import (
    check_exists,
    connect,
    make_tables,
    raising_ledger_refused,
    read_terms,
    sqlite,
    sync_folder,
)
from dpfuse.ledger.terms import Terms, next_tip
from dpfuse.privacy.budget import IndividualFilter, TotalFilter
from dpfuse.privacy.noise import Noise
from dpfuse.public.rows import Row, to_bytes

if TYPE_CHECKING:
    from apsw import Connection

    from dpfuse.ledger.postgres_store import Address
    from dpfuse.policy.design import Design

_ROWS_AT_ONCE = 1000
# `checkpoint` adds debits to the accounts once so many commits have some that are not added yet. Without a call of
# `checkpoint` a commit does it, after `_MOST_PENDING` of them.
_PENDING_COMMITS = 16
_MOST_PENDING = 8 * _PENDING_COMMITS
_INSERT = f"INSERT INTO releases ({COLUMNS}, commit_number) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class Ledger:
    """The durable record of every release of one design's streams, and of what was charged for it.

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
        path: Path | Address,
        head: HeadFile,
        connection: Connection,
        found: LedgerCheck,
        balances: Balances | None = None,
    ) -> None:
        """Use `create` or `open`."""
        self.path, self.terms = path, found.terms
        self._head, self._connection = head, connection
        self._progress = found  # kept up to date with every commit
        self._mechanism = self.terms.mechanism
        self._balances, self._num_pending = balances, 0
        self._individual: IndividualFilter | None = None
        self._process = os.getpid()
        self._is_open = True

    @classmethod
    def create(cls, path: str | os.PathLike[str], design: Design, streams: Iterable[str] = ("main",)) -> Ledger:
        """A new ledger for that design and these streams."""
        target = Path(path).resolve()
        terms = Terms.of(design, streams, secrets.token_hex(16))
        if target.exists() or head_path(target).exists():
            raise LedgerRefused(f"{target} or its head file is there already; open it, or choose another name")
        with raising_ledger_refused(target):
            # The head file comes first: after a crash in between there is one without a ledger, which is refused.
            head = HeadFile(head_path(target), create=True)
            try:
                head.write(Head(terms.ledger_id, 0, terms.first_tip), sync=True)
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
            is_full_check: check every row. False checks the rows that were committed after the head file was written.
                That makes the restart of a long ledger quick; `verify` can check the rest while the writer works.
        """
        target = Path(path).resolve()
        with raising_ledger_refused(target), ExitStack() as opened:
            check_exists(target)
            head = opened.enter_context(closing(HeadFile(head_path(target))))
            connection = opened.enter_context(closing(connect(target)))
            terms = read_terms(connection, target)
            terms.check_design(design, target)
            found = check(connection, target, terms, read_head(head.path), is_full=is_full_check)
            balances = None if terms.is_total else Balances.read(connection, target, terms.mechanism.budget)
            ledger = cls(target, head, connection, found, balances)
            ledger._write_balances()
            # Rows that a crash or a failed sync left in the log are synced to the file before they may be published.
            connection.wal_checkpoint(mode=sqlite().SQLITE_CHECKPOINT_FULL)
            head.write(Head(terms.ledger_id, found.num_commits, found.tip), sync=True)
            sync_folder(target.parent)
            opened.pop_all()  # from here on the ledger closes them
        return ledger

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that this ledger was opened to write: all of them in SQLite."""
        return tuple(self._progress.streams)

    @property
    def is_shared(self) -> bool:
        """Whether other centres may debit the same accounts between two steps of this one; public."""
        return False

    def last_step(self, stream: str) -> int:
        """The last step that was committed, 0 for none."""
        return self._progress.streams[self._known(stream)].last_step

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
            self._individual = IndividualFilter(self._mechanism.budget, self._mechanism.factor, self._spent())
        return self._individual

    def refresh(self, ids: ArrayLike) -> None:
        """Bring the accounts of these sensors up to date, before they are charged.

        Nothing to do in SQLite, where no other centre debits them.
        """

    def rows(self, stream: str, start: int = 1) -> Iterator[Row]:
        """The committed rows of a stream from step `start` on, in order; for example to publish them again."""
        self._known(stream)
        query = f"""SELECT {COLUMNS} FROM releases WHERE step BETWEEN ? AND ? AND stream = ?
            ORDER BY step LIMIT {_ROWS_AT_ONCE}"""
        while True:
            self._check_open()
            with self._closing_on_error():
                # Up to the last row that is durable: a commit in another thread may have written one more.
                values = start, self.last_step(stream), stream
                found = [Row._make(row) for row in self._connection.execute(query, values)]
            yield from found
            if len(found) < _ROWS_AT_ONCE:
                return
            start = found[-1].step + 1

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
        check_entries(entries, self.terms, self._progress.streams)
        rows = {entry.stream: row for entry in entries if (row := self._stored(entry))}
        if fresh := [entry for entry in entries if entry.stream not in rows]:
            check_undrawn(fresh, self.terms)
            left = {entry.stream: self._left_after(entry) for entry in fresh}
            debits = NO_DEBITS if self.terms.is_total else sum_debits(fresh)
            noise = noise if len(fresh) == len(entries) else None
            with self._closing_on_error():
                if self._num_pending >= _MOST_PENDING:
                    self._write_balances()
                rows |= {row.stream: row for row in self._record(fresh, left, debits, noise)}
        return [rows[entry.stream] for entry in entries]

    def _record(
        self, entries: Sequence[Entry], left: dict[str, int | None], debits: Debits, noise: Noise | None
    ) -> list[Row]:
        """Debit, draw and record in one transaction, which is durable when this returns."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._check_only_writer()
        number = self._progress.num_commits + 1
        if len(debits.sensors):
            self._debit(number, debits)
        rows = self._draw(entries, left, noise)
        tip = next_tip(self._progress.tip, number, rows)
        self._connection.execute("INSERT INTO commits VALUES (?, ?, ?)", (number, tip, str(debits.total)))
        self._connection.executemany(_INSERT, [(*row, number) for row in rows])
        self._connection.execute("COMMIT")
        self._advance(number, tip, rows)
        self._num_pending += 1
        return rows

    def checkpoint(self) -> None:
        """Do between steps what makes later steps quick.

        Copies the log to the database file, makes room for more accounts and, after several commits, adds their debits
        to the accounts.
        """
        self._check_open()
        with self._closing_on_error():
            if self._num_pending >= _PENDING_COMMITS:
                self._write_balances()
            if self._balances is not None:
                self._balances.grow()
            self._connection.wal_checkpoint(mode=sqlite().SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        """Close file and lock. The ledger may then be opened again."""
        if self._is_open and os.getpid() == self._process and self._num_pending:
            with suppress(LedgerRefused), self._closing_on_error():  # `open` does it, too
                self._write_balances()
        self._close_files()

    def _write_balances(self) -> None:
        """Add the pending debits to the table of accounts, in a transaction of its own."""
        self._num_pending = 0
        if self._balances is not None:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_only_writer()
            self._balances.write(self._connection, self.path)
            self._connection.execute("DELETE FROM debits WHERE commit_number <= ?", (self._progress.num_commits,))
            self._connection.execute("COMMIT")
            self._balances.mark_written()

    def _close_files(self) -> None:
        if self._is_open:
            self._is_open = False
            if os.getpid() == self._process:  # a forked child must not use its parent's connection
                self._disconnect()
            self._head.close()

    def _disconnect(self) -> None:
        with suppress(sqlite().Error):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        name, num_commits = type(self).__name__, self._progress.num_commits
        return f"{name}({str(self.path)!r}, {len(self.streams)} streams, {num_commits} commits)"

    def _known(self, stream: str) -> str:
        return _check.is_one_of("stream", stream, self.streams)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise LedgerRefused(f"{self.path} was opened by another process; open it in the one that writes")
        if not self._is_open:
            raise LedgerRefused(f"{self.path} is closed; open it again, which reads back what was committed")

    def _stored(self, entry: Entry) -> Row | None:
        """The committed row of that step, None if the step is later than the last one."""
        last = self._progress.streams[entry.stream].last_step
        if entry.step > last:
            return None
        query = f"SELECT {COLUMNS} FROM releases WHERE step = ? AND stream = ?"
        with self._closing_on_error():
            found = self._connection.execute(query, (entry.step, entry.stream)).fetchone()
        if found is None:
            raise LedgerRefused(
                f"step {entry.step} of stream {entry.stream!r} was skipped: step {last} is committed; use a later one"
            )
        return Row._make(found)

    def _left_after(self, entry: Entry) -> int | None:
        left = self._progress.streams[entry.stream].budget_left
        return None if left is None else left_after(entry, left, self._mechanism.factor)

    def _spent(self) -> dict[int, int]:
        """What each sensor has spent. Private."""
        assert self._balances is not None  # individual accounting
        return self._balances.spent()

    def _debit(self, number: int, debits: Debits) -> None:
        assert self._balances is not None
        if not self._balances.debit(debits):
            raise LedgerRefused(
                f"{self.path}: a debit does not fit its account, so the step was charged to other accounts than the "
                f"ledger's; open the ledger again and take `accounts` from it"
            )
        self._connection.execute("INSERT INTO debits VALUES (?, ?, ?)", (number, *debits.to_bytes()))

    def _check_only_writer(self) -> None:
        [(last,)] = self._connection.execute("SELECT max(number) FROM commits").fetchall()
        if last != (self._progress.num_commits or None):
            raise LedgerRefused(f"{self.path} was written to by another program; find out which before you go on")

    def _draw(self, entries: Sequence[Entry], left: dict[str, int | None], noise: Noise | None) -> list[Row]:
        releases = self._mechanism.draw_many([entry.charged for entry in entries], noise)
        rows = []
        for entry, release in zip(entries, releases, strict=True):
            stream, remaining = self._progress.streams[entry.stream], left[entry.stream]
            cost = None if stream.budget_left is None or remaining is None else stream.budget_left - remaining
            content = (entry.stream, int(entry.step), to_bytes(release), int(release.fusion_weight), cost, remaining)
            rows.append(Row.after(stream.last_hash, *content))
        return rows

    def _advance(self, number: int, tip: bytes, rows: Iterable[Row]) -> None:
        """Note the commit in memory and in the head file."""
        self._progress.num_commits, self._progress.tip = number, tip
        for row in rows:
            self._progress.streams[row.stream].add(row)
        self._head.write(Head(self.terms.ledger_id, number, tip))

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Closes the ledger on any error: what was committed is then known only after opening it again."""
        with raising_ledger_refused(self.path):
            try:
                yield
            except sqlite().IOError:  # the system's error number names the cause, such as a full disk
                number = self._connection.system_errno
                self._close_files()
                raise OSError(number, "in SQLite") from None
            except BaseException:
                self._close_files()
                raise
