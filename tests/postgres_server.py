"""A PostgreSQL server to throw away: a folder of its own, a socket in it, and nothing on the network."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psycopg

from parts import needs

# Rows that are written by tests are few: what a server for real work keeps in memory only slows the start.
_SETTINGS = {"listen_addresses": "", "shared_buffers": "16MB", "max_connections": "40", "logging_collector": "off"}


class Server:
    """Made by `initdb` and started; as root it runs as another user, since PostgreSQL refuses root."""

    def __init__(self, **settings: str) -> None:
        programs = Path(needs("initdb")).parent
        self.folder = Path(tempfile.mkdtemp(prefix="dpfuse-pg-"))
        self._user = None
        if os.getuid() == 0:
            self._user = next(name for name in ("postgres", "nobody") if _exists(name))
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        data = self.folder / "data"
        self._run = {"user": self._user, "cwd": self.folder, "stdout": subprocess.DEVNULL}
        initdb = [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        subprocess.run(initdb, check=True, stderr=subprocess.PIPE, **self._run)
        options = [f"--{name}={value}" for name, value in (_SETTINGS | settings).items()]
        self._command = [programs / "postgres", "-D", data, "-k", self.folder, *options]
        self.start()

    def start(self) -> None:
        """Start, or start again after a kill."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log, start_new_session=True, **self._run)
        deadline = time.monotonic() + 30
        while True:
            try:
                return psycopg.connect(self.url()).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None:
                    # What it left in shared memory is still in use by a child that is about to notice.
                    self._process = subprocess.Popen(self._command, start_new_session=True, **self._quiet())
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill -9 the server and all that it started, as a power cut would end them; the disk keeps its cache."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Stop, and leave what it wrote."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            self._process.wait(30)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, schema: str | None = None, role: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{role}@/{database}?host={self.folder}{f'&schema={schema}' if schema else ''}"

    def run(self, *statements: str, database: str = "postgres") -> None:
        """Statements by hand, as the server's owner."""
        with psycopg.connect(self.url(database=database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def _quiet(self) -> dict[str, object]:
        return self._run | {"stderr": subprocess.DEVNULL}


def _exists(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False
