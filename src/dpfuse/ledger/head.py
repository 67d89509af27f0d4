"""The head file: how far a ledger has come, kept apart from it; and the lock of its one writer.

A database cannot tell that it was replaced by an older copy of itself. The head file can: it names the last commit that
its writer saw made durable, and a ledger without that commit is refused. It is one short line, written over in place
after every commit: so it is never ahead of a ledger that is in order, and behind it only by what a crash cut off. It is
not synced at every commit. The commit itself is durable, and after a power cut an older head asks for less than it
could, and for nothing wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from dpfuse.errors import LedgerRefused

_KIND = "dpfuse-ledger-head-1"

NEVER_REPLACED = (
    "no empty ledger takes the place of one that may be lost: put it back, or name the right one; a new one, for "
    "sensors that no other has charged, is made by `dpfuse ledger create` or `dpfuse serve --new`, in Python by "
    "create=True"
)
"""What follows from a ledger that is not where it should be."""


class Head(NamedTuple):
    """The last commit: its ledger, its number (0: none) and its tip."""

    ledger_id: str
    number: int
    tip: bytes

    def to_line(self) -> bytes:
        """One line, of the same length for every head of a ledger."""
        content = f"{_KIND} {self.ledger_id} {self.number:020d} {self.tip.hex()}"
        return f"{content} {_checksum(content)}\n".encode()


def head_path(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.head")


def read_head(path: Path) -> Head:
    """The head in the file, which its writer may be writing at this moment."""
    for _ in range(3):
        try:
            line = path.read_bytes()
        except FileNotFoundError:
            raise LedgerRefused(
                f"{path} is missing, so nothing shows that its ledger was not rolled back; put the file back, or start "
                f"a new ledger for new sensors"
            ) from None
        if head := _parse(line):
            return head
    raise LedgerRefused(f"{path} is damaged; put the right one back, or start a new ledger for new sensors")


class HeadFile:
    """The head file in the hands of the one writer; its lock lasts until `close`, or the end of the process."""

    _IS_ALONE = True

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            self._file = os.open(path, flags, 0o600)
        except FileNotFoundError:
            read_head(path)  # which says what is wrong
            raise
        if not self._IS_ALONE:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise LedgerRefused(
                f"{path.with_suffix('')} has a writer already, in this process or another; stop that one first"
            ) from None

    def write(self, head: Head, *, sync: bool = False) -> None:
        """Write the line over the one before, in one call."""
        os.pwrite(self._file, head.to_line(), 0)
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        """Let another writer in."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class SharedHeadFile(HeadFile):
    """The head file of a ledger that several processes of a host write to; it never goes back."""

    _IS_ALONE = False

    def write(self, head: Head, *, sync: bool = False) -> None:
        """Write the line over the one before, unless another process has come further."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            before = _parse(os.pread(self._file, 4096, 0))
            if before is None or before.number < head.number:
                super().write(head, sync=sync)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _parse(line: bytes) -> Head | None:
    try:
        content, _, checksum = line.decode().rstrip("\n").rpartition(" ")
        kind, ledger_id, number, tip = content.split(" ")
        if kind != _KIND or checksum != _checksum(content):
            return None
        return Head(ledger_id, int(number), bytes.fromhex(tip))
    except ValueError:  # which a wrong encoding is too
        return None


def _checksum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]
