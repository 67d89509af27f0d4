"""The private chain: what was debited and what the accounts hold, committed to by hashes that show neither.

Each commit n has one commitment of 32 bytes, also if nothing is debited:

    commitment_n = SHA-256(nonce_n | n | total_n | the debits of n),    nonce_n of 256 random bits, fresh and secret,

where total_n is the total of all accounts after n. When debits are added to the table of accounts, the table, the state
of the streams and the slices of a bank are sealed in the same way. Commitments and seals, in order, form a chain:

    private_tip = SHA-256(private_tip before | commitment).

Its tip is for the operator and a trusted witness. It depends on private debits, and is never published.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from dpfuse.ledger.debits import Debits

_NONCE_BYTES = 32


class Seal(NamedTuple):
    """The row of the table `seals`: accounts, streams and slices as they were after a commit."""

    commit_number: int
    nonce: bytes
    commitment: bytes
    private_tip: bytes


def make_nonce() -> bytes:
    return secrets.token_bytes(_NONCE_BYTES)


def commit_to_debits(number: int, debits: Debits, total: int, nonce: bytes) -> bytes:
    """The commitment of commit `number`; `total` is the accounts' total after it."""
    return _digest(nonce, number, total.to_bytes(32, "big"), *debits.to_bytes())


def commit_to_accounts(
    number: int, accounts: tuple[bytes, bytes], streams: str, nonce: bytes, slices: bytes = b"", segments: bytes = b""
) -> bytes:
    """The commitment of a seal after commit `number`: ids, amounts, the streams and, if any, slices and segments."""
    more = [*([slices] if slices else ()), *([b"segments" + segments] if segments else ())]
    return _digest(nonce, number, *accounts, streams.encode(), *more)


def next_private_tip(private_tip: bytes, commitment: bytes) -> bytes:
    return hashlib.sha256(private_tip + commitment).digest()


def _digest(nonce: bytes, number: int, *parts: bytes) -> bytes:
    """The hash of all parts, each with its length, so that no byte can move from one part to the next."""
    result = hashlib.sha256(nonce + number.to_bytes(8, "big"))
    for part in parts:
        result.update(len(part).to_bytes(8, "big"))
        result.update(part)
    return result.digest()
