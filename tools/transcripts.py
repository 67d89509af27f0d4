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


_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.S | re.M)
# Printed where the page shows output.
_HERE = "-- shown here --"


class Command(NamedTuple):
    """A command, as it is shown, and the lines of output below it; a last line of `...` stands for the rest."""

    line: str
    shown: list[str]


def commands_in(text: str) -> list[Command]:
    """The commands of all transcripts in the text."""
    commands: list[Command] = []
    for line in "".join(_CONSOLE.findall(text)).splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        elif commands[-1].line.endswith("\\"):
            commands[-1] = commands[-1]._replace(line=f"{commands[-1].line}\n{line}")
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
    program, *arguments = line.replace("\\\n", " ").split()
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
    # A design of one update hardly estimates better than the prior, and training says so.
    expected = ["-W", "ignore:the design with", "-W", "ignore:the floor with"] if is_brief else []
    command = [sys.executable, "-W", "error", *expected, *arguments]
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
    if not (program_in(text) and output_in(text)):
        return text
    printed = run_python("-c", _program_with_marks(text), folder=folder)
    outputs = iter("\n".join([*printed, ""]).split(f"{_HERE}\n"))
    return _OUTPUT.sub(lambda _: next(outputs), text)


def _program_with_marks(text: str) -> str:
    """The Python of the text, which prints a mark after each output that the text shows."""
    parts = [f"print({_HERE!r})\n" if kind == "text" else code for kind, code in _BLOCK.findall(text)]
    return "\n".join(part for part in parts if not is_quoted(part))


def main() -> None:
    """Renew every page; this takes some minutes, because designs are trained."""
    for page in PAGES:
        print(page.relative_to(ROOT), file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(renew(page.read_text(), Path(folder)))


if __name__ == "__main__":
    main()
