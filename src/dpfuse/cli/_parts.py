"""Commands of ours in processes of their own, started and ended together."""

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

_CODE = "from dpfuse.cli import _parts, main; _parts.end_with_parent(); main()"
_STARTS_WITHIN_S, _ENDS_WITHIN_S = 120.0, 15.0


@dataclass
class Parts:
    """The processes that were started; what each prints goes to files of its name in the folder."""

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *arguments: str) -> None:
        """Start `dpfuse NAME ARGUMENTS`."""
        command = [sys.executable, "-c", _CODE, name, *arguments]
        with (self.folder / f"{name}.out").open("wb") as out, (self.folder / f"{name}.log").open("wb") as log:
            # Of a session of its own: Ctrl-C reaches us alone, and we end them in order.
            self.running[name] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=log, start_new_session=True
            )

    def first_line(self, name: str) -> str:
        """What it printed first; waits for it."""
        deadline = time.monotonic() + _STARTS_WITHIN_S
        while time.monotonic() < deadline:
            if "\n" in (printed := (self.folder / f"{name}.out").read_text()):
                return printed.partition("\n")[0]
            self.check()
            time.sleep(0.05)
        raise DpfuseError(f"`dpfuse {name}` did not come up within {_STARTS_WITHIN_S:g} s")

    def check(self) -> None:
        """Say so if one of them has ended by itself."""
        for name, process in self.running.items():
            if process.poll() is not None:
                said = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
                raise DpfuseError(f"`dpfuse {name}` ended: {said[-1] if said else f'exit {process.returncode}'}")

    def stop(self) -> None:
        """End them, the last that was started first, and wait for it."""
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
    """In a part: end as at Ctrl-C when whoever started it is gone, killed or not, and with it our standard input."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="dpfuse-parent", daemon=True).start()


@contextmanager
def stopped_at_the_end(parts: Parts) -> Iterator[Parts]:
    """Whatever happens, nobody is left behind; SIGTERM and Ctrl-C end us, also where a shell had the latter ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield parts
    finally:
        parts.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
