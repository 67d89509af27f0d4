"""A process that was started by another one ends with it, also if it was born with blocked signals."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_CODE = """
import time
from dpfuse.cli import _processes
_processes.end_with_parent()
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("blocked", [set(), {signal.SIGINT}], ids=["as usual", "by a worker of Ray"])
def test_a_started_process_ends_when_its_parent_is_gone(blocked):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-3
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with child:
        assert child.stdout.readline() == b"up\n"
        child.stdin.close()  # as the end of the parent does
        try:
            assert child.wait(10) != 0
        finally:
            child.kill()
