"""Programs in processes that are forked from one which has imported everything, so that they are up sooner."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import IO

from support.wire import PATIENCE_S

MODULES = "dpfuse.cli.serve dpfuse.wire.serve dpfuse.centre.centre dpfuse.policy.exact dpfuse.ledger.bank.client"


class Forked:
    """A process that `Preloaded` started; used like a `subprocess.Popen`."""

    def __init__(self, door: Preloaded, pid: int, stdout: IO[str]) -> None:
        self._door, self.pid, self.stdout = door, pid, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._door.ask({"wait": self.pid})
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < end, "it did not end in time"
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """The process that is forked; it has imported what a centre needs, and runs nothing of it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "support.preloaded", str(other.fileno())]
        self._process = subprocess.Popen(
            command, env=environment, pass_fds=[other.fileno()], cwd=Path(__file__).parents[1]
        )
        other.close()

    def start(self, code: str, arguments: list[str], errors: IO[bytes]) -> Forked:
        """Run the code with these arguments in a new process."""
        reading, writing = os.pipe()
        request = {"code": code, "arguments": arguments}
        pid = self.ask(request, writing, errors.fileno())
        os.close(writing)
        return Forked(self, pid, os.fdopen(reading))

    def ask(self, request: dict, *files: int) -> int | None:
        socket.send_fds(self._own, [json.dumps(request).encode()], files)
        return json.loads(self._own.recv(100))

    def close(self) -> None:
        self._own.close()
        self._process.wait(PATIENCE_S)


def main(door: int) -> None:
    warnings.filterwarnings("ignore", "os.fork")  # JAX has started no thread yet
    for name in MODULES.split():
        import_module(name)
    own = socket.socket(fileno=door)
    while True:
        content, files, *_ = socket.recv_fds(own, 1 << 16, 2)
        if not content:
            return
        request = json.loads(content)
        if "wait" in request:
            pid, status = os.waitpid(request["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                own.close()
                _run(request["code"], request["arguments"], files)
            for file in files:
                os.close(file)
        own.send(json.dumps(answer).encode())


def _run(code: str, arguments: list[str], files: list[int]) -> None:
    status = 1
    try:
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
            os.close(file)
        sys.argv = ["dpfuse", *arguments]
        exec(code, {})
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
