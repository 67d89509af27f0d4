"""A ledger in PostgreSQL: several centres, each the one writer of its streams, debit the same sensors' accounts.

Locks are taken in one order, so that no two centres wait for each other in a circle: first the accounts of a step,
sorted by id, then the chain of commits, for two round trips and the sync. The right to write a stream is a lock, too;
the connection holds it as long as it lives.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from dpfuse import _check
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.debits import Debits
from dpfuse.ledger.entries import Entry
from dpfuse.ledger.head import Head, HeadFile, SharedHeadFile
from dpfuse.ledger.postgres_reader import head_path, read_known_head, spent_in, write_new_head
from dpfuse.ledger.postgres_schema import has_ledger, make_tables
from dpfuse.ledger.postgres_store import (
    ALL_ON,
    Address,
    Session,
    check_durable,
    check_private,
    connect,
    driver,
    raising_ledger_refused,
    snapshot_of,
)
from dpfuse.ledger.reader import COLUMNS, LedgerCheck, check_rows
from dpfuse.ledger.store import read_terms
from dpfuse.ledger.terms import Terms, next_tip
from dpfuse.ledger.writer import Ledger
from dpfuse.privacy.budget import IndividualFilter, as_ids
from dpfuse.privacy.noise import Noise
from dpfuse.public.rows import Row

if TYPE_CHECKING:
    from psycopg import Connection

    from dpfuse.policy.design import Design

_WRITER_WAIT_S = 5.0
_LOCK = "SELECT sensor, spent FROM accounts WHERE sensor = ANY(%s::bigint[]) ORDER BY sensor FOR NO KEY UPDATE"
_OPEN = (
    "INSERT INTO accounts SELECT sensor, 0 FROM unnest(%s::bigint[]) AS new (sensor) ORDER BY 1 ON CONFLICT DO NOTHING"
)
# A debit that does not fit is left out, and the count shows it. The table would refuse it, too, but then the server
# would write the row to its log.
_DEBIT = """
UPDATE accounts SET spent = spent + debit.cost FROM unnest(%s::bigint[], %s::bigint[]) AS debit (id, cost)
    WHERE sensor = debit.id AND debit.cost <= %s - spent
"""
# One array for each column, so that one statement inserts the rows of all streams.
_INSERT = f"""
INSERT INTO releases ({COLUMNS}, commit_number) SELECT *, %s FROM unnest(
    %s::text[], %s::bigint[], %s::bytea[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[]
)
"""
# The session, the server's settings for durability, and the number of our streams that another program wrote to.
_ALONE = """
SELECT pg_backend_pid(), ARRAY[current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes')], (
    SELECT count(*) FROM unnest(%s::text[], %s::bigint[]) AS own (name, last)
    WHERE last <> coalesce((SELECT max(step) FROM releases WHERE stream = own.name), 0)
)
"""


class PostgresLedger(Ledger):
    """A `Ledger` that several centres share, on one host or many.

        with PostgresLedger.open("postgresql://ledger@db/road", design, streams=["north"]) as ledger:
            ledger.refresh(ids)                                        # locks the accounts of these sensors
            carry, charged = step.contribute(carry, ids, measurements)
            [row] = ledger.commit([Entry("north", 17, charged, ids)])  # unlocks them

    **Guarantees** of `Ledger`, and these:
        - There is one writer for each stream, and any number of centres. What all centres debit one sensor stays within
          its budget.
        - No other centre debits these accounts between `refresh` and `commit`, so no step is refused because of one.
        - Centres that need the same accounts wait for each other, and never in a circle. The server ends the session of
          a centre that hangs, and that centre loses its step.
        - A server that was rolled back, restored or replaced by a copy without the last commits is refused by every
          host whose head file names one of these commits.
        - If the connection is lost during a commit, the ledger closes itself. Opening it again waits for the lost
          session to end, and then reads what was committed.
    """

    def __init__(
        self,
        address: Address,
        head: HeadFile,
        connection: Connection[Any],
        found: LedgerCheck,
        streams: tuple[str, ...],
    ) -> None:
        """Use `create` or `open`."""
        found.streams = {name: found.streams[name] for name in streams}
        self._session = Session(connection)
        super().__init__(address, head, cast(Any, self._session), found)
        self._address = address
        self._backend = connection.info.backend_pid
        self._held: frozenset[int] = frozenset()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        design: Design,
        streams: Iterable[str] = ("main",),
        *,
        head: str | os.PathLike[str] | None = None,
    ) -> PostgresLedger:
        """A new ledger for that design and these streams, opened to write all of them.

        Args:
            path: its address, postgresql://USER@HOST/DATABASE, `?schema=NAME` for several in one database.
            head: where this host keeps its head file; None for `head_path`.
        """
        address = Address.parse(os.fspath(path))
        terms = Terms.of(design, streams, secrets.token_hex(16))
        with raising_ledger_refused(address), closing(connect(address, is_new=True)) as connection:
            check_durable(connection, address)
            if has_ledger(connection, address):
                raise LedgerRefused(f"{address} holds a ledger already; open it, or choose another schema")
            target = head_path(terms.ledger_id, head)
            write_new_head(target, Head(terms.ledger_id, 0, terms.first_tip))
            try:
                make_tables(connection, address, terms)
            except BaseException:  # nothing was released yet
                target.unlink()
                raise
        return cls.open(path, design, head=head)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        design: Design,
        streams: Iterable[str] | None = None,
        *,
        is_full_check: bool = True,
        head: str | os.PathLike[str] | None = None,
    ) -> PostgresLedger:
        """The ledger at that address, checked and opened to write some of its streams.

        Args:
            path: its address.
            streams: those that this centre writes; None for all.
            is_full_check: check every row. False checks the rows that were committed after the head file was written.
            head: where this host keeps its head file; None for `head_path`.
        """
        address = Address.parse(os.fspath(path))
        with raising_ledger_refused(address), ExitStack() as opened:
            connection = opened.enter_context(closing(connect(address)))
            check_durable(connection, address)
            check_private(connection, address)
            terms = read_terms(Session(connection), address)
            terms.check_design(design, address)
            own = terms.streams if streams is None else Terms.of(design, streams, terms.ledger_id).streams
            for name in own:
                _check.is_one_of("streams", name, terms.streams)
            target = head_path(terms.ledger_id, head)
            known = read_known_head(target, address)
            _claim(connection, address, terms, own)
            # No other centre can commit to these streams from here on, so the check finds their last rows.
            with snapshot_of(connection) as snapshot:
                found = check_rows(snapshot, address, terms, known, is_full=is_full_check, spent=spent_in(snapshot))
            file = opened.enter_context(closing(SharedHeadFile(target)))
            file.write(Head(terms.ledger_id, found.num_commits, found.tip), sync=True)
            ledger = cls(address, file, connection, found, own)
            opened.pop_all()  # from here on the ledger closes them
        return ledger

    @property
    def is_shared(self) -> bool:
        return not self.terms.is_total

    def refresh(self, ids: ArrayLike) -> None:
        """Lock the accounts of these sensors until the next commit, and bring `accounts` up to date.

        Other centres wait for these accounts meanwhile. A second call unlocks what the first one locked, and so does a
        commit that raises. Negative ids are left out.
        """
        self._check_open()
        if self.terms.is_total:
            return
        accounts = self.accounts(self.streams[0])
        assert isinstance(accounts, IndividualFilter)
        sensors = np.unique(as_ids(ids))
        with self._closing_on_error():
            accounts.update(self._lock(sensors[sensors >= 0].tolist()))

    def commit(self, entries: Sequence[Entry], noise: Noise | None = None) -> list[Row]:
        """As `Ledger.commit`; unlocks the accounts that `refresh` locked, also after an error."""
        try:
            return super().commit(entries, noise)
        finally:
            if self._is_open and os.getpid() == self._process:
                self._unlock()

    def checkpoint(self) -> None:
        """Nothing to do: the server checkpoints its log by itself."""

    def _disconnect(self) -> None:
        """Close the connection, which unlocks streams and accounts and undoes what was not committed."""
        with suppress(driver().Error):
            self._session.connection.close()

    def _spent(self) -> dict[int, int]:
        with self._closing_on_error():
            return dict(self._session.execute("SELECT sensor, spent FROM accounts WHERE spent > 0").fetchall())

    def _lock(self, sensors: list[int]) -> dict[int, int]:
        """What each of these accounts has spent, in a new transaction that holds locks on them."""
        self._unlock()
        spent = self._lock_those_there(sensors)
        if len(spent) < len(sensors):
            # New accounts are opened in a transaction of their own, while this centre holds no lock.
            self._unlock()
            self._session.execute(_OPEN, (_array(sensor for sensor in sensors if sensor not in spent),))
            spent = self._lock_those_there(sensors)
        self._held = frozenset(spent)
        return spent

    def _lock_those_there(self, sensors: list[int]) -> dict[int, int]:
        self._session.execute("BEGIN")
        return dict(self._session.execute(_LOCK, (_array(sensors),)).fetchall()) if sensors else {}

    def _unlock(self) -> None:
        self._held = frozenset()
        with self._closing_on_error():
            self._session.roll_back()

    def _record(
        self, entries: Sequence[Entry], left: dict[str, int | None], debits: Debits, noise: Noise | None
    ) -> list[Row]:
        """Debit, draw and record in one transaction, which is durable when this returns."""
        payers = debits.sensors.tolist()
        if not self._session.in_transaction or not self._held.issuperset(payers):
            self._lock(sorted(self._held.union(payers)))
        self._check_and_debit(debits, [entry.stream for entry in entries])
        rows = self._draw(entries, left, noise)
        number, tip = self._take_chain()
        number, tip = number + 1, next_tip(tip, number + 1, rows)
        self._session.commit_with(
            ("INSERT INTO commits VALUES (%s, %s, %s)", (number, tip, str(debits.total))),
            (_INSERT, (number, *map(list, zip(*rows, strict=True)))),
        )
        self._advance(number, tip, rows)
        return rows

    def _check_and_debit(self, debits: Debits, streams: list[str]) -> None:
        """Debit the accounts, after a check that server and streams are unchanged. No account exceeds the budget."""
        lasts = [self._progress.streams[stream].last_step for stream in streams]
        [(backend, settings, num_strange)] = self._session.execute(_ALONE, (streams, lasts)).fetchall()
        if settings != ["on"] * 3:
            raise LedgerRefused(f"{self._address} may forget what it has committed; {ALL_ON}")
        if backend != self._backend:
            raise LedgerRefused(f"{self._address} is behind a pool that moves sessions; connect to the server itself")
        if num_strange:
            raise LedgerRefused(f"{self._address} was written to by another program; find out which before you go on")
        payers, costs = (part.tolist() for part in debits)
        values = _array(payers), _array(costs), self._mechanism.budget
        if payers and self._session.execute(_DEBIT, values).rowcount != len(payers):
            raise LedgerRefused(
                f"{self._address}: a debit does not fit its account, so the step was charged to other accounts than "
                f"the ledger's; open the ledger again, `refresh` before a step and take `accounts` from it"
            )

    def _take_chain(self) -> tuple[int, bytes]:
        """Number and tip of the last commit of all centres. No other follows until this transaction ends."""
        self._session.execute("SELECT pg_advisory_xact_lock(?)", (_key(self.terms, "chain"),))
        # A separate statement sees what was committed while the lock was waited for.
        last = self._session.execute("SELECT number, tip FROM commits ORDER BY number DESC LIMIT 1")
        number, tip = last.fetchone() or (0, self.terms.first_tip)
        known = self._progress
        if number < known.num_commits or (number == known.num_commits and tip != known.tip):
            raise LedgerRefused(f"{self._address} lost a commit; find out why before you go on")
        return number, tip

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Closes the ledger on any error: what was committed is then known only after opening it again."""
        with raising_ledger_refused(self._address):
            try:
                yield
            except BaseException:
                self.close()
                raise


def _claim(connection: Connection[Any], address: Address, terms: Terms, streams: Collection[str]) -> None:
    """Become the one writer of these streams, for as long as the connection lives."""
    query = "SELECT key FROM unnest(%s::bigint[]) AS wanted (key) WHERE NOT pg_try_advisory_lock(key)"
    names = {_key(terms, "stream " + name): name for name in streams}
    missing, deadline = list(names), time.monotonic() + _WRITER_WAIT_S
    while missing := [key for (key,) in connection.execute(query, (missing,)).fetchall()]:
        # It takes a moment until the server notices that the process of the writer before has ended.
        if time.monotonic() > deadline:
            raise LedgerRefused(
                f"{address}: stream {names[missing[0]]!r} has a writer already, here or on another host; stop that one "
                f"first"
            )
        time.sleep(0.02)


def _array(integers: Iterable[int]) -> str:
    """The array as text for PostgreSQL; psycopg's own conversion takes several times as long."""
    return f"{{{','.join(map(str, integers))}}}"


def _key(terms: Terms, purpose: str) -> int:
    """The number of a lock in the database, different for each ledger and purpose."""
    digest = hashlib.sha256(f"dpfuse {terms.ledger_id} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
