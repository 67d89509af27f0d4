"""A PostgreSQL server for tests: files and socket in a temporary folder, and nothing on the network."""

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

from support.parts import needs

_SETTINGS = {"listen_addresses": "", "shared_buffers": "16MB", "max_connections": "40"}


class Server:
    """Created by `initdb` and started. For root it runs as another user, since PostgreSQL refuses root."""

    def __init__(self) -> None:
        programs = Path(needs("initdb")).parent
        self.folder = Path(tempfile.mkdtemp(prefix="dpfuse-pg-"))
        self.data = self.folder / "data"
        self.user = None
        if os.getuid() == 0:
            self.user = next(name for name in ("postgres", "nobody") if _exists(name))
            shutil.chown(self.folder, self.user)
        initdb = [programs / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale"]
        subprocess.run([*initdb, "-N"], check=True, user=self.user, cwd=self.folder, capture_output=True)
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        self._command = [programs / "postgres", "-D", self.data, "-k", self.folder, *options]
        self.start()

    def start(self) -> None:
        """Start, or start again after a kill; returns when it takes connections."""
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(self._command, user=self.user, cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while True:
            try:
                return psycopg.connect(self.url()).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-2000:]
                time.sleep(0.03)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def kill(self) -> None:
        """Kill the server and its children with signal 9. What the system has in its disk cache stays."""
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no new children
        for child in _children(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()

    def suspend(self) -> None:
        """Stop the server and its children with SIGSTOP: connections stay, and nothing answers."""
        for process in (self._process.pid, *_children(self._process.pid)):
            os.kill(process, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a suspended server go on."""
        for process in (self._process.pid, *_children(self._process.pid)):
            os.kill(process, signal.SIGCONT)

    def stop(self) -> None:
        """Stop the server regularly."""
        self._process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
        self._process.wait(120)

    def remove(self) -> None:
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder)

    def url(self, schema: str | None = None, *, role: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{role}@/{database}?host={self.folder}{f'&schema={schema}' if schema else ''}"

    def run(self, *statements: str, database: str = "postgres") -> list[tuple]:
        """Run statements as the server's owner, without triggers; returns what the last one finds."""
        with psycopg.connect(self.url(database=database), autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []


def _children(process: int) -> list[int]:
    children = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[1]) == process:
                children.append(int(file.parent.name))
    return children


def _exists(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False
