"""The PostgreSQL server under a ledger: its address, how it is reached, and what its errors mean."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from dpfuse._extras import requires_extra
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.postgres_schema import check_version
from dpfuse.ledger.store import read_terms
from dpfuse.ledger.terms import Terms

if TYPE_CHECKING:
    from psycopg import Connection

ALL_ON = "set fsync, full_page_writes and synchronous_commit on"
_OLDEST_SERVER = 140000
_PREFIXES = ("postgresql://", "postgres://")
_LOCK_WAIT_MS = 15_000
_STALL_MS = 5_000
# How soon this process notices that the server's host is gone. In `_SESSION`: how soon the server notices the reverse.
_CLIENT = {"connect_timeout": 10, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
_SESSION = {
    "synchronous_commit": "on",  # a commit returns when it is on the disk
    "default_transaction_isolation": "read committed",  # each statement sees what others have committed by then
    "statement_timeout": 0,
    "lock_timeout": _LOCK_WAIT_MS,
    "idle_in_transaction_session_timeout": _STALL_MS,  # a centre that hangs loses its locks
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
}


def driver() -> Any:
    """The module psycopg."""
    with requires_extra("postgres", "a ledger in PostgreSQL"):
        import psycopg
    return psycopg


@dataclass(frozen=True)
class Address:
    """Where a ledger is: a database, and a schema in it. Its text shows neither user nor password.

    Attributes:
        url: for psycopg, with user and password.
        schema: of the tables; `?schema=NAME` in the address, else `dpfuse`.
        name: the address as it may be shown.
    """

    url: str = field(repr=False)
    schema: str
    name: str

    @classmethod
    def parse(cls, where: str) -> Address:
        parts = urlsplit(where)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        schema = options.pop("schema", "dpfuse")
        if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError(f"schema must be lower-case letters, digits and _, at most 63 of them, got {schema!r}")
        shown = {name: value for name, value in options.items() if name in ("host", "port", "dbname")}
        shown |= {"schema": schema} if schema != "dpfuse" else {}
        host = parts.netloc.rpartition("@")[2]
        query, shown_query = urlencode(options, quote_via=quote), urlencode(shown, safe="/")
        return cls(
            f"postgresql://{parts.netloc}{parts.path}?{query}",
            schema,
            f"postgresql://{host}{parts.path}{'?' if shown else ''}{shown_query}",
        )

    @property
    def quoted(self) -> str:
        """The schema as written in a statement, where `user` or `order` must be quoted."""
        return f'"{self.schema}"'

    def __str__(self) -> str:
        return self.name


def is_address(where: object) -> TypeGuard[str]:
    return isinstance(where, str) and where.startswith(_PREFIXES)


class Session:
    """One connection to a ledger's database; `?` stands for a value, as in SQLite."""

    def __init__(self, connection: Connection[Any]) -> None:
        self.connection = connection

    def execute(self, query: str, values: tuple[object, ...] = ()) -> Any:
        """Run one statement, and fetch what it finds."""
        return self.connection.execute(query.replace("?", "%s"), values)

    @property
    def in_transaction(self) -> bool:
        return bool(self.connection.info.transaction_status)  # 0 is idle

    def roll_back(self) -> None:
        """End the transaction, if there is one, and with it its locks."""
        if self.in_transaction:
            self.connection.execute("ROLLBACK")

    def commit_with(self, *statements: tuple[str, tuple[object, ...]]) -> None:
        """Run these statements and commit, in one round trip to the server."""
        # Only here: after a pipeline the server no longer ends a session that is idle in its transaction.
        with self.connection.pipeline():
            for query, values in statements:
                self.connection.execute(query, values)
            ended = self.connection.execute("COMMIT")
        if ended.statusmessage != "COMMIT":  # COMMIT rolls a failed transaction back, without an error
            raise driver().OperationalError("rolled back")


class Snapshot:
    """The database at one moment, read in pieces; several queries may be open at a time."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._cursors: list[Any] = []

    def execute(self, query: str, values: tuple[object, ...] = ()) -> Any:
        """Run one query; its rows are fetched as they are read."""
        cursor = self._connection.cursor(name=f"dpfuse_{len(self._cursors)}")
        cursor.itersize = 5000
        self._cursors.append(cursor)
        return cursor.execute(query.replace("?", "%s"), values)

    def close(self) -> None:
        for cursor in self._cursors:
            cursor.close()
        self._connection.execute("ROLLBACK")


@contextmanager
def snapshot_of(connection: Connection[Any]) -> Iterator[Snapshot]:
    """The ledger at this moment, without what other centres commit meanwhile."""
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    snapshot = Snapshot(connection)
    try:
        yield snapshot
    finally:
        snapshot.close()


def connect(address: Address, *, is_new: bool = False) -> Connection[Any]:
    """A connection to the database, which holds a ledger of this version unless `is_new`."""
    psycopg = driver()
    try:
        connection: Connection[Any] = psycopg.connect(
            address.url, autocommit=True, client_encoding="UTF8", application_name="dpfuse", **_CLIENT
        )
    except (psycopg.Error, ValueError):
        raise LedgerRefused(
            f"{address} cannot be reached, or does not let this user in; check that the server runs, and host, "
            f"database, user and password"
        ) from None
    try:
        version = connection.info.server_version
        if version < _OLDEST_SERVER:
            raise LedgerRefused(f"{address} is a PostgreSQL {version // 10000}; a ledger needs 14 or later")
        # Only this schema, and temporary tables after it.
        settings = _SESSION | {"search_path": f"{address.quoted}, pg_temp"}
        query = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)"
        connection.execute(query, (list(settings), [str(value) for value in settings.values()]))
        if not is_new:
            check_version(connection, address)
    except BaseException:
        connection.close()
        raise
    return connection


def check_durable(connection: Connection[Any], address: Address) -> None:
    """Refuse a server that could lose a commit, or takes none."""
    settings = "fsync", "full_page_writes", "synchronous_commit", "transaction_read_only", "server_encoding"
    query = f"SELECT {', '.join(f'current_setting({name!r})' for name in settings)}, pg_is_in_recovery()"
    [(fsync, full_pages, waits, read_only, encoding, is_standby)] = connection.execute(query).fetchall()
    if is_standby or read_only == "on":
        raise LedgerRefused(f"{address} takes no writes: a standby, or read-only; name the primary server")
    if (fsync, full_pages, waits) != ("on", "on", "on"):
        raise LedgerRefused(f"{address} may forget what it has committed; {ALL_ON}")
    if encoding != "UTF8":
        raise LedgerRefused(f"{address} is a database in {encoding}; create one in UTF8")


def check_private(connection: Connection[Any], address: Address) -> None:
    """Refuse a ledger that every role may read; rows are in it before they are published."""
    query = """SELECT bool_or(has_any_column_privilege('public', name, 'SELECT'))
        FROM unnest(ARRAY['accounts', 'commits', 'releases']) AS tables (name)"""
    if connection.execute(query).fetchall() != [(False,)]:
        raise LedgerRefused(
            f"{address} holds private accounts and everybody may read in it; REVOKE ALL ON ALL TABLES IN SCHEMA "
            f"{address.schema} FROM PUBLIC"
        )


@contextmanager
def reading(address: Address) -> Iterator[tuple[Snapshot, Terms]]:
    """A ledger at one moment, and its terms."""
    with raising_ledger_refused(address), closing(connect(address)) as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")  # a reader locks nothing, and may be slow
        with snapshot_of(connection) as snapshot:
            yield snapshot, read_terms(snapshot, address)


@contextmanager
def raising_ledger_refused(address: Address) -> Iterator[None]:
    """Turn errors of server and disk into `LedgerRefused` with a remedy; the server's own text is never shown."""
    psycopg = driver()
    try:
        yield
    except (psycopg.Error, OSError) as error:
        raise LedgerRefused(f"{address} {_meaning(error)}") from None


def _meaning(error: Exception) -> str:
    errors = driver().errors
    read_only = "may not be written to; name the primary server, and a role that may write"
    meanings = {
        errors.DiskFull: "cannot grow: the server's disk is full; make room, then open the ledger again",
        errors.OutOfMemory: "has no room for one lock a stream; raise max_locks_per_transaction",
        errors.ReadOnlySqlTransaction: read_only,
        errors.InsufficientPrivilege: "does not let this role do that; use the role that created the ledger",
        errors.LockNotAvailable: "is locked by another program; stop that program, then open the ledger again",
        errors.DeadlockDetected: "is locked by another program; stop that program, then open the ledger again",
        errors.UndefinedTable: "lacks a table of the ledger; it was changed by hand",
        errors.DuplicateSchema: "was made by another centre at this moment; open it",
        errors.DuplicateTable: "has tables of these names already; choose another schema",
        errors.IntegrityError: "refused a row that breaks its rules; nothing was recorded",
    }
    failed = f"failed ({type(error).__name__}); check server and network"
    other = f"{failed}, then open the ledger again: it reads back what is there"
    return next((meaning for kind, meaning in meanings.items() if isinstance(error, kind)), other)
