"""README quotes the results files, and the results files show what the project promises."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = runpy.run_path(str(ROOT / "docs/results.py"))


def test_readme_quotes_the_results_files():
    readme = (ROOT / "README.md").read_text()
    assert RESULTS["quoted"]() in readme
    assert RESULTS["quoted_us101"]() in readme


def test_the_demo_of_record_shows_what_it_must():
    demo = RESULTS["read"]("demo")
    for name, design in demo["designs"].items():
        assert design["within_budget"], name
        assert design["mse"] < demo["prior_mse"]
    assert demo["paired"]["adaptive"]["ratio"] <= 0.92
    assert demo["paired"]["adaptive"]["ci95"][1] < 1
    assert demo["paired"]["individual"]["ci95"][1] < 1
    assert demo["designs"]["individual"]["mse"] <= demo["designs"]["adaptive"]["mse"]
    assert demo["non_private_mse"] < demo["designs"]["individual"]["mse"]
