"""Several dpfuse commands, each in its own process, started and stopped together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dpfuse.errors import DpfuseError

_CODE = "from dpfuse.cli import _processes, main; _processes.end_with_parent(); main()"
_STARTS_WITHIN_S, _ENDS_WITHIN_S = 120.0, 15.0


@dataclass
class Processes:
    """The commands that are running. The output of `dpfuse NAME` is in NAME.out and NAME.log in the folder."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        """Start `dpfuse NAME ARGUMENTS`."""
        command = [sys.executable, "-c", _CODE, name, *arguments]
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.log").open("wb") as log:
            # In its own session, so that Ctrl-C reaches this process only, which then stops the others in order.
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=log, start_new_session=True
            )

    def first_lines(self, name: str, count: int) -> list[str]:
        """The first lines that the command prints; waits for them."""
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < deadline:
            *lines, _ = (self.folder / f"{name}.out").read_text().split("\n")
            if len(lines) >= count:
                return lines[:count]
            self.check()
            time.sleep(0.05)
        raise DpfuseError(f"`dpfuse {name}` was not ready within {_STARTS_WITHIN_S:g} s")

    def check(self) -> None:
        """Raise if a command has ended by itself."""
        for name, process in self.running.items():
            if process.poll() is not None:
                lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
                raise DpfuseError(f"`dpfuse {name}` ended: {lines[-1] if lines else f'exit {process.returncode}'}")

    def stop(self) -> None:
        """Stop all commands, the last one first, and wait for each."""
        for name, process in reversed(list(self.running.items())):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            try:
                process.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdin is not None  # a pipe
            process.stdin.close()
            del self.running[name]


def end_with_parent() -> None:
    """In a started process: end, as at Ctrl-C, when the parent ends or is killed, which closes standard input."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    # Blocked signals are inherited, and a worker of Ray blocks SIGINT: the process would stay, with its ledger.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    threading.Thread(target=wait, name="dpfuse-parent", daemon=True).start()


@contextmanager
def stopped_at_exit(processes: Processes) -> Iterator[Processes]:
    """Stop the processes at the end, also after SIGTERM and Ctrl-C, and where the shell ignores SIGINT."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield processes
    finally:
        processes.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
