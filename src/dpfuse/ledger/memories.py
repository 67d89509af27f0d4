"""What g and E remember, stored now and then so that a restart need not read all rows again. All of it is public.

A memory is a function of the public rows. Nothing relies on it: one that is missing, damaged, of another design,
of other streams or of other rows is left out, and the rows are read instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from apsw import Connection

_QUERY = """SELECT memories.*, commits.tip FROM memories JOIN commits ON commits.number = commit_number
    WHERE design = ? ORDER BY step DESC"""


class StoredMemory(NamedTuple):
    """What g and E remembered after a step."""

    step: int
    content: bytes


def write_memory(
    connection: Connection, number: int, tip: bytes, design: str, streams: Sequence[str], memory: StoredMemory
) -> None:
    """Store the memory in place of the older of two, in a transaction that the caller has begun.

    Args:
        number, tip: of the last commit.
        design: the id of the design.
        streams: in the order of the memory.
    """
    [(slot,)] = connection.execute("SELECT ifnull((SELECT slot FROM memories ORDER BY step LIMIT 1), 0)").fetchall()
    [(count,)] = connection.execute("SELECT count(*) FROM memories").fetchall()
    slot = count if isinstance(count, int) and count < 2 else slot
    values = slot, number, memory.step, design, memory.content, _digest(tip, design, streams, *memory)
    connection.execute("INSERT OR REPLACE INTO memories VALUES (?, ?, ?, ?, ?, ?)", values)


def read_memories(connection: Connection, design: str, streams: Sequence[str]) -> list[StoredMemory]:
    """The memories of this design and these streams that belong to the rows of the ledger, the newest first."""
    rows: list[Any] = connection.execute(_QUERY, (design,)).fetchall()
    return [
        StoredMemory(step, content)
        for _, _, step, design, content, digest, tip in rows
        if digest == _digest(tip, design, streams, step, content)
    ]


def _digest(tip: bytes, design: str, streams: Sequence[str], step: int, content: bytes) -> bytes:
    names = json.dumps([design, *streams]).encode()
    return hashlib.sha256(tip + step.to_bytes(8, "big") + hashlib.sha256(names).digest() + content).digest()
