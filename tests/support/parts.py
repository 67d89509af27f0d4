"""Real parts that some tests need: a broker, a browser, a database server, a traffic simulator."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

INSTALL = {
    "mosquitto": "apt-get install mosquitto",
    "chromium": "apt-get install chromium",
    "initdb": "apt-get install postgresql",
    "openssl": "apt-get install openssl",
    "curl": "apt-get install curl",
    "promtool": "apt-get install prometheus",
    "systemd-analyze": "apt-get install systemd",
    "libsumo": "pip install 'dpfuse[sumo]'",
    "ray": "pip install 'dpfuse[fleet]'",
    "kubernetes_validate": "pip install kubernetes-validate",
}
# Debian keeps these out of the way of users.
_ELSEWHERE = ("/usr/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)))


def find(program: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *_ELSEWHERE])
    return shutil.which(program, path=path)


def needs(program: str) -> str:
    """The program's path; without the program the test is skipped, or fails if DPFUSE_ALL_PARTS is set."""
    found = find(program)
    if found is None:
        _skip(program)
    return found


def needs_package(name: str) -> None:
    """Without the package the test is skipped, or fails if DPFUSE_ALL_PARTS is set."""
    if find_spec(name) is None:
        _skip(name)


def _skip(part: str) -> NoReturn:
    reason = f"{part} is not here; to run this test: {INSTALL[part]}"
    if os.environ.get("DPFUSE_ALL_PARTS"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """The folder with a small file system of its own; skips the test if mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", folder]
    if os.getuid() or not shutil.which("mount") or subprocess.run(mount).returncode:
        pytest.skip("mounting a tmpfs is not allowed here; run the tests as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)
