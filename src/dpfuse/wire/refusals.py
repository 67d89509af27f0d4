"""The operator's log of refused reports: how many, why, and which keys they claimed."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter

_EVERY_S = 60.0
_MAX_KEYS = 10
_KEY = re.compile(r"p?[0-9]{1,19}\.[0-9]{1,9}\.[0-9]{1,9}", re.ASCII)
_log = logging.getLogger(__name__)


class RefusalLog:
    """Logs at most one line a minute. Private: a line shows which sensors have a wrong or old key.

    It holds no measurement and nothing else that was sent, apart from key names of the right form. Reports that are
    taken leave no trace in it.
    """

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()
        self._keys: set[str] = set()
        self._next_s, self._lock, self._is_due = 0.0, threading.Lock(), False

    def note(self, reason: str, key: str) -> None:
        """Count a refused report. The first one is logged at once, later ones together after a minute."""
        with self._lock:
            self._reasons[reason] += 1
            if len(self._keys) < _MAX_KEYS and _KEY.fullmatch(key):
                self._keys.add(key)
            if self._is_due:
                return
            self._is_due = True
            wait_s = max(0.0, self._next_s - time.monotonic())
        if wait_s == 0.0:
            self.write()
            return
        later = threading.Timer(wait_s, self.write)
        later.daemon = True
        later.start()

    def write(self) -> None:
        """Write the line."""
        with self._lock:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in self._reasons.most_common())
            keys = f"; keys claimed: {', '.join(sorted(self._keys))}" if self._keys else ""
            self._reasons.clear()
            self._keys.clear()
            self._next_s, self._is_due = time.monotonic() + _EVERY_S, False
        _log.warning("reports refused: %s%s", reasons, keys)
