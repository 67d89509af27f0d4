"""Seals: accounts, streams, slices and segments as they are in their tables, bound to the private chain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.commitments import Seal, commit_to_accounts, make_nonce, next_private_tip
from dpfuse.ledger.progress import REMEDY, LedgerCheck, StreamCheck
from dpfuse.ledger.segments import last_digest
from dpfuse.ledger.slices import slices_digest

if TYPE_CHECKING:
    from apsw import Connection

    from dpfuse.ledger.head import Head

_UPSERT = "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?, ?)"
_SEALS = "SELECT * FROM seals WHERE commit_number"
# A page at a time: see `dpfuse.ledger.stored_rows`.
_COMMITMENTS = "SELECT number, commitment FROM commits WHERE number > ? AND number <= ? ORDER BY number LIMIT 1000"
NOT_COMMITTED = "the accounts do not add up to what was debited; put the right file back, never an old copy"
"""Accounts, debits, slices or their commitments were changed."""


def write_seal(connection: Connection, progress: LedgerCheck, accounts: tuple[bytes, bytes]) -> Seal:
    """Store the state of the streams, and seal it with accounts and slices, in the transaction that was begun."""
    states = ((one.num_rows, one.last_step, one.budget_left, one.last_hash) for one in progress.streams.values())
    connection.executemany(_UPSERT, [(name, *state) for name, state in zip(progress.streams, states, strict=True)])
    number, nonce = progress.num_commits, make_nonce()
    state = _as_text(progress.streams, progress.charged_to_all)
    others = slices_digest(connection), last_digest(connection)
    commitment = commit_to_accounts(number, accounts, state, nonce, *others)
    seal = Seal(number, nonce, commitment, next_private_tip(progress.private_tip, commitment))
    connection.execute("INSERT INTO seals VALUES (?, ?, ?, ?)", seal)
    return seal


def read_streams(connection: Connection) -> dict[str, StreamCheck]:
    """The state of each stream at the last seal."""
    return {row[0]: StreamCheck(*row[1:]) for row in _all(connection, "SELECT * FROM streams")}


def last_seal(connection: Connection, path: Path) -> Seal:
    for row in _all(connection, "SELECT * FROM seals ORDER BY commit_number DESC LIMIT 1"):
        return Seal._make(row)
    raise LedgerRefused(f"{path}: {NOT_COMMITTED}")


def check_seal(
    connection: Connection,
    seal: Seal,
    accounts: tuple[bytes, bytes],
    streams: Mapping[str, StreamCheck],
    charged_to_all: int,
    path: Path,
) -> None:
    """Refuse accounts, streams, charges of restores, slices and segments that are not those of the seal."""
    state, others = _as_text(streams, charged_to_all), (slices_digest(connection), last_digest(connection))
    if commit_to_accounts(seal.commit_number, accounts, state, seal.nonce, *others) != seal.commitment:
        raise LedgerRefused(f"{path}: {NOT_COMMITTED}")


def follow_private_chain(
    connection: Connection, path: Path, head: Head, first_tip: bytes, upto: tuple[int, int], *, is_full: bool
) -> bytes:
    """The private tip after the last commit; refused if the chain does not hold the one that the head names.

    Args:
        first_tip: the private tip of a ledger without a commit.
        upto: the last seal and the last commit to follow, by the numbers of their commits.
        is_full: follow the chain from its first seal, else from the last seal before the head.
    """
    last_seal, last_commit = upto
    near = "SELECT max(commit_number) FROM seals WHERE commit_number < ?"
    first = "(SELECT min(commit_number) FROM seals)"
    from_start = first if is_full else f"ifnull(({near}), {first})"
    found = _all(connection, f"{_SEALS} = {from_start}", *(() if is_full else (head.number,)))
    if not found:
        raise LedgerRefused(f"{path}: {NOT_COMMITTED}")
    start = Seal._make(found[0])
    if start.commit_number == 0 and start.private_tip != next_private_tip(first_tip, start.commitment):
        raise LedgerRefused(f"{path}: {NOT_COMMITTED}")
    after, tip = start.commit_number, start.private_tip
    at_head = {tip, first_tip} if head.number <= after else set()
    while page := _all(connection, _COMMITMENTS, after, last_commit):
        between = after, min(page[-1][0], last_seal)
        seals = [Seal._make(row) for row in _all(connection, f"{_SEALS} > ? AND commit_number <= ?", *between)]
        by_number = {seal.commit_number: seal for seal in seals}
        for number, commitment in page:
            tips = [next_private_tip(tip, commitment)]
            if seal := by_number.get(number):
                tips.append(next_private_tip(tips[0], seal.commitment))
                if seal.private_tip != tips[1]:
                    raise LedgerRefused(f"{path}: {NOT_COMMITTED}")
            tip = tips[-1]
            at_head |= set(tips) if number == head.number else set()
        after = page[-1][0]
    if head.private_tip not in at_head:
        raise LedgerRefused(f"{path}: what was debited is not what its head file names; {REMEDY}")
    return tip


def _as_text(streams: Mapping[str, StreamCheck], charged_to_all: int) -> str:
    states: list[object] = [
        [name, one.num_rows, one.last_step, one.budget_left, one.last_hash.hex()]
        for name, one in sorted(streams.items())
    ]
    return json.dumps([*states, charged_to_all] if charged_to_all else states, separators=(",", ":"))


def _all(connection: Connection, query: str, *values: int) -> list[Any]:
    return connection.execute(query, values).fetchall()
