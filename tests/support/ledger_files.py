"""Change the file of a ledger in SQLite by hand, and check that it is refused."""

from __future__ import annotations

import apsw
import pytest

from dpfuse import Ledger
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import verify


def head_of(path):
    return path.with_name(path.name + ".head")


def edit(path, *statements):
    """Change the file without its triggers, which are put back."""
    connection = apsw.Connection(str(path))
    triggers = list(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))
    removed, put_back = [f"DROP TRIGGER {name}" for name, _ in triggers], [sql for _, sql in triggers]
    for statement in [*removed, *statements, *put_back]:
        connection.execute(statement)
    connection.close()


def refused(path, design, message):
    """Neither `open` nor `verify` takes the ledger."""
    for attempt in (lambda: Ledger.open(path, design), lambda: verify(path)):
        with pytest.raises(LedgerRefused, match=message):
            attempt()
