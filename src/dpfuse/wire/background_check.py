"""The check of a long ledger while its centre already runs, in a process of its own with low priority."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from dpfuse.errors import LedgerRefused

_log = logging.getLogger(__name__)
CHECKED_AT_START = 64 * 2**20
"""A ledger up to this size, in bytes, is checked in full before the first release."""
_CHECK = """
import os, sys
os.nice(19)
from dpfuse.errors import LedgerRefused
from dpfuse.ledger import verify
try:
    verify(sys.argv[1])
except LedgerRefused as error:
    sys.exit(f"{error}")
"""


def is_checked_at_start(path: Path) -> bool:
    """Whether a ledger is short enough to be checked in full when it is opened; so is one that is missing."""
    return not path.exists() or path.stat().st_size <= CHECKED_AT_START


class BackgroundCheck:
    """Checks every row of a ledger, and calls `on_error` if it is not in order.

    The rows after the last seal, the accounts and the head were checked when the ledger was opened; this is the rest.
    """

    def __init__(self, path: Path, on_error: Callable[[BaseException], object]) -> None:
        self._path, self._on_error = path, on_error
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHECK, str(path)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        self._is_stopping = False
        self._thread = threading.Thread(target=self._wait, name="dpfuse-check", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        begin_s = time.monotonic()
        _, found = self._process.communicate()
        if self._is_stopping:
            return
        if self._process.returncode == 0:
            _log.info("%s is in order: every row was checked in %.0f s", self._path, time.monotonic() - begin_s)
            return
        reason = (found.strip().splitlines() or ["the check ended by a signal"])[-1]
        self._on_error(LedgerRefused(f"the check of all rows failed: {reason}"))

    def stop(self) -> None:
        """End the check, whether or not it is done."""
        self._is_stopping = True
        self._process.kill()
        self._thread.join()
