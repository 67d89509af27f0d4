"""The one writer of a ledger in SQLite: debits and release in one transaction, and the committed row handed back."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.debits import NO_DEBITS, Debits, check_entries, check_undrawn, debits_of, left_after
from dpfuse.ledger.head import Head, HeadFile, head_path, read_head
from dpfuse.ledger.reader import COLUMNS, Audit, check
from dpfuse.ledger.store import check_there, connect, make_tables, read_terms, refusals, sqlite, sync_folder
from dpfuse.ledger.terms import Entry, Terms, next_tip
from dpfuse.privacy.budget import IndividualFilter, TotalFilter
from dpfuse.privacy.noise import Noise
from dpfuse.public.rows import Row, to_bytes

if TYPE_CHECKING:
    from apsw import Connection

    from dpfuse.ledger.postgres_store import Address
    from dpfuse.policy.design import Design

_ROWS_AT_ONCE = 1000
# Commits after which their debits are added to the accounts, all together.
_COMMITS_APART = 16
_INSERT = f"INSERT INTO releases ({COLUMNS}, commit_number) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


class Ledger:
    """Every release of one design's streams, and what was paid for it.

        with Ledger.open("us101.db", design) as ledger:
            carry = step.init(ledger.accounts("main"))
            carry, charged = step.contribute(carry, ids, measurements)
            [row] = ledger.commit([Entry("main", 17, charged, ids)])      # with noise, and durable before it is seen
            carry, estimate = step.estimate(carry, row.to_release())

    **Guarantees**
        - Unit: one sensor id, over all streams of the ledger (individual accounting) or in one of them (total). What
          was spent never passes the budget, whatever is asked: checked and debited in integers in the transaction that
          records the release.
        - Noise is added inside `commit`, and nobody sees a release before its row is durable. A row that is there is
          given back as it was stored: nothing is drawn twice. A step behind the last one is refused. No refunds.
        - One writer: a second one is refused for as long as this one, or its process, lives. A forked child is refused.
        - Anything wrong (full disk, damage, a file that was changed, rolled back, replaced or lost) raises
          `LedgerRefused` and releases nothing. After an error of the disk the ledger is closed, as it is not clear
          what was committed: to open it again reads that back.
        - No error shows an account, an id, or how many there are.
        - Assumes that whoever may write the file is trusted; the chain shows accidents and clumsy changes, and the tip,
          kept elsewhere, shows all others.
    """

    def __init__(
        self,
        path: Path | Address,
        head: HeadFile,
        connection: Connection,
        audit: Audit,
        balances: Balances | None = None,
    ) -> None:
        """Use `create` or `open`."""
        self.path, self.terms = path, audit.terms
        self._head, self._connection, self._audit = head, connection, audit
        self._mechanism = self.terms.mechanism
        self._balances, self._num_apart = balances, 0
        self._shared: IndividualFilter | None = None
        self._process = os.getpid()
        self._is_open = True

    @classmethod
    def create(cls, path: str | os.PathLike[str], design: Design, streams: Iterable[str] = ("main",)) -> Ledger:
        """A new ledger for that design, with these streams for good."""
        target = Path(path).resolve()
        terms = Terms.of(design, streams, secrets.token_hex(16))
        if target.exists() or head_path(target).exists():
            raise LedgerRefused(f"{target} or its head file is there already; open it, or choose another name")
        with refusals(target):
            # The head comes first: after a crash in between, a head without a ledger is refused.
            head = HeadFile(head_path(target), create=True)
            try:
                head.write(Head(terms.ledger_id, 0, terms.first_tip), sync=True)
                make_tables(target, terms)
            except BaseException:  # nothing was released
                head.path.unlink()
                raise
            finally:
                head.close()
        return cls.open(target, design)

    @classmethod
    def open(cls, path: str | os.PathLike[str], design: Design, *, is_full_check: bool = True) -> Ledger:
        """The ledger in a file that `create` made, after everything in it was checked.

        Args:
            is_full_check: read every row. False reads those that were committed after the head file was written, for
                ledgers so long that a restart must not wait; `verify` checks the rest while the writer works.
        """
        target = Path(path).resolve()
        with refusals(target):
            check_there(target)
            head = HeadFile(head_path(target))
            try:
                return cls._open(target, head, design, is_full_check)
            except BaseException:
                head.close()
                raise

    @classmethod
    def _open(cls, path: Path, head: HeadFile, design: Design, is_full_check: bool) -> Ledger:
        connection = connect(path)
        try:
            terms = read_terms(connection, path)
            if terms != Terms.of(design, terms.streams, terms.ledger_id):
                raise LedgerRefused(f"{path} belongs to another design; open it with that one, or create a new ledger")
            audit = check(connection, path, terms, read_head(head.path), is_full=is_full_check)
            balances = None if terms.is_total else Balances.read(connection, path, terms.mechanism.budget)
            ledger = cls(path, head, connection, audit, balances)
            ledger._write_balances()
            # What a crash or a failed sync left in the log is written to the file, and synced, before it is published.
            connection.wal_checkpoint(mode=sqlite().SQLITE_CHECKPOINT_FULL)
            head.write(Head(terms.ledger_id, audit.number, audit.tip), sync=True)
            sync_folder(path.parent)
        except BaseException:
            connection.close()
            raise
        return ledger

    @property
    def streams(self) -> tuple[str, ...]:
        return self.terms.streams

    @property
    def is_shared(self) -> bool:
        """Whether other centres may debit the same accounts between one step of this one and the next; public."""
        return False

    def last_step(self, stream: str) -> int:
        """The last step that was released, 0 for none."""
        return self._audit.streams[self._known(stream)].last_step

    def accounts(self, stream: str) -> TotalFilter | IndividualFilter:
        """The accounts to charge that stream's steps to, as the ledger has them.

        In total accounting a copy of the stream's own; in individual accounting one for all streams. Private then.
        """
        self._check_open()
        left = self._audit.streams[self._known(stream)].budget_left
        if left is not None:
            return TotalFilter(self._mechanism.budget, self._mechanism.budget - left)
        if self._shared is None:
            self._shared = IndividualFilter(self._mechanism.budget, self._mechanism.factor, self._spent())
        return self._shared

    def refresh(self, ids: ArrayLike) -> None:
        """Before these sensors are charged: bring their accounts up to date, where other centres debit them too.

        Nobody else writes to a ledger in SQLite, so there is nothing to do here.
        """

    def rows(self, stream: str, start: int = 1) -> Iterator[Row]:
        """The committed rows of a stream from step `start` on, in order: to publish them again."""
        self._known(stream)
        query = f"""SELECT {COLUMNS} FROM releases WHERE step BETWEEN ? AND ? AND stream = ?
            ORDER BY step LIMIT {_ROWS_AT_ONCE}"""
        while True:
            self._check_open()
            with self._stopping():  # not what a commit, in another thread, has written and not yet ended
                values = start, self.last_step(stream), stream
                found = [Row._make(row) for row in self._connection.execute(query, values)]
            yield from found
            if len(found) < _ROWS_AT_ONCE:
                return
            start = found[-1].step + 1

    def commit(self, entries: Sequence[Entry], noise: Noise | None = None) -> list[Row]:
        """Debit, draw and record one step of each stream, all or none; what comes back is durable and may be published.

        A step that is in the ledger is not charged again: its row comes back as it was stored.

        Args:
            noise: for all entries, one after the other; None draws it here.

        Raises:
            BudgetExceeded: a cost is more than its stream has left; nothing was recorded.
            LedgerRefused: nothing may be published; where the ledger was closed, open it again.
        """
        self._check_open()
        check_entries(entries, self.terms, self._audit.streams)
        rows = {entry.stream: row for entry in entries if (row := self._stored(entry))}
        if fresh := [entry for entry in entries if entry.stream not in rows]:
            check_undrawn(fresh, self.terms)
            left = {entry.stream: self._left_after(entry) for entry in fresh}
            debits = NO_DEBITS if self.terms.is_total else debits_of(fresh)
            noise = noise if len(fresh) == len(entries) else None
            with self._stopping():
                if self._num_apart >= 8 * _COMMITS_APART:  # nobody tidies up
                    self._write_balances()
                rows |= {row.stream: row for row in self._record(fresh, left, debits, noise)}
        return [rows[entry.stream] for entry in entries]

    def _record(
        self, entries: Sequence[Entry], left: dict[str, int | None], debits: Debits, noise: Noise | None
    ) -> list[Row]:
        """The one transaction: all that is in here is durable when it returns, or never was."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._check_alone()
        number = self._audit.number + 1
        if len(debits.sensors):
            self._debit(number, debits)
        rows = self._draw(entries, left, noise)
        tip = next_tip(self._audit.tip, number, rows)
        self._connection.execute("INSERT INTO commits VALUES (?, ?, ?)", (number, tip, str(debits.total)))
        self._connection.executemany(_INSERT, [(*row, number) for row in rows])
        self._connection.execute("COMMIT")
        self._advance(number, tip, rows)
        self._num_apart += 1
        return rows

    def tidy(self) -> None:
        """Write what is in the log to the database file, make room, and now and then bring the accounts up to date."""
        self._check_open()
        with self._stopping():
            if self._num_apart >= _COMMITS_APART:
                self._write_balances()
            if self._balances is not None:
                self._balances.grow()
            self._connection.wal_checkpoint(mode=sqlite().SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        """Let go of file and lock; the ledger may then be opened again, here or elsewhere."""
        if self._is_open and os.getpid() == self._process and self._num_apart:
            with suppress(LedgerRefused), self._stopping():  # to open it again does it too
                self._write_balances()
        self._let_go_of_all()

    def _write_balances(self) -> None:
        """Add what was debited to the accounts, in a transaction of its own."""
        self._num_apart = 0
        if self._balances is not None:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_alone()
            self._balances.write(self._connection, self.path)
            self._connection.execute("DELETE FROM debits WHERE commit_number <= ?", (self._audit.number,))
            self._connection.execute("COMMIT")
            self._balances.written()

    def _let_go_of_all(self) -> None:
        if self._is_open:
            self._is_open = False
            if os.getpid() == self._process:  # a child has no business with its parent's connection
                with suppress(sqlite().Error):
                    self._connection.close()
            self._head.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, {len(self.streams)} streams, {self._audit.number} commits)"

    def _known(self, stream: str) -> str:
        return _check.is_one_of("stream", stream, self.streams)

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise LedgerRefused(f"{self.path} was opened by another process; open it in the one that writes")
        if not self._is_open:
            raise LedgerRefused(f"{self.path} is closed; open it again, which reads back what was committed")

    def _stored(self, entry: Entry) -> Row | None:
        """The row of that step, None if it is still to come."""
        last = self._audit.streams[entry.stream].last_step
        if entry.step > last:
            return None
        query = f"SELECT {COLUMNS} FROM releases WHERE step = ? AND stream = ?"
        with self._stopping():
            found = self._connection.execute(query, (entry.step, entry.stream)).fetchone()
        if found is None:
            raise LedgerRefused(f"step {entry.step} of stream {entry.stream!r} was skipped: step {last} is released")
        return Row._make(found)

    def _left_after(self, entry: Entry) -> int | None:
        left = self._audit.streams[entry.stream].budget_left
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

    def _check_alone(self) -> None:
        if self._connection.execute("SELECT max(number) FROM commits").fetchall() != [(self._audit.number or None,)]:
            raise LedgerRefused(f"{self.path} was written to by somebody else; find out by whom before you go on")

    def _draw(self, entries: Sequence[Entry], left: dict[str, int | None], noise: Noise | None) -> list[Row]:
        releases = self._mechanism.draw_many([entry.charged for entry in entries], noise)
        rows = []
        for entry, release in zip(entries, releases, strict=True):
            story, remaining = self._audit.streams[entry.stream], left[entry.stream]
            cost = None if story.budget_left is None or remaining is None else story.budget_left - remaining
            content = (entry.stream, int(entry.step), to_bytes(release), int(release.fusion_weight), cost, remaining)
            rows.append(Row.after(story.last_hash, *content))
        return rows

    def _advance(self, number: int, tip: bytes, rows: Iterable[Row]) -> None:
        """Follow the commit in memory and in the head file."""
        self._audit.number, self._audit.tip = number, tip
        for row in rows:
            story = self._audit.streams[row.stream]
            story.num_rows += 1
            story.last_step, story.budget_left, story.last_hash = row.step, row.budget_left, row.hash
        self._head.write(Head(self.terms.ledger_id, number, tip))

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Closes the ledger on any error: what is committed is then known only after it was opened again."""
        with refusals(self.path):
            try:
                yield
            except sqlite().IOError:  # the system knows more
                number = self._connection.system_errno
                self._let_go_of_all()
                raise OSError(number, "in SQLite") from None
            except BaseException:
                self._let_go_of_all()
                raise
