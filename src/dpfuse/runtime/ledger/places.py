"""A ledger by where it is: the path of a file is one in SQLite, a postgresql:// address one in PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dpfuse.errors import LedgerRefused
from dpfuse.runtime.ledger.head import head_path
from dpfuse.runtime.ledger.writer import Ledger

if TYPE_CHECKING:
    from dpfuse.policy.design import Design


def open_ledger(
    where: str | os.PathLike[str], design: Design, streams: Iterable[str] | None = None, *, create: bool = False
) -> Ledger:
    """The ledger at that place, to write these streams of it.

    Args:
        where: a path.
        streams: None for all that the ledger has, and for the one stream "main" where it is created.
        create: make the ledger if there is none.
    """
    path = Path(where).resolve()
    if create and not path.exists() and not head_path(path).exists():
        return Ledger.create(path, design, ("main",) if streams is None else streams)
    ledger = Ledger.open(path, design)
    if streams is not None and set(streams) != set(ledger.streams):
        ledger.close()
        raise LedgerRefused(
            f"{path} has the streams {', '.join(ledger.streams)} for good, and one writer for all of them; name these, "
            f"or create another ledger"
        )
    return ledger
