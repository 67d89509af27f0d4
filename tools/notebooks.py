"""Run the notebooks of docs/notebooks and write their pages, with what they print and draw: `make notebooks`.

A notebook is a Python program in the percent format of Jupytext: `# %%` begins a cell of code, `# %% [markdown]` a
cell of text in comments. A page is the Markdown file of the same name. Pages are kept in the repository, so that the
site is built without training anything.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any, NamedTuple

from tools.results import current_commit

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
_MARK = re.compile(r"^# %%( \[markdown\])?$", re.M)


class Cell(NamedTuple):
    """A cell: Markdown, or Python if `is_code`."""

    is_code: bool
    source: str


class Output(NamedTuple):
    """What a cell of code prints and, by file name, draws."""

    text: str
    picture: str | None


def read_cells(text: str) -> list[Cell]:
    """The cells of a notebook."""
    start, *parts = _MARK.split(text)
    if start.strip():
        raise ValueError("a notebook must begin with a line `# %%` or `# %% [markdown]`")
    cells = []
    for kind, source in zip(parts[::2], parts[1::2], strict=True):
        if kind:
            source = re.sub(r"^# ?", "", source, flags=re.M)
        cells.append(Cell(not kind, source.strip("\n")))
    return cells


def shorten(text: str) -> str:
    """The same notebook with one update for each design, for tests."""
    return re.sub(r"num_updates=\d+", "num_updates=1", text)


def execute(cells: list[Cell], pictures: Path) -> list[Output]:
    """What each cell of code gives, run in order in one namespace. Pictures are numbered and written into a folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(cell for cell in cells if cell.is_code):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            value = _run(cell.source, names)
        picture = None
        if type(value).__name__ == "Figure":
            picture = f"{number}.png"
            value.savefig(pictures / picture, dpi=80)
        elif value is not None:
            print(value, file=printed)
        outputs.append(Output(printed.getvalue().rstrip(), picture))
    return outputs


def _run(source: str, names: dict[str, Any]) -> Any:
    """Run the cell; the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names) if last else None


def run_notebook(text: str, folder: Path, is_brief: bool = False) -> list[Output]:
    """What the cells of code give, in a process of its own with this working folder; pictures are in `pictures`."""
    (folder / "notebook.py").write_text(shorten(text) if is_brief else text)
    (folder / "pictures").mkdir()
    # Brief: compiled without optimisation. A design of one update hardly estimates better than the prior.
    flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0"} if is_brief else {}
    expected = ["-W", "ignore:the design with", "-W", "ignore:the floor with"] if is_brief else []
    command = [sys.executable, "-W", "error", *expected, "-m", "tools.notebooks", "--execute", "notebook.py"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | flags | {"PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [Output(*each) for each in json.loads((folder / "outputs.json").read_text())]


def make_page(name: str, cells: list[Cell], outputs: list[Output], note: str) -> str:
    """The page of a notebook."""
    waiting, parts = iter(outputs), []
    for cell in cells:
        if not cell.is_code:
            parts.append(cell.source)
            continue
        code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("# %"))
        parts.append(f"```python\n{code}\n```")
        output = next(waiting)
        if output.text:
            parts.append(f"```text\n{_wrap(output.text)}\n```")
        if output.picture:
            parts.append(f"![What the cell draws](img/{name}-{output.picture})")
    download = (
        f"*This page is [{name}.py]({name}.py), a notebook as text: open it in Jupyter with Jupytext, in VS Code or "
        f"Spyder, or run it as a program. {note}*"
    )
    return "\n\n".join([parts[0], download, *parts[1:]]) + "\n"


def _wrap(text: str) -> str:
    """The text with long sentences broken into lines; tables stay as they are."""
    lines = text.splitlines()
    return "\n".join(line if line.startswith("|") or len(line) <= 120 else textwrap.fill(line, 120) for line in lines)


def write_page(path: Path, commit: str) -> None:
    """Run a notebook and write its page and pictures."""
    text, began = path.read_text(), time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outputs = run_notebook(text, folder)
        seconds = time.perf_counter() - began
        images = FOLDER / "img"
        images.mkdir(exist_ok=True)
        for old in images.glob(f"{path.stem}-*.png"):
            old.unlink()
        for picture in (folder / "pictures").iterdir():
            (images / f"{path.stem}-{picture.name}").write_bytes(picture.read_bytes())
    note = f"`make notebooks` ran it in {seconds:.0f} s on {os.cpu_count()} cores, at commit {commit}."
    (FOLDER / f"{path.stem}.md").write_text(make_page(path.stem, read_cells(text), outputs, note))


def main() -> None:
    """Write the pages of the notebooks that are named, by default of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks, such as first_design")
    parser.add_argument("--execute", type=Path, help="run one file here, and write outputs.json and pictures/")
    arguments = parser.parse_args()
    if arguments.execute:
        outputs = execute(read_cells(arguments.execute.read_text()), Path("pictures"))
        Path("outputs.json").write_text(json.dumps(outputs))
        return
    commit = current_commit()[:10]  # before a page changes the working tree
    for path in NOTEBOOKS:
        if not arguments.names or path.stem in arguments.names:
            print(path.relative_to(ROOT), file=sys.stderr)
            write_page(path, commit)


if __name__ == "__main__":
    main()
