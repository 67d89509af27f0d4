"""The centre's own relay: a child process that serves readers, and is started again if it ends."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dpfuse.errors import DpfuseError

# SIGHUP would end it before it has a handler.
_CODE = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.nice(10)
from dpfuse.cli import main
main()
"""
# Of the environment. The rest may hold passwords, of a bank for example, which a process for strangers must not have.
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "LC_",
    "TZ",
    "TMPDIR",
    "PYTHON",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "SSL_CERT_",
    "JAX_",
)
_READY_WITHIN_S, _ENDS_WITHIN_S = 120.0, 8.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_log = logging.getLogger(__name__)


class RelayProcess:
    """`dpfuse relay` as a child process with a lower priority than the centre's.

    It gets the listening socket, which stays open while it restarts: readers then wait. The centre waits for it only
    when both start. It ends with the centre, also if the centre is killed, since its standard input is then closed.

    Args:
        feed: the path of the centre's socket for relays.
        listener: where readers connect.
        options: further options of `dpfuse relay`.
    """

    def __init__(self, feed: Path, listener: socket.socket, options: Sequence[str] = ()) -> None:
        number = listener.fileno()
        self._command = [sys.executable, "-c", _CODE, "relay", "--from", f"unix:{feed}", "--listener", str(number)]
        self._command += options
        self._number = number
        self._is_stopping, self._is_ready = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._child = self._start()
        self._thread = threading.Thread(target=self._watch, name="dpfuse-relay", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_until_ready(self) -> None:
        """Wait until readers are served; raises if the relay ends before."""
        if not self._is_ready.wait(_READY_WITHIN_S) or self._child.poll() is not None:
            raise DpfuseError("the relay for readers did not start; its message is above, and --no-relay does without")

    def hang_up(self) -> None:
        """Make it read its certificates again."""
        self._child.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """End it after it has handed out what was published."""
        with self._lock:
            self._is_stopping.set()
            child = self._child
        assert child.stdin is not None  # a pipe
        child.stdin.close()
        try:
            child.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._thread.join(_ENDS_WITHIN_S)

    def _start(self) -> subprocess.Popen[bytes]:
        # In its own session, so that Ctrl-C reaches the centre only, which then stops the relay in order.
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self._number],
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
        )

    def _watch(self) -> None:
        """Note when the relay is ready, and start it again whenever it ends."""
        pause_s = _FIRST_PAUSE_S
        while True:
            child = self._child
            assert child.stdout is not None  # a pipe
            if child.stdout.readline():
                self._is_ready.set()
                pause_s = _FIRST_PAUSE_S
            child.wait()
            child.stdout.close()
            was_ready = self._is_ready.is_set()
            self._is_ready.set()
            if not was_ready or self._is_stopping.is_set():
                return
            _log.warning("the relay for readers has ended (exit %s); starting it again", child.returncode)
            if self._is_stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            with self._lock:
                if self._is_stopping.is_set():
                    return
                assert child.stdin is not None  # a pipe
                child.stdin.close()
                self._child = self._start()
