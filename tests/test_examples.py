"""README and docs are true: their Python runs, their transcripts are what the commands print, and their names exist."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
import textwrap
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from dpfuse.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
METERS = ROOT / "docs/examples/household_meters.py"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


class Command(NamedTuple):
    """A command of a transcript and the lines shown below it; a line of `...` stands for any that follow."""

    line: str
    shown: list[str]


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.S | re.M)]


def commands_of(page: Path) -> list[Command]:
    commands: list[Command] = []
    for block in blocks_of(page):
        if block.language == "console":
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    commands.append(Command(line[2:], []))
                else:
                    commands[-1].shown.append(line)
    return commands


def agree(shown: list[str], printed: str, tolerance: float | None) -> bool:
    """Whether words are equal, and numbers up to a relative tolerance (None: whatever they are)."""
    lines = [line.rstrip() for line in printed.splitlines()]
    wanted = list(takewhile(lambda line: line != "...", shown))
    lines = lines[: len(wanted)] if len(wanted) < len(shown) else lines
    one, other = "\n".join(wanted).strip(), "\n".join(lines).strip()
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(map(float, NUMBER.findall(one)), map(float, NUMBER.findall(other)), strict=True)
    return tolerance is None or all(abs(a - b) <= tolerance * max(abs(a), abs(b)) for a, b in pairs)


def program_of(page: Path) -> str:
    """The page's Python from top to bottom, without what is quoted from the example."""
    return "\n".join(block.text for block in blocks_of(page) if block.language == "python" and not is_excerpt(block))


def output_of(page: Path) -> list[str]:
    """What the page says that its Python prints."""
    return [line for block in blocks_of(page) if block.language == "text" for line in block.text.splitlines()]


def is_excerpt(block: Block) -> bool:
    source = METERS.read_text()
    return block.text in source or textwrap.indent(block.text, "    ") in source


def run_python(*arguments: str, folder: Path, is_brief: bool) -> str:
    """What Python prints in a process of its own; a brief one is compiled in less time and runs in more."""
    flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0"} if is_brief else {}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, env=os.environ | flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_command(line: str, folder: Path) -> str:
    environment = {"COLUMNS": "80", "TERMINAL_WIDTH": "80", "NO_COLOR": "1"}
    with contextlib.chdir(folder):
        result = CliRunner().invoke(app, line.split()[1:], env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def meters_shown() -> list[str]:
    (command,) = commands_of(ROOT / "docs/own-system.md")
    assert command.line == "python docs/examples/household_meters.py"
    return command.shown


@pages
def test_python_runs_and_prints_what_is_shown_but_for_the_numbers(page, tmp_path):
    if program := re.sub(r"num_updates=\d+", "num_updates=1", program_of(page)):
        printed = run_python("-c", program, folder=tmp_path, is_brief=True)
        assert agree(output_of(page), printed, tolerance=None)


@pages
def test_account_prints_what_is_shown(page, tmp_path):
    for command in commands_of(page):
        if command.line.startswith("dpfuse account"):
            assert agree(command.shown, run_command(command.line, tmp_path), tolerance=0.0)


def test_the_household_meters_run(tmp_path):
    printed = run_python(str(METERS), "--updates", "1", "--evenings", "20", folder=tmp_path, is_brief=True)
    assert agree(meters_shown(), printed, tolerance=None)
    assert "The first minute: load " in printed


@pytest.mark.slow
def test_readme_prints_the_numbers_that_are_shown(tmp_path):
    readme = ROOT / "README.md"
    printed = run_python("-c", program_of(readme), folder=tmp_path, is_brief=False)
    assert agree(output_of(readme), printed, tolerance=0.25)


@pytest.mark.slow
def test_transcripts_of_readme_are_what_the_commands_print(tmp_path):
    commands = [command for command in commands_of(ROOT / "README.md") if command.line.startswith("dpfuse")]
    assert {command.line.split()[1] for command in commands} >= {"simulate", "train", "evaluate", "account"}
    for command in commands:
        assert agree(command.shown, run_command(command.line, tmp_path), tolerance=0.25)


@pytest.mark.slow
def test_the_household_meters_print_the_numbers_that_are_shown(tmp_path):
    assert agree(meters_shown(), run_python(str(METERS), folder=tmp_path, is_brief=False), tolerance=0.25)


@pages
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing


@pages
def test_tests_named_exist(page):
    named = re.findall(r"`(test_\w+\.py)(?:::([\w:]+))?`", page.read_text())
    missing = [f"{file}::{name}" for file, name in named if not is_test(ROOT / "tests" / file, name.split("::"))]
    assert not missing


def is_test(file: Path, names: list[str]) -> bool:
    """Whether the file has the function, or the class with the method; a file named alone must be there."""
    if not file.is_file():
        return False
    body: list[ast.stmt] = ast.parse(file.read_text()).body
    for name in filter(None, names):
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name]
        if not found:
            return False
        body = found[0].body
    return True


def test_papers_cited_are_in_the_bibliography():
    known = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "docs/refs.bib").read_text(), re.M))
    cited = {key for page in PAGES for key in re.findall(r"`([a-z]+\d{4}[a-z]+)`", page.read_text())}
    assert cited <= known


def test_every_target_is_listed_by_make():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split()
    assert [target for target in targets if target != "help" and f'"make {target} ' not in makefile] == []


def test_the_checks_notice_what_is_wrong():
    assert agree(["error 10", "..."], "error 11\nmore", tolerance=0.1)
    assert not agree(["error 10", "..."], "error 12\nmore", tolerance=0.1)
    assert not agree(["error 10"], "errors 10", tolerance=None)
    assert not agree(["error 10"], "error 10\nmore", tolerance=None)
    assert not is_test(Path(__file__), ["test_that_is_not_there"])
    assert not is_excerpt(Block("python", "import nothing\n"))
