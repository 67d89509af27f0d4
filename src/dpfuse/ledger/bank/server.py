"""The PostgreSQL server under a bank: its address, how it is reached, and what its errors mean."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import numpy as np

from dpfuse._arrays import Integers
from dpfuse._extras import requires_extra
from dpfuse.errors import LedgerMismatch, LedgerRefused, LedgerUnavailable

if TYPE_CHECKING:
    from psycopg import Connection

_OLDEST_SERVER = 140000
_CLIENT = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
_SESSION = {
    "synchronous_commit": "on",  # a call returns when it is on the disk
    "default_transaction_isolation": "read committed",
    "statement_timeout": 60_000,
    "lock_timeout": 5_000,
    "idle_in_transaction_session_timeout": 5_000,
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "jit": "off",  # to compile a query takes longer than the query
    "work_mem": "64MB",
}
# PostgreSQL's binary form of bigint[]: a header, then for each entry its length and its bytes. Every entry is as wide
# as any other, so the size of a message depends on its capacity alone.
_INT8, _INT8_ARRAY, _HEADER, _ENTRY = 20, 1016, ">iiIii", np.dtype([("width", ">i4"), ("value", ">i8")])


def driver() -> Any:
    """The module psycopg."""
    with requires_extra("postgres", "a bank"):
        import psycopg
    return psycopg


@dataclass(frozen=True)
class BankAddress:
    """Where a bank is: a database, and a schema in it. Its text does not show the user.

    The password comes from PGPASSWORD, PGPASSFILE or ~/.pgpass, never from the address.

    Attributes:
        url: for psycopg.
        schema: of the tables; `?schema=NAME` in the address, else `dpfuse_bank`.
        name: the address as it may be shown.
    """

    url: str
    schema: str
    name: str

    @classmethod
    def parse(cls, where: str) -> BankAddress:
        if not where.startswith(("postgresql://", "postgres://")):
            raise ValueError("bank must be postgresql://USER@HOST/DATABASE")
        parts = urlsplit(where)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if ":" in parts.netloc.rpartition("@")[0] or any("password" in name for name in options):
            raise ValueError(
                "bank must be an address without a password, since others can read command lines; put the password "
                "into PGPASSWORD, the file of PGPASSFILE, or ~/.pgpass"
            )
        schema = options.pop("schema", "dpfuse_bank")
        if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", schema):
            raise ValueError(f"schema must be lower-case letters, digits and _, at most 63 of them, got {schema!r}")
        shown = {name: value for name, value in options.items() if name in ("host", "port", "dbname")}
        shown |= {"schema": schema} if schema != "dpfuse_bank" else {}
        host = parts.netloc.rpartition("@")[2]
        query, shown_query = urlencode(options, quote_via=quote), urlencode(shown, safe="/")
        return cls(
            f"postgresql://{parts.netloc}{parts.path}?{query}",
            schema,
            f"postgresql://{host}{parts.path}{'?' if shown else ''}{shown_query}",
        )

    def __repr__(self) -> str:
        return f"BankAddress({self.name!r})"

    def __str__(self) -> str:
        return self.name


def connect(address: BankAddress) -> Connection[Any]:
    """A connection that commits every call by itself, to a server that forgets nothing."""
    psycopg = driver()
    try:
        connection: Connection[Any] = psycopg.connect(
            address.url, autocommit=True, client_encoding="UTF8", application_name="dpfuse", **_CLIENT
        )
    except (psycopg.Error, ValueError):
        raise LedgerUnavailable(
            f"{address} cannot be reached, or does not let this user in; check that the server runs, and host, "
            f"database, user and password"
        ) from None
    try:
        settings = _SESSION | {"search_path": f'"{address.schema}", pg_temp'}
        query = "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS wanted (name, value)"
        connection.execute(query, (list(settings), [str(value) for value in settings.values()]))
        _check_server(connection, address)
        _use_arrays(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_server(connection: Connection[Any], address: BankAddress) -> None:
    if connection.info.server_version < _OLDEST_SERVER:
        raise LedgerMismatch(f"{address} is a PostgreSQL older than 14; a bank needs 14 or later")
    settings = "fsync", "full_page_writes", "transaction_read_only", "server_encoding"
    query = f"SELECT {', '.join(f'current_setting({name!r})' for name in settings)}, pg_is_in_recovery()"
    [(fsync, full_pages, read_only, encoding, is_standby)] = connection.execute(query).fetchall()
    if is_standby or read_only == "on":
        raise LedgerMismatch(f"{address} takes no writes: a standby, or read-only; name the primary server")
    if (fsync, full_pages) != ("on", "on"):
        raise LedgerMismatch(f"{address} may forget what it has committed; set fsync and full_page_writes on")
    if encoding != "UTF8":
        raise LedgerMismatch(f"{address} is a database in {encoding}; create one in UTF8")


def _use_arrays(connection: Connection[Any]) -> None:
    """Let numpy arrays of int64 be sent and read as bigint[], in binary."""
    psycopg = driver()

    class ArrayDumper(psycopg.adapt.Dumper):  # type: ignore[misc, name-defined]  # psycopg is an extra
        format = psycopg.pq.Format.BINARY
        oid = _INT8_ARRAY

        def dump(self, values: Integers) -> bytes:
            return array_to_bytes(values)

    class ArrayLoader(psycopg.adapt.Loader):  # type: ignore[misc, name-defined]  # psycopg is an extra
        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> Integers:
            return array_from_bytes(bytes(data))

    connection.adapters.register_dumper(np.ndarray, ArrayDumper)
    connection.adapters.register_loader(_INT8_ARRAY, ArrayLoader)


def array_to_bytes(values: Integers) -> bytes:
    """The binary form of a bigint[]."""
    if not len(values):
        return struct.pack(">iiI", 0, 0, _INT8)
    entries = np.empty(len(values), _ENTRY)
    entries["width"], entries["value"] = 8, values
    return struct.pack(_HEADER, 1, 0, _INT8, len(values), 1) + entries.tobytes()


def array_from_bytes(data: bytes) -> Integers:
    """The numbers of a bigint[] in binary form."""
    if len(data) < struct.calcsize(_HEADER):
        return np.zeros(0, np.int64)
    return np.frombuffer(data, _ENTRY, offset=struct.calcsize(_HEADER))["value"].astype(np.int64)


@contextmanager
def raising_bank_refused(address: BankAddress) -> Iterator[None]:
    """Turn errors of the server into `LedgerRefused` with a remedy; the server's own text is never shown."""
    psycopg = driver()
    try:
        yield
    except (psycopg.Error, OSError) as error:
        # An operational error is one of server, network or disk, not of what the caller asks for.
        passes = isinstance(error, psycopg.OperationalError | OSError)
        raise (LedgerUnavailable if passes else LedgerRefused)(f"{address} {_meaning(error)}") from None


def _meaning(error: Exception) -> str:
    errors = driver().errors
    meanings = {
        errors.DiskFull: "cannot grow: the server's disk is full; make room",
        errors.ReadOnlySqlTransaction: "may not be written to; name the primary server, and a role that may write",
        errors.InsufficientPrivilege: "does not let this role do that; use the role that created the bank",
        errors.InvalidSchemaName: "has no schema of this name, and this role may not create one",
        errors.UndefinedTable: "lacks a table of the bank; it was changed by hand",
        errors.UndefinedFunction: "lacks a function of the bank; it was changed by hand",
        errors.DuplicateTable: "has tables of these names already; choose another schema",
        errors.UniqueViolation: "has lent a stream of that name to another ledger; choose another name for the stream",
        errors.IntegrityError: "refused a row that breaks its rules; nothing was recorded",
    }
    other = f"failed ({type(error).__name__}); check server and network"
    return next((meaning for kind, meaning in meanings.items() if isinstance(error, kind)), other)
