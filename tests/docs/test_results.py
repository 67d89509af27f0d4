"""README and docs quote the results files, and the results files show what the project promises."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = runpy.run_path(str(ROOT / "docs/results.py"))


def test_readme_quotes_the_results_files():
    readme = (ROOT / "README.md").read_text()
    assert RESULTS["quoted"]() in readme
    assert RESULTS["quoted_us101"]() in readme


def test_the_page_on_the_environment_quotes_the_race():
    assert RESULTS["race"]() in (ROOT / "docs/environment.md").read_text()


def test_the_page_on_the_live_page_quotes_its_speed():
    assert RESULTS["page"]() in (ROOT / "docs/page.md").read_text()
    assert RESULTS["read"]("page")["ms"]["up"]["median"] < 1000
    assert RESULTS["read"]("page")["updates per second"] > 4.9
    assert RESULTS["read"]("page")["requests elsewhere"] == 0


def test_the_page_on_running_a_centre_quotes_the_fleet_and_what_comes_in():
    assert RESULTS["fleet"]() in (ROOT / "docs/live.md").read_text()
    assert all(kind["ratio of medians"] <= 3 for kind in RESULTS["read"]("durable")["ms"].values())
    ingest = RESULTS["read"]("ingest")
    for way, at_least in (("http", 50_000), ("mqtt", 5_000)):
        assert ingest[way]["paced"]["lost"] == 0 and ingest[way]["paced"]["per_second"] >= at_least


def test_the_page_on_estimators_quotes_the_design_that_comes_with_dpfuse():
    assert RESULTS["live_design"]() in (ROOT / "docs/remote.md").read_text()


def test_ours_wins_the_race_of_record():
    """It has what the peer has after twenty minutes ten times sooner, by either clock and with every seed."""
    race = RESULTS["read"]("rl")
    after = race["targets"]["after its whole time (last minute)"]
    assert min(after[clock]["times_sooner"][seed] for clock in ("wall_s", "cpu_s") for seed in range(3)) >= 10
    assert race["peer"]["wall_s"] >= 1190
    assert round(race["peer"]["error"], 2) == min(race["peer"]["curve"]["error"])


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
