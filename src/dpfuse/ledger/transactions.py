"""What the one writer of a ledger does inside a transaction: debit, insert, seal, begin a period, keep slices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse import _check
from dpfuse._arrays import Integers
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.balances import Balances
from dpfuse.ledger.bank.borrower import HeldSlice
from dpfuse.ledger.bank.rules import NO_ANSWER, LastAnswer
from dpfuse.ledger.commitments import commit_to_debits, make_nonce, next_private_tip
from dpfuse.ledger.debits import NO_DEBITS, Debits
from dpfuse.ledger.events import PERIOD, RESTORE
from dpfuse.ledger.head import HeadFile
from dpfuse.ledger.memories import StoredMemory, read_memories, write_memory
from dpfuse.ledger.open_ledger import OpenLedger, Place
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.seals import last_seal, write_seal
from dpfuse.ledger.segments import last_packed_step, num_packed_steps, pack_rows
from dpfuse.ledger.signed import write_signatures
from dpfuse.ledger.slices import pays_for, read_last_answer, read_slices, write_slices
from dpfuse.ledger.stored_rows import COLUMNS
from dpfuse.ledger.terms import next_tip
from dpfuse.public.rows import Row
from dpfuse.public.signatures import Signer

if TYPE_CHECKING:
    from apsw import Connection

_INSERT = f"INSERT INTO releases ({COLUMNS}, commit_number) VALUES ({', '.join('?' * (len(Row._fields) + 1))})"


class LedgerTransactions(OpenLedger):
    """An open ledger with its accounts. The caller begins and commits each transaction; an error closes the ledger."""

    def __init__(
        self,
        path: Path,
        head: HeadFile,
        connection: Connection,
        place: Place,
        found: LedgerCheck,
        balances: Balances,
    ) -> None:
        super().__init__(path, head, connection, place, found)
        self._balances, self._num_sealed = balances, last_seal(connection, path).commit_number
        self._open_slice: HeldSlice | None = None
        self._signer: Signer | None = None
        self._packed_step = self._next_after = last_packed_step(connection)
        self._num_kept_steps: int | None = None
        self._signed: dict[str, int] = {}  # the last step of each stream that this process has signed

    def spent_of(self, sensors: Integers) -> Integers:
        """What each of these sensors has spent in this ledger, and in this period if it has periods. Private."""
        return self._balances.spent_of(sensors)

    def slices(self, generation: int) -> list[HeldSlice]:
        """The slices of the bank that this ledger holds for that generation of its centre. Private."""
        self._check_open()
        with self._closing_on_error():
            return read_slices(self._connection, generation)

    def last_answer(self) -> tuple[int, LastAnswer]:
        """The last answer of the bank that this ledger holds, and the generation of its centre then, 0 for none."""
        self._check_open()
        with self._closing_on_error():
            return read_last_answer(self._connection)

    def keep_slices(self, generation: int, slices: Iterable[HeldSlice], last_answer: LastAnswer = NO_ANSWER) -> None:
        """Make these slices and this answer durable and seal them; from then on debits are made from the open one.

        It is a commit of its own, without rows, so that the private chain goes on.
        """
        self._check_open()
        kept = list(slices)
        with self._closing_on_error():
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_only_writer()
            write_slices(self._connection, generation, kept, last_answer)
            self._balances.write(self._connection, self.path)
            commitment = self._debit(NO_DEBITS)
            self._advance(self._insert(commitment, ()), commitment, ())
            self._write_seal()
            self._connection.execute("COMMIT")
            self._balances.mark_written()
            self._write_head()
        self._open_slice = next((own for own in kept if own.is_open), None)

    def private_tip_at(self, number: int) -> bytes:
        """The private tip that was sealed with that commit; empty if none was. Private."""
        return self._value("SELECT private_tip FROM seals WHERE commit_number = ?", number)

    def restore_mark(self) -> str:
        """A name of the last restore from a backup, which no other restore has; empty if there was none. Private."""
        last = "SELECT max(commit_number) FROM events WHERE kind = ?"
        return self._value(f"SELECT commitment FROM commits WHERE number = ({last})", RESTORE).hex()

    def _value(self, query: str, wanted: int | str) -> bytes:
        self._check_open()
        with self._closing_on_error():
            found: Any = self._connection.execute(query, (wanted,)).fetchone()
        return bytes(found[0]) if found else b""

    def memories(self) -> list[StoredMemory]:
        """What g and E of this design remembered after some earlier steps, the newest first; public."""
        self._check_open()
        with self._closing_on_error():
            return read_memories(self._connection, self.terms.design_id, self.terms.streams)

    def keep_memory(self, memory: StoredMemory) -> None:
        """Store what g and E remember after the last commit; of those stored before, one is kept."""
        self._check_open()
        with self._closing_on_error():
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_only_writer()
            made_by = self.terms.design_id, self.terms.streams
            write_memory(self._connection, self._progress.num_commits, self._progress.tip, *made_by, memory)
            self._connection.execute("COMMIT")

    def sign_with(self, signer: Signer) -> None:
        """Store the signature of each stream's last row: now, at `checkpoint` every few commits, and at the end."""
        self._check_open()
        self._signer, self._signed = signer, {}
        with self._closing_on_error():
            self._sign()

    def _sign(self, most_unsigned: int = 0) -> None:
        """Sign what is not signed yet, if any stream has more such steps than that, or no signature."""
        last = {name: one.last_step for name, one in self._progress.streams.items() if one.last_step}
        unsigned = {name: step for name, step in last.items() if step > self._signed.get(name, 0)}
        is_due = any(step - self._signed.get(name, -most_unsigned) > most_unsigned for name, step in unsigned.items())
        if self._signer is None or not is_due:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._check_only_writer()
        write_signatures(self._connection, self._signer, unsigned.items())
        self._connection.execute("COMMIT")
        self._signed = last

    def _insert(self, commitment: bytes, rows: Sequence[Row], event: tuple[str, str] | None = None) -> bytes:
        """Insert a commit in the transaction that was begun; returns its tip."""
        number = self._progress.num_commits + 1
        tip = next_tip(self._progress.tip, number, rows, event)
        self._connection.execute("INSERT INTO commits VALUES (?, ?, ?)", (number, tip, commitment))
        self._connection.executemany(_INSERT, [(*row, number) for row in rows])
        return tip

    def _advance(self, tip: bytes, commitment: bytes, rows: Sequence[Row]) -> None:
        """Note a commit in memory."""
        progress = self._progress
        progress.num_commits, progress.tip = progress.num_commits + 1, tip
        progress.private_tip = next_private_tip(progress.private_tip, commitment)
        for row in rows:
            progress.streams[row.stream].add(row)

    def _enter_period(self, period: int) -> None:
        """Delete all accounts, and record and seal that the period has begun, in the transaction that was begun."""
        self._balances.clear(self.terms.mechanism.budget)
        commitment, event = self._debit(NO_DEBITS), (PERIOD, str(period))
        tip = self._insert(commitment, (), event)
        self._connection.execute("INSERT INTO events VALUES (?, ?, ?)", (self._progress.num_commits + 1, *event))
        self._connection.execute("DELETE FROM accounts")
        self._advance(tip, commitment, ())
        self._progress.adopt(*event)
        self._write_seal()

    def _catch_up(self, period: int | None) -> None:
        """Enter that period unless it is in progress."""
        if period is not None and period != self._progress.period:
            self._enter_period(period)

    @property
    def _num_pending(self) -> int:
        """Commits since the last seal."""
        return self._progress.num_commits - self._num_sealed

    def _seal(self) -> None:
        """Add the pending debits to the table of accounts, seal accounts and streams, and sync the head file."""
        if self._num_pending:
            self._connection.execute("BEGIN IMMEDIATE")
            self._check_only_writer()
            self._balances.write(self._connection, self.path)
            if self._num_kept_steps is not None:
                last = self._newest_step - self._num_kept_steps
                self._next_after = pack_rows(self._connection, COLUMNS, last, len(self._progress.streams))
            self._write_seal()
            self._connection.execute("COMMIT")
            self._balances.mark_written()
            self._packed_step = last_packed_step(self._connection)
        self._write_head(sync=True)

    def pack_rows_after(self, num_steps: int) -> None:
        """Pack rows that are so many steps old: from now on, one segment at each `checkpoint`. They can still be read.

        A step of a stream that comes after its rows were packed is refused.
        """
        _check.is_count("num_steps", num_steps, 1)
        self._num_kept_steps = num_steps

    @property
    def _has_old_rows(self) -> bool:
        """Whether there may be enough old rows for a segment."""
        if self._num_kept_steps is None:
            return False
        length = num_packed_steps(len(self._progress.streams))
        return self._newest_step - self._num_kept_steps >= self._next_after + length

    @property
    def _newest_step(self) -> int:
        return max(one.last_step for one in self._progress.streams.values())

    def _write_seal(self) -> None:
        """Seal accounts, streams and slices in the transaction that was begun."""
        seal = write_seal(self._connection, self._progress, self._balances.to_bytes())
        self._connection.execute("DELETE FROM debits WHERE commit_number <= ?", (seal.commit_number,))
        self._num_sealed, self._progress.private_tip = seal.commit_number, seal.private_tip

    def _debit(self, debits: Debits) -> bytes:
        """Take the debits in the transaction that was begun; returns the commitment to them."""
        is_lent = self.terms.bank_id is None or pays_for(self._open_slice, debits, self.spent_of)
        if not is_lent or not self._balances.debit(debits):
            raise LedgerRefused(
                f"{self.path}: a debit does not fit its account, so the step was charged to other accounts than the "
                f"ledger's; open the ledger again and take `accounts` from it"
            )
        number, nonce = self._progress.num_commits + 1, make_nonce()
        self._connection.execute("INSERT INTO debits VALUES (?, ?, ?, ?)", (number, nonce, *debits.to_bytes()))
        return commit_to_debits(number, debits, self._balances.total, nonce)
