"""Signatures in a ledger: the centre's for the last row of each stream, written every few steps. All of it is public.

The hash of a row covers all rows of its stream before it, so one signature stands for all of them. Who may write the
file and lacks the signing key cannot make the signature of other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.events import TERMS
from dpfuse.ledger.stored_rows import find_last_row, find_row, row_pages
from dpfuse.ledger.terms import Terms
from dpfuse.public.rows import Row
from dpfuse.public.signatures import Signatory, Signer

if TYPE_CHECKING:
    from apsw import Connection

    from dpfuse.ledger.progress import LedgerCheck


class Signed(NamedTuple):
    """What a check found of the signatures of a ledger.

    Attributes:
        public_key: that all of them were made with, 64 hex digits; None if there is no signature.
        num_unsigned: how many rows came after the last signature of their stream.
    """

    public_key: str | None
    num_unsigned: int


def write_signatures(connection: Connection, signer: Signer, last_steps: Iterable[tuple[str, int]]) -> None:
    """Sign the last row of each of these streams up to these steps, in a transaction that the caller has begun."""
    rows = [row for stream, step in last_steps if (row := find_last_row(connection, stream, step))]
    key = signer.signatory.public_key
    values = [(row.stream, row.step, key, signer.sign(row)) for row in rows]
    connection.executemany("INSERT OR REPLACE INTO signatures VALUES (?, ?, ?, ?)", values)


def check_signatures(connection: Connection, path: Path, found: LedgerCheck, public_key: str | None = None) -> Signed:
    """Check the signature of each stream. The chain of hashes is checked elsewhere.

    Args:
        found: how far the ledger has come.
        public_key: of the centre, 64 hex digits; None for the one that the ledger names.

    Raises:
        LedgerRefused: a signature is not that of its row, or of another key, or with `public_key` a stream has rows and
            no signature.
    """
    stored: list[Any] = connection.execute("SELECT stream, step, public_key, signature FROM signatures").fetchall()
    keys = {key for _, _, key, _ in stored}
    expected = public_key.strip().lower() if public_key is not None else min(keys, default=None)
    if others := keys - {expected}:
        raise LedgerRefused(
            f"{path} is signed with the key {min(others)}, not with {expected}; is it the ledger of another centre?"
        )
    fingerprints = _fingerprints(connection)
    for stream, step, key, signature in stored:
        row = find_row(connection, stream, step)
        if row is None or not _has_signed(key, fingerprints, row, signature):
            raise LedgerRefused(
                f"{path}: step {step} of stream {stream!r} is not the one that the centre signed: the ledger was "
                f"rewritten; put the right one back"
            )
    unsigned = _count_unsigned(connection, found, {stream: step for stream, step, *_ in stored})
    if public_key is not None and (missing := unsigned.keys() - {stream for stream, *_ in stored}):
        raise LedgerRefused(
            f"{path}: no release of stream {min(missing)!r} is signed with the key {expected}; did a centre write it "
            f"(`dpfuse serve`), and is it the right key?"
        )
    return Signed(expected if keys else None, sum(unsigned.values()))


def _has_signed(key: str, fingerprints: Mapping[str, tuple[str, str]], row: Row, signature: bytes) -> bool:
    names = fingerprints.get(row.design)
    return names is not None and Signatory(key, *names).has_signed(row, signature.hex())


def _fingerprints(connection: Connection) -> dict[str, tuple[str, str]]:
    """The ledger's id and the fingerprint of each design that it had, by the id that names the design in rows."""
    contents: list[Any] = connection.execute("SELECT content FROM events WHERE kind = ?", (TERMS,)).fetchall()
    found = (Terms.from_json(text) for (text,) in contents)
    return {terms.design_id: (terms.ledger_id, terms.fingerprint) for terms in found}


def _count_unsigned(connection: Connection, found: LedgerCheck, signed: Mapping[str, int]) -> dict[str, int]:
    """How many rows of each stream came after its signature; all of them for a stream without one."""
    counts = {name: one.num_rows for name, one in found.streams.items() if one.num_rows and name not in signed}
    behind = {
        name: signed[name] for name, one in found.streams.items() if signed.get(name, one.last_step) < one.last_step
    }
    for page in row_pages(connection, min(behind.values()) + 1, found.num_commits) if behind else ():
        for row in page:
            if row.step > behind.get(row.stream, row.step):
                counts[row.stream] = counts.get(row.stream, 0) + 1
    return counts
