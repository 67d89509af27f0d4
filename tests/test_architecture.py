"""Which way imports point, what is exported, and how large a module may grow."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

import dpfuse

SOURCE = Path(dpfuse.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
BASE = {
    "errors",
    "guarantee",
    "trajectories",
    "attributes",
    "public_inputs",
    "_check",
    "_archive",
    "_arrays",
    "_extras",
    "_frames",
    "_keyed_arrays",
    "_labels",
    "_slots",
}
BASE |= {"_logs", "_split", "_stats"}
# What each room may import, apart from itself.
ALLOWED = {
    **{name: BASE for name in BASE},
    # `Trajectories.from_table` and `to_table` call the room of tables, once they are called.
    "trajectories": BASE | {"data"},
    "privacy": BASE,
    "systems": BASE,
    "data": BASE,
    "policy": BASE | {"privacy"},
    "training": BASE | {"privacy", "policy"},
    "evaluation": BASE | {"privacy", "policy"},
    "optimal": BASE | {"privacy", "systems", "policy"},
    "audit": BASE | {"privacy", "policy"},
    "sweeps": BASE | {"policy", "training", "evaluation", "__init__"},
    "gym": BASE,
    # What may leave, and who reads it: neither the centre nor the ledger.
    "public": BASE | {"privacy", "policy"},
    "remote": BASE | {"privacy", "policy", "public"},
    # What is trusted.
    "ledger": BASE | {"privacy", "policy", "public"},
    "centre": BASE | {"privacy", "policy", "public", "ledger"},
    "wire": BASE | {"policy", "public", "ledger", "centre"},
    "fleet": BASE | {"policy", "public", "remote", "ledger"},
    "replay": BASE | {"systems", "data", "wire"},
}
ALLOWED["cli"] = ALLOWED["__init__"] = set(ALLOWED) | {"__init__"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.AST) -> set[str]:
    """The parts of dpfuse that a module imports anywhere, also inside functions; `__init__` for dpfuse itself."""
    parts = set()
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [node.module]
            if node.module == "dpfuse":
                names = [f"dpfuse.{alias.name}" for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "dpfuse":
                parts.add(rest.split(".")[0] or "__init__")
    return parts


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    assert part in ALLOWED, f"say in this test what {part} may import"
    assert imported_parts(ast.parse(path.read_text())) <= ALLOWED[part] | {part}


def test_every_arrow_is_used():
    used: dict[str, set[str]] = {}
    for path in MODULES:
        used.setdefault(part_of(path), set()).update(imported_parts(ast.parse(path.read_text())))
    rooms = ALLOWED.keys() - BASE - {"cli", "__init__", "gym"}
    assert {room: ALLOWED[room] - BASE - used[room] for room in rooms if ALLOWED[room] - BASE - used[room]} == {}


def test_an_import_against_the_arrows_is_seen():
    """Negative control, for each way to write one."""
    for line in ["import dpfuse.training", "from dpfuse import training", "from dpfuse.training.train import train"]:
        assert imported_parts(ast.parse(f"def later():\n    {line}")) == {"training"}
    assert imported_parts(ast.parse("import dpfuse")) == {"__init__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_stay_small_and_free_of_torch(path):
    text = path.read_text()
    assert text.count("\n") <= 400
    assert not re.search(r"\btorch\b", text, re.IGNORECASE)
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            assert not body or (function.end_lineno or 0) - body[0].lineno < 80, function.name


def classes_defined_twice(texts: Iterable[str]) -> list[str]:
    trees = (ast.parse(text) for text in texts)
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def test_no_class_name_is_defined_twice():
    assert classes_defined_twice(path.read_text() for path in MODULES) == []
    assert classes_defined_twice(["class Audit: ...", "def later():\n    class Audit: ..."]) == ["Audit"]


def test_tests_stand_in_the_folder_of_their_room():
    rooms = {part_of(path) for path in MODULES} | {"deploy", "docs", "experiments", "tools", "support"}
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if path.parent != TESTS}
    assert folders <= rooms


def test_every_public_name_is_listed_once_and_comes_from_its_home():
    homes = {name: module for module, names in dpfuse._HOME.items() for name in names}
    assert sorted(homes) == sorted(dpfuse.__all__) == dir(dpfuse)
    assert len(set(dpfuse.__all__)) == len(dpfuse.__all__)
    for name, module in homes.items():
        assert getattr(dpfuse, name) is getattr(import_module(f"dpfuse.{module}"), name)


def test_type_checkers_see_what_is_there_at_run_time():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    seen = {node.module.removeprefix("dpfuse."): {alias.name for alias in node.names} for node in block.body}
    assert seen == {module: set(names) for module, names in dpfuse._HOME.items()}


PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py") if "__all__" in path.read_text())


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_export_what_they_list(package):
    module = import_module(f"dpfuse.{package}")
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert hasattr(module, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'dpfuse' has no attribute 'tarin'"):
        dpfuse.tarin  # noqa: B018


@pytest.mark.parametrize(
    "module", ["dpfuse", "dpfuse.cli", "dpfuse.trajectories", "dpfuse.data", "dpfuse.ledger", "dpfuse.remote"]
)
def test_importing_is_quick(module):
    slow = ("jax", "equinox", "optax", "opendp", "dp_accounting", "matplotlib", "pyarrow", "apsw", "psycopg")
    slow += ("fastapi", "uvicorn", "paho", "orjson", "httpx")
    code = f"import sys, {module}; print([name for name in {slow} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert loaded.stdout.strip() == "[]"
