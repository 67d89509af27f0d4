"""The documentation site: every public name has an entry, and every command that is shown exists."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpfuse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENTRIES = [name for page in PAGES for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)]
PACKAGES = sorted(page.stem for page in (ROOT / "docs/api").glob("*.md") if page.stem != "index")


def resolve(name: str) -> object:
    """The object with this dotted name; its package is imported."""
    parts = name.split(".")
    found = importlib.import_module(parts[0])
    for part in parts[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(f"{found.__name__}.{part}")
    return found


def test_every_public_name_of_dpfuse_has_an_entry():
    assert {f"dpfuse.{name}" for name in dpfuse.__all__} <= set(ENTRIES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_of_a_package_has_an_entry(package):
    """On its own page, or on that of another package which exports the same object under the same name."""
    module = importlib.import_module(f"dpfuse.{package}")
    public = [name for name in module.__all__ if not isinstance(getattr(module, name), ModuleType)]
    described = [(name.rpartition(".")[2], resolve(name)) for name in ENTRIES]
    assert [name for name in public if (name, getattr(module, name)) not in described] == []


def test_every_package_with_public_names_has_a_page():
    inits = (Path(dpfuse.__file__).parent).glob("*/__init__.py")
    public = {init.parent.name for init in inits if "__all__" in init.read_text()}
    assert public == set(PACKAGES)


def test_every_public_name_of_a_package_within_a_package_has_an_entry():
    root = Path(dpfuse.__file__).parent
    inner = [init.parent.relative_to(root) for init in root.glob("*/*/__init__.py") if "__all__" in init.read_text()]
    assert len(inner) > 2
    described = [(name.rpartition(".")[2], resolve(name)) for name in ENTRIES]
    for package in inner:
        module = importlib.import_module(".".join(["dpfuse", *package.parts]))
        assert [name for name in module.__all__ if (name, getattr(module, name)) not in described] == [], package


def test_every_entry_exists_and_stands_once():
    assert len(set(ENTRIES)) == len(ENTRIES)
    for name in ENTRIES:
        resolve(name)


def test_the_quickstart_shows_the_python_of_the_readme():
    """So that running README's Python, in full, is enough."""
    blocks = re.findall(r"^```py\n(.*?)^```$", (ROOT / "docs/index.md").read_text(), re.S | re.M)
    assert blocks and all(f"```python\n{block}```" in (ROOT / "README.md").read_text() for block in blocks)


def test_the_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 150


MAP = (ROOT / "docs/architecture.md").read_text()


def test_the_files_that_the_map_names_exist():
    named = [path.strip("/") for path in re.findall(r"`([\w./]+(?:\.py|/))`", MAP)]
    roots = ROOT, ROOT / "tests", ROOT / "src", ROOT / "src/dpfuse"
    assert len(named) > 50
    assert [path for path in named if not any((root / path).exists() for root in roots)] == []


def test_the_map_shows_the_arrows_that_are_enforced():
    rules = runpy.run_path(str(ROOT / "tests/test_architecture.py"))
    section = MAP.partition("## Which way imports point")[2].partition("\n## ")[0]
    shown = {}
    for line in re.findall(r"^\| (`.*) \|$", section, re.M):
        rooms, allowed = (set(re.findall(r"`(\w+)`", cell)) for cell in line.split(" | "))
        shown |= {room: allowed for room in rooms}
    shown.pop("cli")
    base = rules["BASE"] | {"gym", "cli", "__init__"}
    assert shown == {room: allowed - base for room, allowed in rules["ALLOWED"].items() if room not in base}


def shown_commands(page: Path) -> list[str]:
    """The commands in the code blocks of a page, with lines that go on joined."""
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", page.read_text(), re.S | re.M)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ").split("#")[0].strip() for line in lines]


@pytest.fixture(scope="module")
def options():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return runpy.run_path(str(ROOT / "docs/cli_reference.py"))["commands"]()
    finally:
        sys.path.pop(0)


def misused(line: str, options: dict[str, set[str]]) -> set[str]:
    """The command if it is unknown, else the options that it does not have."""
    words = line.split()[1:]
    name = " ".join(words[:2]) if " ".join(words[:2]) in options else "".join(words[:1])
    if name not in options:
        return {name}
    return {word.split("=")[0] for word in words if word.startswith("--")} - options[name] - {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_shown_exist_with_their_options(page, options):
    lines = [line for line in shown_commands(page) if line.startswith("dpfuse ") and line != "dpfuse --help"]
    assert [(line, misused(line, options)) for line in lines if misused(line, options)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_make_targets_that_are_named_exist(page):
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split())
    named = re.findall(r"`make ([a-z][\w-]*)", page.read_text())
    named += [line.split()[1] for line in shown_commands(page) if line.startswith("make ")]
    assert set(named) <= targets


def test_a_wrong_command_and_a_wrong_option_are_noticed(options):
    assert misused("dpfuse trian road.dpfuse-data", options) == {"trian"}
    assert misused("dpfuse train road.dpfuse-data --bugdet 1", options) == {"--bugdet"}
    assert misused("dpfuse ledger verify road.db --json", options) == set()
