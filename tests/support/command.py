"""Commands, run in this process as the shell would run them."""

from __future__ import annotations

import sys
from typing import NamedTuple

from dpfuse import cli


class Result(NamedTuple):
    """What a command returned; runs of blanks and lines of a box are one blank in `error`."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def error(self) -> str:
        """stderr on one line, as errors are wrapped at a width that depends on the length of paths."""
        return " ".join(self.stderr.replace("│", " ").split())


def run_dpfuse(capsys, monkeypatch, *arguments) -> Result:
    """`dpfuse ARGUMENTS`: its exit code and output."""
    monkeypatch.setattr(sys, "argv", ["dpfuse", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "120")
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    return Result(code, *capsys.readouterr())
