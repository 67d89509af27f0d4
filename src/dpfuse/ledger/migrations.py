"""Bring a ledger of an earlier version to the version of this dpfuse."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import LedgerMismatch
from dpfuse.ledger.head import Head
from dpfuse.ledger.reader import check, check_pages, head_of_copy
from dpfuse.ledger.store import (
    APPEND_ONLY,
    SCHEMA_VERSION,
    SINCE_VERSION_9,
    UPGRADED_VERSIONS,
    check_schema,
    connect,
    read_terms,
    schema_of,
    script,
    version_of,
)

if TYPE_CHECKING:
    from apsw import Connection

# What versions 8 and 9 added to the statements of `script`, as it was before and as it is now.
_NEW_IN_8 = ("", "    inputs BLOB,\n")
_NEW_IN_9 = (
    (APPEND_ONLY.format(table="releases", action="DELETE"), SINCE_VERSION_9),
    *(("", APPEND_ONLY.format(table="segments", action=action)) for action in ("UPDATE", "DELETE")),
)
_COLUMNS_OF_7 = "stream, step, release, fusion_weight, cost, budget_left, design, period, hash, commit_number"


def bring_up_to_date(path: Path, head: Head | None) -> None:
    """Bring a ledger of version 7 or 8 to version 9 in one transaction; nothing happens to one of another version.

    The caller holds the lock of the ledger's one writer. A kill at any moment leaves the old version or the new one.
    Accounts, rows and both chains stay. Tables and triggers must be those of the old version before, and the whole
    ledger is checked afterwards.

    Args:
        head: the last commit that the ledger must hold; None for a backup, which has no head file.

    Raises:
        LedgerRefused: the ledger is not in order; it stays as it was.
        LedgerMismatch: it is of version 7 and has a bank, whose slices are sealed from version 8 on.
    """
    with closing(connect(path, version=None)) as connection:
        if (version := version_of(connection)) not in UPGRADED_VERSIONS:
            return  # `connect` refuses what it cannot read
        connection.execute("BEGIN IMMEDIATE")
        try:
            check_pages(connection, path)
            _replace_schema(connection, path, version)
            check(connection, path, head or head_of_copy(connection, path))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it already
                connection.execute("ROLLBACK")
            raise


def _replace_schema(connection: Connection, path: Path, version: int) -> None:
    first = read_terms(connection, path, 0)
    if version == 7 and first.bank_id is not None:
        raise LedgerMismatch(
            f"{path} has ledger version 7 and a bank, whose slices that version does not seal; go on with the dpfuse "
            f"that wrote it: this one refuses its bank, too, and a new bank is for new sensors only"
        )
    current = earlier = script(first)
    for before, now in (*_NEW_IN_9, *([_NEW_IN_8] if version == 7 else ())):
        earlier = earlier.replace(now, before)
    check_schema(connection, path, earlier)
    triggers: list[Any] = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    made = {(kind, name): sql for kind, name, _, sql in schema_of(current) if sql}
    if version == 7:
        _add_inputs(connection, made["table", "releases"])
    lacking = made.keys() - set(connection.execute("SELECT type, name FROM sqlite_schema"))
    for place in sorted(lacking, key=lambda place: ("table", "index", "trigger").index(place[0])):
        connection.execute(made[place])
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _add_inputs(connection: Connection, table: str) -> None:
    """Make the table of releases anew. Its text is compared with that of a new ledger, so no column is just added."""
    connection.execute("ALTER TABLE releases RENAME TO earlier_releases")
    connection.execute(table)
    rows = f"SELECT {_COLUMNS_OF_7} FROM earlier_releases ORDER BY step, stream"
    connection.execute(f"INSERT INTO releases ({_COLUMNS_OF_7}) {rows}")
    connection.execute("DROP TABLE earlier_releases")
