"""The SQLite file of a ledger: its tables, how it is opened, and what its errors mean."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse._extras import requires_extra
from dpfuse.errors import LedgerRefused
from dpfuse.ledger.head import MISSING_REMEDY, head_path
from dpfuse.ledger.terms import Terms

if TYPE_CHECKING:
    from apsw import Connection

SCHEMA_VERSION = 3
_APPLICATION_ID = 0x64706675  # "dpfu"
_WAIT_MS = 2000
_MOST_LOG_PAGES = 16_384  # 64 MB

# Rows are stored by step and then by stream, so that streams which step together write to the same few pages.
# {budget} is the whole budget, at most 2^61 by the bounds of `Guarantee`: a sum of two accounts stays below 2^63.
_SCHEMA = """
CREATE TABLE terms (content TEXT NOT NULL) STRICT;
CREATE TABLE commits (number INTEGER PRIMARY KEY, tip BLOB NOT NULL, debited TEXT NOT NULL) STRICT;
CREATE TABLE releases (
    stream TEXT NOT NULL,
    step INTEGER NOT NULL CHECK (step >= 1),
    release BLOB NOT NULL,
    fusion_weight INTEGER NOT NULL CHECK (fusion_weight >= 0),
    cost INTEGER CHECK (cost >= 0),
    budget_left INTEGER CHECK (budget_left BETWEEN 0 AND {budget}),
    hash BLOB NOT NULL,
    commit_number INTEGER NOT NULL,
    PRIMARY KEY (step, stream)
) STRICT, WITHOUT ROWID;
CREATE TABLE accounts (
    number INTEGER PRIMARY KEY,
    sensor INTEGER NOT NULL CHECK (sensor >= 0),
    spent INTEGER NOT NULL CHECK (spent BETWEEN 0 AND {budget})
) STRICT;
CREATE TABLE debits (commit_number INTEGER PRIMARY KEY, sensors BLOB NOT NULL, costs BLOB NOT NULL) STRICT;
CREATE TRIGGER releases_only_follow BEFORE INSERT ON releases
    WHEN EXISTS (SELECT 1 FROM releases WHERE step > new.step AND stream = new.stream)
    BEGIN SELECT RAISE(ABORT, 'a step is behind the last one'); END;
CREATE TRIGGER accounts_only_grow BEFORE UPDATE ON accounts WHEN new.spent < old.spent OR new.sensor <> old.sensor
    BEGIN SELECT RAISE(ABORT, 'there are no refunds'); END;
CREATE TRIGGER debits_stay_as_they_are BEFORE UPDATE ON debits
    BEGIN SELECT RAISE(ABORT, 'debits are not changed'); END;
CREATE TRIGGER accounts_stay BEFORE DELETE ON accounts BEGIN SELECT RAISE(ABORT, 'accounts are kept'); END;
"""
_APPEND_ONLY = """
CREATE TRIGGER {table}_{action} BEFORE {action} ON {table} BEGIN SELECT RAISE(ABORT, '{table} are append-only'); END;
"""


def sqlite() -> Any:
    """The module apsw, which contains its own SQLite."""
    with requires_extra("live", "a ledger"):
        import apsw
    return apsw


def make_tables(path: Path, terms: Terms) -> None:
    """Write an empty ledger to a new file that only its owner may read. If that fails, no file stays."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    try:
        with closing(connect(path, is_new=True)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_script(terms))
            connection.execute("INSERT INTO terms VALUES (?)", (terms.to_json(),))
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        sync_folder(path.parent)
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
        raise


def _script(terms: Terms) -> str:
    tables, actions = ("terms", "commits", "releases"), ("UPDATE", "DELETE")
    append_only = (_APPEND_ONLY.format(table=table, action=action) for table in tables for action in actions)
    return _SCHEMA.format(budget=terms.mechanism.budget) + "".join(append_only)


def connect(path: Path, *, read_only: bool = False, is_new: bool = False) -> Connection:
    """A connection to a ledger of this version. A commit on it is on the disk when it returns."""
    apsw = sqlite()
    check_exists(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise LedgerRefused(f"{path} holds private accounts and others may read it; chmod 600 it")
    access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection: Connection = apsw.Connection(str(path), flags=access)
    try:
        connection.set_busy_timeout(_WAIT_MS)
        if not is_new:
            _check_version(connection, path)
        if not read_only:
            _make_durable(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def check_exists(path: Path) -> None:
    """Refuse a ledger that is missing. If its head file is there, the ledger was lost."""
    if path.exists():
        return
    if head_path(path).exists():
        raise LedgerRefused(
            f"{path} is missing and its head file is there: what was spent is not known; put the ledger back, or, if "
            f"nothing was ever released from it, remove {head_path(path)}"
        )
    raise LedgerRefused(f"{path} is missing; {MISSING_REMEDY}")


def _check_version(connection: Connection, path: Path) -> None:
    if connection.pragma("application_id") != _APPLICATION_ID:
        raise LedgerRefused(f"{path} is not a dpfuse ledger, or was cut short; put the right file back")
    version = connection.pragma("user_version")
    if version != SCHEMA_VERSION:
        raise LedgerRefused(
            f"{path} has ledger version {version}, this dpfuse reads {SCHEMA_VERSION}; use the dpfuse that wrote it"
        )


def _make_durable(connection: Connection, path: Path) -> None:
    # SQLite opens a file that it may not write to for reading, without an error.
    if connection.readonly("main"):
        raise LedgerRefused(f"{path} may not be written to; make file and folder writable for this user")
    mode = connection.pragma("journal_mode", "wal")
    # 2 is FULL: each commit is synced before it returns. fullfsync does the same on macOS.
    connection.execute("PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA trusted_schema = OFF")
    # `Ledger.checkpoint` copies the log to the file between steps. SQLite does it by itself only for a very long log.
    connection.execute(f"PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = {_MOST_LOG_PAGES}")
    if mode != "wal" or connection.pragma("synchronous") != 2:
        raise LedgerRefused(f"{path} is on a file system without write-ahead logs; move it to a local disk")


def read_terms(connection: Any, path: object) -> Terms:
    """The terms of a ledger in any database."""
    try:
        ((content,),) = connection.execute("SELECT content FROM terms").fetchall()
        return Terms.from_json(str(content))
    except (KeyError, TypeError, ValueError):
        raise LedgerRefused(f"{path} has terms that cannot be read; it was changed by hand") from None


def sync_folder(folder: Path) -> None:
    """Make the names of new files in the folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def raising_ledger_refused(path: object) -> Iterator[None]:
    """Turn errors of SQLite and of the disk into `LedgerRefused` with a remedy; SQLite's own text is never shown."""
    apsw = sqlite()
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise LedgerRefused(f"{path} {_meaning(error)}") from None


def _meaning(error: Exception) -> str:
    apsw = sqlite()
    full = "cannot grow: the disk is full; make room, then open the ledger again"
    read_only = "may not be written to; make file and folder writable for this user"
    locked = "is locked by another program; stop that program, then open the ledger again"
    meanings = {
        apsw.FullError: full,
        apsw.ReadOnlyError: read_only,
        apsw.BusyError: locked,
        apsw.LockedError: locked,
        apsw.CorruptError: "is damaged; put the right file back, never an old copy, or start a new one for new sensors",
        apsw.NotADBError: "is not a database, or damaged; put the right file back, never an old copy",
        apsw.CantOpenError: "cannot be opened; check that file and folder may be read and written by this user",
        apsw.ConstraintError: "refused a row that breaks its rules; nothing was recorded",
    }
    by_number = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), full)
    by_number |= dict.fromkeys((errno.EROFS, errno.EACCES), read_only)
    other = f"failed ({type(error).__name__}); check the disk, then open the ledger again: it reads back what is there"
    if isinstance(error, OSError):
        return by_number.get(error.errno or 0, other)
    return next((meaning for kind, meaning in meanings.items() if isinstance(error, kind)), other)
