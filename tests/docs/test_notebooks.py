"""The notebooks run, and their pages show the notebooks as they are."""

from __future__ import annotations

import re

import pytest

from tools import notebooks

each = pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
NOTEBOOK = """# %% [markdown]
# # Title
#
# Text.

# %%
# %matplotlib inline
x = 3
print("printed")
x + 1

# %%
from matplotlib.figure import Figure

Figure()
"""


@pytest.mark.slow
@each
def test_every_notebook_runs_and_shows_what_its_page_shows(path, tmp_path):
    """With one update for each design: the kinds of outputs are the same, the numbers are not."""
    outputs = notebooks.run_notebook(path.read_text(), tmp_path, is_brief=True)
    page = path.with_suffix(".md").read_text()
    shown = [bool(code) for code in re.findall(r"^```text$", page, re.M)]
    assert len(shown) == sum(bool(output.text) for output in outputs)
    drawn = re.findall(rf"^!\[.*\]\(img/{path.stem}-(\d+\.png)\)$", page, re.M)
    assert drawn == [output.picture for output in outputs if output.picture]


@each
def test_the_page_has_every_cell_of_the_notebook_in_order(path):
    page, at = path.with_suffix(".md").read_text(), 0
    for cell in notebooks.read_cells(path.read_text()):
        source = re.sub(r"^# %.*\n", "", cell.source, flags=re.M)
        assert (at := page.find(source, at)) >= 0, f"run `make notebooks NOTEBOOK={path.stem}`: {source[:60]!r}"
        at += len(source)


@each
def test_the_pictures_of_the_page_are_there(path):
    pictures = re.findall(r"\]\((img/.*?)\)", path.with_suffix(".md").read_text())
    assert pictures and all((path.parent / picture).is_file() for picture in pictures)
    own = {f"img/{picture.name}" for picture in path.parent.glob(f"img/{path.stem}-*.png")}
    assert own == set(pictures)


def test_cells_are_run_in_one_namespace_and_give_what_their_last_line_is(tmp_path):
    text, code, drawing = notebooks.read_cells(NOTEBOOK)
    assert text == notebooks.Cell(False, "# Title\n\nText.") and code.is_code
    outputs = notebooks.execute([text, code, notebooks.Cell(True, "x"), drawing], tmp_path)
    assert [output.text for output in outputs] == ["printed\n4", "3", ""]
    assert outputs[2].picture == "2.png" and (tmp_path / "2.png").read_bytes().startswith(b"\x89PNG")
    page = notebooks.make_page("x", [text, code], outputs, "Note.")
    assert page.startswith("# Title\n\nText.\n\n*This page is [x.py](x.py)") and "matplotlib" not in page
    assert '```python\nx = 3\nprint("printed")\nx + 1\n```\n\n```text\nprinted\n4\n```\n' in page


def test_a_file_in_another_format_is_refused():
    with pytest.raises(ValueError, match="must begin with a line `# %%`"):
        notebooks.read_cells("import dpfuse\n# %%\n")
