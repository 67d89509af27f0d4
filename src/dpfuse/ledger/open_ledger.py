"""The open files of a ledger's one writer: when they may be used, and when they are closed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dpfuse.errors import LedgerRefused
from dpfuse.ledger.head import Head, HeadFile
from dpfuse.ledger.progress import LedgerCheck
from dpfuse.ledger.store import raising_ledger_refused, sqlite

if TYPE_CHECKING:
    from apsw import Connection


Place = tuple[tuple[int, int], ...]
"""Device and number of files, which tell whether a path still leads to the same ones."""


def look_at_files(path: Path, head: HeadFile) -> Place:
    """Where the database is now, and where the head file is that was opened: to be called before the database is."""
    return *_look_at(path), head.place


def _look_at(*paths: Path) -> Place:
    return tuple((found.st_dev, found.st_ino) for found in map(os.stat, paths))


class OpenLedger:
    """Database and head file of a ledger, which the process that opened them may write to until an error closes them.

    Attributes:
        path: of the database.
        terms: what the ledger was for when it was opened.
    """

    def __init__(self, path: Path, head: HeadFile, connection: Connection, place: Place, found: LedgerCheck) -> None:
        self.path, self.terms = path, found.terms
        self._head, self._connection = head, connection
        self._progress = found  # kept up to date with every commit
        self._process = os.getpid()
        self._is_open = True
        self._place = place
        self._log = path.with_name(path.name + "-wal")  # there from the first read until the connection is closed
        self._log_place: Place | None = None
        with suppress(OSError):
            self._log_place = _look_at(self._log)
        self._check_in_place()

    def _check_open(self) -> None:
        if os.getpid() != self._process:
            raise LedgerRefused(f"{self.path} was opened by another process; open it in the one that writes")
        if not self._is_open:
            raise LedgerRefused(f"{self.path} is closed; open it again, which reads back what was committed")

    def _check_in_place(self) -> None:
        """Refuse to write to files that were removed or replaced: they end with this process."""
        try:
            found = _look_at(self.path, self._head.path), _look_at(self._log)
        except OSError:
            found = None
        if found != (self._place, self._log_place):
            raise LedgerRefused(
                f"{self.path}, its log or its head file was removed or replaced while it was open, and what is written "
                f"to it is lost; find out what happened to the disk, then put the files back or restore a backup"
            )

    def _check_only_writer(self) -> None:
        self._check_in_place()
        [(last,)] = self._connection.execute("SELECT max(number) FROM commits").fetchall()
        if last != (self._progress.num_commits or None):
            raise LedgerRefused(f"{self.path} was written to by another program; find out which before you go on")

    def _write_head(self, *, sync: bool = False) -> None:
        progress = self._progress
        head = Head(self.terms.ledger_id, progress.num_commits, progress.tip, progress.private_tip)
        self._head.write(head, sync=sync)

    def _close_files(self) -> None:
        if self._is_open:
            self._is_open = False
            if os.getpid() == self._process:  # a forked child must not use its parent's connection
                with suppress(sqlite().Error):
                    self._connection.close()
            self._head.close()

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """Closes the ledger on any error: what was committed is then known only after opening it again."""
        with raising_ledger_refused(self.path):
            try:
                yield
            except sqlite().IOError:  # the system's error number names the cause, such as a full disk
                number = self._connection.system_errno
                self._close_files()
                raise OSError(number, "in SQLite") from None
            except BaseException:
                self._close_files()
                raise
