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
    """Change the file, after its triggers were removed."""
    connection = apsw.Connection(str(path))
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")]
    for statement in [*(f"DROP TRIGGER {name}" for name in names), *statements]:
        connection.execute(statement)
    connection.close()


def refused(path, design, message):
    """Neither `open` nor `verify` takes the ledger."""
    for attempt in (lambda: Ledger.open(path, design), lambda: verify(path)):
        with pytest.raises(LedgerRefused, match=message):
            attempt()
