"""requirements.lock: every package that constraints.txt names for developers, in the same version, with hashes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of the extra `sumo`, which `dev` leaves out.
NOT_FOR_DEVELOPERS = {"libsumo", "sumo-data", "sumolib", "traci"}
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def name_of(text):
    return re.sub(r"[-_.]+", "-", text).lower()


def pinned(text):
    return {name_of(name): version for name, version in _PINNED.findall(text)}


def test_the_lock_has_the_versions_of_the_constraints():
    """`make hashes` writes it again."""
    locked = pinned((ROOT / "requirements.lock").read_text())
    wanted = pinned((ROOT / "constraints.txt").read_text())
    wanted = {name: version for name, version in wanted.items() if name not in NOT_FOR_DEVELOPERS}
    assert {name: locked.get(name) for name in wanted} == wanted


def test_every_locked_package_has_hashes():
    blocks = re.split(r"^(?=[A-Za-z0-9])", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) > 100
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)


def test_an_environment_is_made_from_the_hashes():
    makefile = (ROOT / "Makefile").read_text()
    assert "--require-hashes -r requirements.lock" in makefile


@pytest.mark.parametrize(
    ("said", "code", "is_missing"),
    [
        ("ERROR: jax: Dependency not found on PyPI and could not be audited: jax (0.9)", 1, True),
        ("Found 1 known vulnerability in 1 package", 1, False),
        ("No known vulnerabilities found", 0, False),
    ],
)
def test_a_package_that_the_index_lacks_is_told_apart_from_a_vulnerability(tmp_path, said, code, is_missing):
    """With a program in pip-audit's place: the real one asks the network."""
    (tools := tmp_path / "tools" / "bin").mkdir(parents=True)
    (tools.parent / ".ready").touch()
    (tools / "pip-audit").write_text(f'#!/bin/sh\necho "{said}" >&2\nexit {code}\n')
    (tools / "pip-audit").chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "vulnerabilities", "RELEASE=tools"]
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert bool(done.returncode) == bool(code) and said in done.stderr
    assert ("This is no vulnerability" in done.stderr) == is_missing
