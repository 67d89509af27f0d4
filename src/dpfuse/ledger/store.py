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
from dpfuse.errors import LedgerMismatch, LedgerRefused, LedgerUnavailable
from dpfuse.ledger.head import MISSING_REMEDY, head_path
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.seals import write_seal
from dpfuse.ledger.terms import Terms

if TYPE_CHECKING:
    from apsw import Connection

SCHEMA_VERSION = 9
UPGRADED_VERSIONS = (7, 8)
"""What the writer brings to this version, see `dpfuse.ledger.migrations`."""
_APPLICATION_ID = 0x64706675  # "dpfu"
_WAIT_MS = 2000
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SETTINGS = (errno.ENOTDIR, errno.EISDIR, errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS)
_MOST_LOG_PAGES = 16_384  # 64 MB

# Rows are stored by step and then by stream, so that streams which step together write to the same few pages.
# {budget} is the budget at creation, at most 2^61 by the bounds of `Guarantee`: a sum of two accounts stays below 2^63.
_SCHEMA = """
CREATE TABLE events (commit_number INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL) STRICT;
CREATE TABLE commits (number INTEGER PRIMARY KEY, tip BLOB NOT NULL, commitment BLOB NOT NULL) STRICT;
CREATE TABLE releases (
    stream TEXT NOT NULL,
    step INTEGER NOT NULL CHECK (step >= 1),
    release BLOB NOT NULL,
    fusion_weight INTEGER NOT NULL CHECK (fusion_weight >= 0),
    cost INTEGER CHECK (cost >= 0),
    budget_left INTEGER CHECK (budget_left BETWEEN 0 AND {budget}),
    design TEXT NOT NULL,
    period INTEGER CHECK (period >= 0),
    inputs BLOB,
    hash BLOB NOT NULL,
    commit_number INTEGER NOT NULL,
    PRIMARY KEY (step, stream)
) STRICT, WITHOUT ROWID;
CREATE TABLE accounts (
    number INTEGER PRIMARY KEY,
    sensor INTEGER NOT NULL CHECK (sensor >= 0),
    spent INTEGER NOT NULL CHECK (spent BETWEEN 0 AND {budget})
) STRICT;
CREATE TABLE debits (
    commit_number INTEGER PRIMARY KEY,
    nonce BLOB NOT NULL,
    sensors BLOB NOT NULL,
    costs BLOB NOT NULL
) STRICT;
CREATE TABLE streams (
    name TEXT PRIMARY KEY,
    num_rows INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    budget_left INTEGER,
    last_hash BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE memories (
    slot INTEGER PRIMARY KEY CHECK (slot IN (0, 1)),
    commit_number INTEGER NOT NULL,
    step INTEGER NOT NULL,
    design TEXT NOT NULL,
    content BLOB NOT NULL,
    digest BLOB NOT NULL
) STRICT;
CREATE TABLE signatures (
    stream TEXT PRIMARY KEY,
    step INTEGER NOT NULL,
    public_key TEXT NOT NULL,
    signature BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE seals (
    commit_number INTEGER PRIMARY KEY,
    nonce BLOB NOT NULL,
    commitment BLOB NOT NULL,
    private_tip BLOB NOT NULL
) STRICT;
CREATE TRIGGER releases_only_follow BEFORE INSERT ON releases
    WHEN EXISTS (SELECT 1 FROM releases WHERE step > new.step AND stream = new.stream)
    BEGIN SELECT RAISE(ABORT, 'a step is behind the last one'); END;
CREATE TRIGGER accounts_only_grow BEFORE UPDATE ON accounts WHEN new.spent < old.spent OR new.sensor <> old.sensor
    BEGIN SELECT RAISE(ABORT, 'there are no refunds'); END;
CREATE TRIGGER debits_stay_as_they_are BEFORE UPDATE ON debits
    BEGIN SELECT RAISE(ABORT, 'debits are not changed'); END;
CREATE TRIGGER accounts_stay BEFORE DELETE ON accounts
    WHEN NOT EXISTS (SELECT 1 FROM events WHERE kind = 'period' AND commit_number = (SELECT max(number) FROM commits))
    BEGIN SELECT RAISE(ABORT, 'accounts are kept until their period ends'); END;
"""
# See `dpfuse.ledger.segments`. Rows are deleted once a segment has them.
SINCE_VERSION_9 = """
CREATE INDEX releases_by_commit ON releases (commit_number, stream);
CREATE TABLE segments (
    last_step INTEGER PRIMARY KEY,
    last_commit INTEGER NOT NULL UNIQUE,
    content BLOB NOT NULL,
    digest BLOB NOT NULL
) STRICT;
CREATE TRIGGER releases_follow_segments BEFORE INSERT ON releases WHEN new.step <= (SELECT max(last_step) FROM segments)
    BEGIN SELECT RAISE(ABORT, 'a step is packed already'); END;
CREATE TRIGGER segments_only_follow BEFORE INSERT ON segments
    WHEN new.last_step <= (SELECT max(last_step) FROM segments)
    BEGIN SELECT RAISE(ABORT, 'a segment is behind the last one'); END;
CREATE TRIGGER releases_DELETE BEFORE DELETE ON releases
    WHEN old.step > ifnull((SELECT max(last_step) FROM segments), 0)
    BEGIN SELECT RAISE(ABORT, 'releases are append-only'); END;
"""
# In a ledger with a bank. `balances` are those at the opening; NULL before that. `spent` is NULL before the closing.
# `last_answer` has at most one row.
_SLICES = """
CREATE TABLE slices (
    epoch INTEGER PRIMARY KEY,
    generation INTEGER NOT NULL,
    sensors BLOB NOT NULL,
    amounts BLOB NOT NULL,
    balances BLOB,
    spent BLOB
) STRICT;
CREATE TABLE last_answer (generation INTEGER PRIMARY KEY, boundary INTEGER NOT NULL, mark TEXT NOT NULL) STRICT;
"""
APPEND_ONLY = """
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
        with closing(connect(path, version=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(script(terms))
            connection.execute("INSERT INTO events VALUES (0, 'terms', ?)", (terms.to_json(),))
            write_seal(connection, LedgerCheck.at_start(terms), (b"", b""))
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("COMMIT")
        sync_folder(path.parent)
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
        raise


def script(terms: Terms) -> str:
    """The statements that make the tables and triggers of a ledger that is created with these terms."""
    tables, actions = ("events", "commits", "seals", "segments"), ("UPDATE", "DELETE")
    places = [(table, action) for table in tables for action in actions] + [("releases", "UPDATE")]
    append_only = (APPEND_ONLY.format(table=table, action=action) for table, action in places)
    slices = "" if terms.bank_id is None else _SLICES
    return _SCHEMA.format(budget=terms.mechanism.budget) + SINCE_VERSION_9 + slices + "".join(append_only)


def check_schema(connection: Connection, path: Path, statements: str) -> None:
    """Refuse a ledger whose tables, constraints or triggers are not those that these statements of `script` make."""
    if _schema(connection) != schema_of(statements):
        raise LedgerRefused(
            f"{path}: its tables or triggers were changed by hand, so its rows may have been, too; put the right "
            f"file back, never an old copy"
        )


def schema_of(statements: str) -> set[Any]:
    """Kind, name, table and text of everything that the statements make."""
    with closing(sqlite().Connection(":memory:")) as fresh:
        fresh.execute(statements)
        return _schema(fresh)


def _schema(connection: Connection) -> set[Any]:
    return set(connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema"))


def version_of(connection: Connection) -> int | None:
    """The version of a ledger; None for another file."""
    is_ledger = connection.pragma("application_id") == _APPLICATION_ID
    return int(connection.pragma("user_version")) if is_ledger else None


def connect(path: Path, *, read_only: bool = False, version: int | None = SCHEMA_VERSION) -> Connection:
    """A connection to a ledger of this version, None for a new file. A commit on it is on the disk when it returns."""
    apsw = sqlite()
    check_exists(path)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise LedgerMismatch(f"{path} holds private accounts and others may read it; chmod 600 it")
    access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection: Connection = apsw.Connection(str(path), flags=access)
    try:
        connection.set_busy_timeout(_WAIT_MS)
        if version is not None:
            _check_version(connection, path, version)
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
    raise LedgerMismatch(f"{path} is missing; {MISSING_REMEDY}")


def _check_version(connection: Connection, path: Path, expected: int) -> None:
    if (version := version_of(connection)) is None:
        raise LedgerRefused(f"{path} is not a dpfuse ledger, or was cut short; put the right file back")
    if version != expected:
        remedy = "use the dpfuse that wrote it"
        if version in UPGRADED_VERSIONS:
            remedy = f"start its centre once with this dpfuse, which brings it to {expected}"
        raise LedgerMismatch(f"{path} has ledger version {version}, this dpfuse reads {expected}; {remedy}")


def _make_durable(connection: Connection, path: Path) -> None:
    # SQLite opens a file that it may not write to for reading, without an error.
    if connection.readonly("main"):
        raise LedgerMismatch(f"{path} may not be written to; make file and folder writable for this user")
    mode = connection.pragma("journal_mode", "wal")
    # 2 is FULL: each commit is synced before it returns. fullfsync does the same on macOS.
    connection.execute("PRAGMA synchronous = FULL; PRAGMA fullfsync = ON; PRAGMA trusted_schema = OFF")
    # `Ledger.checkpoint` copies the log to the file between steps. SQLite does it by itself only for a very long log.
    connection.execute(f"PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = {_MOST_LOG_PAGES}")
    if mode != "wal" or connection.pragma("synchronous") != 2:
        raise LedgerMismatch(f"{path} is on a file system without write-ahead logs; move it to a local disk")


def read_terms(connection: Connection, path: Path, last_commit: int | None = None) -> Terms:
    """The terms that hold after that commit; after the last one if None."""
    query = """SELECT content FROM events WHERE kind = 'terms' AND commit_number <= ifnull(?, commit_number)
        ORDER BY commit_number DESC LIMIT 1"""
    try:
        ((content,),) = connection.execute(query, (last_commit,)).fetchall()
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
        raise _kind(error)(f"{path} {_meaning(error)}") from None


def _kind(error: Exception) -> type[LedgerRefused]:
    apsw, number = sqlite(), getattr(error, "errno", None)
    if isinstance(error, apsw.FullError | apsw.BusyError | apsw.LockedError) or number in _PASSING:
        return LedgerUnavailable
    is_setting = isinstance(error, apsw.ReadOnlyError | apsw.CantOpenError) or number in _SETTINGS
    return LedgerMismatch if is_setting else LedgerRefused


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
    by_number = dict.fromkeys(_PASSING, full)
    by_number |= dict.fromkeys((errno.EROFS, errno.EACCES), read_only)
    other = f"failed ({type(error).__name__}); check the disk, then open the ledger again: it reads back what is there"
    if isinstance(error, OSError):
        return by_number.get(error.errno or 0, other)
    return next((meaning for kind, meaning in meanings.items() if isinstance(error, kind)), other)
