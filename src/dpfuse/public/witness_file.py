"""The witness's file: every release message, synced before any reader has it.

It belongs on another machine's disk, such as a network file system. With it a ledger that is lost can be restored from
a backup (`dpfuse.ledger.restore`), since it holds every release that anybody has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dpfuse.errors import FileRefused, LedgerRefused, LedgerUnavailable
from dpfuse.public.rows import Message

_TAIL = 2**20


class WitnessFile:
    """Appends release messages to a file, one a line. All of it is public.

    A line that a crash left unfinished is removed when the file is opened.

    Attributes:
        last_step: the step of the last message, 0 for none.
        recent: the lines at the end of the file when it was opened, about a megabyte of them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab+")
        try:
            self.recent = self._cut_unfinished()
            self.last_step = self._step_of(self.recent[-1]) if self.recent else 0
        except BaseException:
            self.close()
            raise

    def _cut_unfinished(self) -> list[bytes]:
        """Remove an unfinished last line; returns the lines before it."""
        size = self._file.seek(0, os.SEEK_END)
        start = self._file.seek(max(0, size - _TAIL))
        tail = self._file.read()
        end = tail.rfind(b"\n") + 1
        if not end and size:
            raise FileRefused(f"{self.path} is not a file of release messages; name another one for the witness")
        lines = tail[:end].splitlines()
        if lines:
            self._step_of(lines[-1])  # before anything is removed: it may be another file
        self._size = self._file.truncate(start + end)
        return lines[1:] if start and len(lines) > 1 else lines  # the first one may be half a line

    def _step_of(self, line: bytes) -> int:
        try:
            return int(json.loads(line)["step"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise FileRefused(
                f"{self.path} is not a file of release messages; name another one for the witness"
            ) from None

    def append(self, messages: Iterable[Message]) -> None:
        """Write the messages and sync them.

        Raises:
            LedgerUnavailable: the disk is full or away; nobody may read the messages yet.
            LedgerRefused: the file was moved, replaced or cut; a new one would not know what the ledger has to hold.
        """
        try:
            if not self._is_in_place():
                raise LedgerRefused(
                    f"the witness's file {self.path} was moved, replaced or cut while it was open; put it back, or "
                    f"name a new file"
                )
            self._size += self._file.write(b"".join(message.content + b"\n" for message in messages))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise LedgerUnavailable(
                f"the witness's file {self.path} must hold every release before it is published, and cannot grow "
                f"({os.strerror(error.errno or 0)}); make room on its disk or mount it again, then start again: it "
                f"gets what it lacks"
            ) from None

    def _is_in_place(self) -> bool:
        """Whether the path still leads to this file, with what was written and nothing else."""
        own = os.fstat(self._file.fileno())
        try:
            return own.st_size == self._size and os.path.samestat(os.stat(self.path), own)
        except FileNotFoundError:
            return False

    def close(self) -> None:
        with suppress(OSError):  # of what `append` could not write; the rest is synced
            self._file.close()
