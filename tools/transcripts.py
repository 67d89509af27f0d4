"""Find the commands and Python examples of README and docs, run them, write what they print: `make transcripts`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from dpfuse.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = ROOT / "docs/examples/household_meters.py"

_CONSOLE = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.S | re.M)
_OUTPUT = re.compile(r"(?<=^```text\n)(.*?)(?=^```$)", re.S | re.M)
_PYTHON = re.compile(r"(?<=^```python\n)(.*?)(?=^```$)", re.S | re.M)


class Command(NamedTuple):
    """A command and the lines that the page shows below it; a last line of `...` stands for the rest."""

    line: str
    shown: list[str]


def commands_in(text: str) -> list[Command]:
    """The commands of all transcripts in the text."""
    commands: list[Command] = []
    for line in "".join(_CONSOLE.findall(text)).splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        else:
            commands[-1].shown.append(line)
    return commands


def program_in(text: str) -> str:
    """The Python of the text from top to bottom, without what is copied from the example file."""
    return "\n".join(code for code in _PYTHON.findall(text) if not is_quoted(code))


def is_quoted(code: str) -> bool:
    """Whether the code is a part of the example file."""
    source = EXAMPLE.read_text()
    return code in source or textwrap.indent(code, "    ") in source


def output_in(text: str) -> list[str]:
    """The output that the text shows for its Python."""
    return "".join(_OUTPUT.findall(text)).splitlines()


def run_command(line: str, folder: Path) -> list[str]:
    """The lines that the command prints, run in the folder."""
    program, *arguments = line.split()
    if program == "python":
        return run_python(str(ROOT / arguments[0]), *arguments[1:], folder=folder)
    environment = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    with contextlib.chdir(folder):
        result = CliRunner().invoke(app, arguments, env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [line.rstrip() for line in result.stdout.rstrip().splitlines()]


def run_python(*arguments: str, folder: Path, is_brief: bool = False) -> list[str]:
    """The lines that Python prints, in a process of its own; if `is_brief`, compiled without optimisation."""
    flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0"} if is_brief else {}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip().splitlines()


def renew(text: str, folder: Path) -> str:
    """The text with every shown output replaced by the current one; output that is cut short stays as long."""

    def renew_console(block: re.Match[str]) -> str:
        lines = []
        for command in commands_in(f"```console\n{block[0]}```"):
            lines.append(f"$ {command.line}")
            if command.shown:
                printed = run_command(command.line, folder)
                is_cut = command.shown[-1] == "..."
                lines += [*printed[: len(command.shown) - 1], "..."] if is_cut else printed
        return "\n".join(lines) + "\n"

    text = _CONSOLE.sub(renew_console, text)
    if not output_in(text):
        return text
    printed = "\n".join(run_python("-c", program_in(text), folder=folder)) + "\n"
    return _OUTPUT.sub(lambda _: printed, text)


def main() -> None:
    """Renew every page; this takes some minutes, because designs are trained."""
    for page in PAGES:
        print(page.relative_to(ROOT), file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(renew(page.read_text(), Path(folder)))


if __name__ == "__main__":
    main()
