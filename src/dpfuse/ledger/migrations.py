"""Bring a ledger of an earlier version to the version of this dpfuse."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import LedgerMismatch
from dpfuse.ledger.head import Head
from dpfuse.ledger.reader import check, head_of_copy
from dpfuse.ledger.store import (
    SCHEMA_VERSION,
    UPGRADED_VERSION,
    check_schema,
    connect,
    read_terms,
    schema_of,
    script,
    version_of,
)

if TYPE_CHECKING:
    from apsw import Connection

# Version 8 has one more column in `releases`, for public inputs.
_NEW_COLUMN = "    inputs BLOB,\n"
_COLUMNS = "stream, step, release, fusion_weight, cost, budget_left, design, period, hash, commit_number"


def bring_up_to_date(path: Path, head: Head | None) -> None:
    """Bring a ledger of version 7 to version 8 in one transaction; nothing happens to one of another version.

    The caller holds the lock of the ledger's one writer. A kill at any moment leaves version 7 or 8. Accounts, rows and
    both chains stay. Tables and triggers must be those of version 7 before, and the whole ledger is checked afterwards.

    Args:
        head: the last commit that the ledger must hold; None for a backup, which has no head file.

    Raises:
        LedgerRefused: the ledger is not in order; it stays as it was.
        LedgerMismatch: it has a bank, whose slices are sealed from version 8 on.
    """
    with closing(connect(path, version=None)) as connection:
        if version_of(connection) != UPGRADED_VERSION:
            return  # `connect` refuses what it cannot read
        connection.execute("BEGIN IMMEDIATE")
        try:
            _replace_tables(connection, path)
            check(connection, path, head or head_of_copy(connection, path))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk has ended it already
                connection.execute("ROLLBACK")
            raise


def _replace_tables(connection: Connection, path: Path) -> None:
    first = read_terms(connection, path, 0)
    if first.bank_id is not None:
        raise LedgerMismatch(
            f"{path} has ledger version {UPGRADED_VERSION} and a bank, whose slices that version does not seal; go on "
            f"with the dpfuse that wrote it: this one refuses its bank, too, and a new bank is for new sensors only"
        )
    current = script(first)
    check_schema(connection, path, current.replace(_NEW_COLUMN, ""))
    triggers: list[Any] = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    # The text of every table is compared with that of a new ledger, so the column cannot be added at the end.
    connection.execute("ALTER TABLE releases RENAME TO earlier_releases")
    made = {(kind, name): sql for kind, name, _, sql in schema_of(current)}
    connection.execute(made["table", "releases"])
    rows = f"SELECT {_COLUMNS} FROM earlier_releases ORDER BY step, stream"
    connection.execute(f"INSERT INTO releases ({_COLUMNS}) {rows}")
    connection.execute("DROP TABLE earlier_releases")
    for statement in (sql for (kind, _), sql in made.items() if kind == "trigger"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
