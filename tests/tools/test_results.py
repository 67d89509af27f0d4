"""Results files say what made them, and every page shows the numbers of its results file."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tools import quote, results

FILES = sorted(
    [*results.ROOT.glob("experiments/*/results.json"), *results.ROOT.glob("benchmarks/results/*.json")], key=str
)
files = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(results.ROOT)))


class TestWriting:
    def write(self, path, numbers, **options):
        results.write_results(path, numbers, command="make it", seeds=[3, 4], **options)
        return json.loads(path.read_text())

    def test_a_file_says_what_made_its_numbers(self, tmp_path):
        written = self.write(tmp_path / "new/results.json", {"error": 1.5}, packages=["scipy"])
        assert written["results"] == {"error": 1.5}
        (run,) = written["runs"]
        assert tuple(run) == results.FIELDS
        assert run["command"] == "make it" and run["seeds"] == [3, 4]
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", run["commit"])
        assert run["hardware"]["devices"] == ["cpu"] and run["hardware"]["cores"] >= 1
        assert {"python", "jax", "opendp", "scipy"} <= set(run["versions"])

    def test_a_part_is_replaced_and_the_rest_is_kept(self, tmp_path):
        path = tmp_path / "results.json"
        self.write(path, {"one": {"error": 1.0}, "other": {"error": 2.0}})
        self.write(path, {"error": 3.0}, part="other")
        written = self.write(path, {"error": 4.0}, part="other", devices=["a GPU"])
        assert written["results"] == {"one": {"error": 1.0}, "other": {"error": 4.0}}
        assert [run["part"] for run in written["runs"]] == [None, "other"]
        assert [run["hardware"]["devices"] for run in written["runs"]] == [["cpu"], ["a GPU"]]

    def test_text_holds_the_same_values_with_lists_on_one_line(self):
        values = {"a": [1, 2.5, None], "b": [[1, 2], {"c": ["x, y", "z"]}], "d": []}
        text = results.to_text(values)
        assert json.loads(text) == values
        assert '"a": [1, 2.5, null]' in text and '["x, y", "z"]' in text


class TestQuoting:
    def test_only_what_stands_between_the_marks_changes(self, monkeypatch):
        monkeypatch.setitem(quote.QUOTES, "a table", lambda: "| new |\n")
        page = "before\n<!-- results a table -->\n| old |\n<!-- /results -->\nafter\n"
        assert quote.names_in(page) == ["a table"]
        assert quote.fill(page) == page.replace("old", "new")
        assert quote.fill(quote.fill(page)) == quote.fill(page)

    def test_an_unknown_name_is_refused(self):
        with pytest.raises(KeyError, match="no such table"):
            quote.fill("<!-- results no such table -->\n<!-- /results -->\n")


@pytest.fixture(scope="module")
def history() -> set[str]:
    """Every commit that led to this one."""
    listed = subprocess.run(["git", "rev-list", "HEAD"], cwd=results.ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


@pytest.mark.results
class TestStored:
    @files
    def test_every_results_file_has_the_fields_of_its_runs(self, path, history):
        written = json.loads(path.read_text())
        assert set(written) == {"runs", "results"} and written["results"]
        parts = [run["part"] for run in written["runs"]]
        assert parts[0] is None and len(set(parts)) == len(parts)
        assert set(parts[1:]) <= set(written["results"])
        for run in written["runs"]:
            assert tuple(run) == results.FIELDS
            assert run["command"]
            commit = run["commit"] or run["recorded_in"]
            assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit)
            assert commit.removesuffix("-dirty") in history, "record on main: a rebased commit cannot be looked up"

    @files
    def test_every_results_file_is_written_in_the_common_form(self, path):
        assert results.to_text(json.loads(path.read_text())) == path.read_text()

    @pytest.mark.parametrize("page", quote.pages(), ids=lambda page: str(page.relative_to(results.ROOT)))
    def test_every_page_shows_the_numbers_of_its_results_file(self, page):
        text = page.read_text()
        assert text == quote.fill(text)
        assert len(quote.names_in(text)) == text.count("<!-- results ") == text.count("<!-- /results -->")

    def test_every_quote_stands_in_a_page(self):
        shown = {name for page in quote.pages() for name in quote.names_in(page.read_text())}
        assert shown == set(quote.QUOTES)
