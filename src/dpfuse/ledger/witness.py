"""Rows that a witness kept: release messages in a file, checked against a ledger that was restored from a backup."""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dpfuse.errors import LedgerRefused, ReleaseRefused
from dpfuse.ledger.events import PERIOD
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.reader import public_rows
from dpfuse.public.rows import Row, read_row
from dpfuse.public.signatures import Signatory

# Messages that are compared at once.
_PART = 10_000


def read_witness(
    path: Path, found: LedgerCheck, stored_hash: Callable[[str, int], bytes], public_key: str
) -> list[list[Row]]:
    """The rows that the ledger lacks, by step. Each is signed by the centre and follows from the one before it.

    Args:
        path: of the witness's file: release messages, or the answers of `GET /v1/streams/STREAM/releases`, one JSON
            object a line, in any order and as often as they come.
        found: the ledger as it was at the backup.
        stored_hash: the hash of a stream's row of a step that is in the ledger, empty if there is none.
        public_key: of the centre, 64 hex digits.

    Raises:
        LedgerRefused: a row is malformed, not signed, of another design or stream, or contradicts the ledger, or one is
            missing between two others.
    """
    signatory = Signatory(public_key, found.terms.ledger_id, found.terms.fingerprint)
    rows: dict[tuple[int, str], Row] = {}
    for number, message in _messages(path):
        where = f"{path}, line {number}"
        stream, step = _place(message, where)
        if stream in found.streams and step <= found.streams[stream].last_step:
            if stored_hash(stream, step).hex() != message.get("hash"):
                raise LedgerRefused(f"{where}: step {step} of stream {stream!r} is not the ledger's: another backup?")
            continue
        row = _read(message, found, where)
        if not signatory.has_signed(row, message.get("signature")):
            raise LedgerRefused(f"{where}: step {step} of stream {stream!r} is not signed by the centre's key")
        if rows.setdefault((step, stream), row) != row:
            raise LedgerRefused(f"{where}: step {step} of stream {stream!r} is there twice, with different contents")
    follow = copy.deepcopy(found)
    by_step = [rows[place] for place in sorted(rows)]
    for row in by_step:
        if row.period is not None and row.period != follow.period:
            follow.adopt(PERIOD, str(row.period))
        follow.follow(row, path)
    return [list(together) for _, together in itertools.groupby(by_step, key=lambda row: row.step)]


def compare_with_witness(ledger: str | os.PathLike[str], witness: Path) -> int:
    """Check that a ledger holds every row of a witness's file, unchanged; returns how many there are.

    Args:
        ledger: of which a centre may be writing.
        witness: release messages, or rows as `dpfuse ledger show --rows` prints them, in any order, and any part of
            them: one row stands for all rows of its stream before it.

    Raises:
        LedgerRefused: a row is missing in the ledger or differs from the witness's, or the file holds something else.
    """
    count, messages = 0, _messages(witness)
    while part := list(itertools.islice(messages, _PART)):
        compare_rows(ledger, ((f"{witness}, line {number}", message) for number, message in part))
        count += len(part)
    return count


def compare_rows(ledger: str | os.PathLike[str], messages: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Check that a ledger holds the rows of these messages; each comes with the place where it was found."""
    wanted: dict[tuple[int, str], tuple[str, Any]] = {}
    for where, message in messages:
        stream, step = _place(message, where)
        wanted[step, stream] = where, message.get("hash")
    if not wanted:
        return
    last = max(step for step, _ in wanted)
    for row in public_rows(ledger, start=min(step for step, _ in wanted)):
        if row.step > last:
            break
        where, digest = wanted.pop((row.step, row.stream), ("", None))
        if where and digest != row.hash.hex():
            raise LedgerRefused(
                f"{ledger} has another past than its witness: step {row.step} of stream {row.stream!r} is not that of "
                f"{where}; it was rewritten, or is another ledger"
            )
    if wanted:
        step, stream = min(wanted)
        raise LedgerRefused(
            f"{ledger} lacks step {step} of stream {stream!r}, which is in {wanted[step, stream][0]}: it was rolled "
            f"back, or is another ledger"
        )


def _read(message: Mapping[str, Any], found: LedgerCheck, where: str) -> Row:
    terms = found.terms
    if message.get("design") != terms.design_id or message.get("stream") not in terms.streams:
        raise LedgerRefused(
            f"{where}: the row is of a design or stream that the ledger had only after the backup; restore a backup "
            f"that was made after the upgrade, or restore without a witness"
        )
    try:
        return read_row(message, terms.dimension, terms.horizon, terms.num_public)
    except ReleaseRefused as error:
        raise LedgerRefused(f"{where}: {error}") from None


def _messages(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each release message in the file, with the number of its line."""
    with path.open("rb") as lines:
        yield from parse_lines(path, lines)


def parse_lines(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Each release message in these lines of a file, with the number of its line among them."""
    for number, line in enumerate(lines, 1):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            raise LedgerRefused(f"{path}, line {number}: this is not JSON; was the file cut short?") from None
        page = content.get("releases", [content]) if isinstance(content, dict) else None
        if not isinstance(page, list) or not all(isinstance(one, dict) for one in page):
            raise LedgerRefused(f"{path}, line {number}: this is not a release message")
        yield from ((number, one) for one in page)


def _place(message: Mapping[str, Any], where: str) -> tuple[str, int]:
    stream, step = message.get("stream"), message.get("step")
    if not isinstance(stream, str) or type(step) is not int:
        raise LedgerRefused(f"{where}: this is not a release message")
    return stream, step
