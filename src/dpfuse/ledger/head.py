"""The head file: one line that names the last commit of a ledger. It is also the lock of the ledger's one writer.

A database cannot tell that it was replaced by an older copy of itself. The head file can: a ledger without the commit
that its head file names is refused. The writer overwrites the line after every commit, so the head file is never ahead
of its ledger, and behind it only after a crash. The line is not synced at every commit, since the commit itself is
durable. After a power cut the head file may name an earlier commit. Then a roll-back to that commit or a later one is
not detected; a ledger that is in order is still accepted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from dpfuse.errors import LedgerRefused, LedgerUnavailable
from dpfuse.ledger.folder import check_private_folder, make_private_folder

_KIND = "dpfuse-ledger-head-2"

MISSING_REMEDY = (
    "put the ledger back, or give the path of the right one; a new ledger is only for sensors that no other ledger has "
    "charged: make it with `dpfuse ledger create`, `dpfuse serve --new` or, in Python, create=True"
)
"""The remedy for a ledger that is not found."""


class Head(NamedTuple):
    """The last commit: its ledger, its number (0 before the first), its tip and the private tip."""

    ledger_id: str
    number: int
    tip: bytes
    private_tip: bytes

    def to_line(self) -> bytes:
        """One line, of the same length for every commit of a ledger."""
        content = f"{_KIND} {self.ledger_id} {self.number:020d} {self.tip.hex()} {self.private_tip.hex()}"
        return f"{content} {_checksum(content)}\n".encode()


def head_path(ledger: Path) -> Path:
    return ledger.with_name(f"{ledger.name}.head")


def read_head(path: Path) -> Head:
    """The head in the file. It is read up to three times, since the writer may be writing it."""
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
    """The head file, opened by the one writer and locked until `close` or the end of the process."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        if create:
            make_private_folder(path.parent)
        check_private_folder(path.with_suffix(""))
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            self._file = os.open(path, flags, 0o600)
        except FileNotFoundError:
            read_head(path)  # raises the error with the remedy
            raise
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise LedgerUnavailable(
                f"{path.with_suffix('')} has a writer already, in this process or another; stop that one first"
            ) from None

    @property
    def place(self) -> tuple[int, int]:
        """Device and number of the file that was opened, whatever is at its path now."""
        found = os.fstat(self._file)
        return found.st_dev, found.st_ino

    def write(self, head: Head, *, sync: bool = False) -> None:
        """Overwrite the line, in one call."""
        os.pwrite(self._file, head.to_line(), 0)
        if sync:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file, which ends the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _parse(line: bytes) -> Head | None:
    try:
        content, _, checksum = line.decode().rstrip("\n").rpartition(" ")
        kind, ledger_id, number, *tips = content.split(" ")
        if kind != _KIND or checksum != _checksum(content):
            return None
        tip, private_tip = map(bytes.fromhex, tips)
        return Head(ledger_id, int(number), tip, private_tip)
    except ValueError:  # UnicodeDecodeError is one, too
        return None


def _checksum(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]
