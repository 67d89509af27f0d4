"""A sweep as a TOML file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import dpfuse
from dpfuse.sweeps import read_plan
from dpfuse.sweeps.grid import load_parts
from support.command import run_dpfuse

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs/examples/sweep.toml"
TEXT = """
seeds = [0, 1]
recordings.walks = {file = "walks.dpfuse-data", split_by = "run"}
guarantees = {budget = [0.5, 1.5], adjacency = ["remove-one", "replace-one"], floor = true}
common.horizon = 8
settings.plain.spending = "constant"
settings.few = {measurement_range = [-1.0, 1.0], guarantees = {budget = 0.5, adjacency = "remove-one"}}
"""


@pytest.fixture
def file(walks, tmp_path):
    walks[0].runs(range(20)).save(tmp_path / "walks.dpfuse-data")
    path = tmp_path / "plan.toml"
    path.write_text(TEXT)
    return path


def test_a_file_becomes_the_arguments_of_a_sweep(file):
    plan = read_plan(file)
    assert [part.num_runs for part in load_parts(plan.recordings["walks"])] == [16, 2, 2]
    kinds = [(g.adjacency, g.budget) if g else None for g in plan.guarantees]
    assert kinds == [*[(a, b) for a in ("remove-one", "replace-one") for b in (0.5, 1.5)], None]
    assert plan.seeds == [0, 1] and plan.out is None
    assert plan.settings["plain"] == {"horizon": 8, "spending": "constant"}
    assert plan.settings["few"]["measurement_range"] == (-1.0, 1.0)
    assert plan.settings["few"]["guarantees"] == [dpfuse.Guarantee(order=2.0, budget=0.5, adjacency="remove-one")]


def test_periods_in_a_file_are_a_choice_like_budgets(file):
    file.write_text(TEXT.replace("budget = [0.5, 1.5], adj", 'period = ["day", 90], budget = 1, adj'))
    kinds = [(g.adjacency, g.period) if g else None for g in read_plan(file).guarantees]
    assert kinds == [*[(a, p) for a in ("remove-one", "replace-one") for p in ("day", 90.0)], None]


def test_the_command_writes_tables_figures_and_designs(pretended, file, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    result = run_dpfuse(capsys, monkeypatch, "sweep", file, "--out", out, "--workers", "0")
    assert result.exit_code == 0, result.error
    assert "| walks | plain | 0.5 at order 2, remove-one, total | 2 |" in result.stdout
    made = {str(path.relative_to(out)) for path in out.rglob("*") if path.suffix in (".csv", ".png")}
    figures = {f"figures/{name}.png" for name in ("error-against-budget", "seeds", "price-of-privacy")}
    assert made == {"table.csv", "summary.csv", *figures}
    assert len(list((out / "designs").iterdir())) == 12


def test_a_sweep_with_failures_exits_with_1_and_names_them(pretended, file, tmp_path, capsys, monkeypatch):
    pretended.diverges = lambda guarantee, seed: guarantee is None and seed == 1
    with pytest.warns(UserWarning, match="1 of 12 designs failed"):
        result = run_dpfuse(capsys, monkeypatch, "sweep", file, "--out", tmp_path / "out", "--workers", "0")
    assert result.exit_code == 1
    assert "failed: walks, plain, no guarantee, seed 1\n  TrainingDiverged" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [", "must be a TOML file"),
        ("budget = 1", "the file must have keys among .*; got 'budget'"),
        ("seeds = [0]", r"must have a table \[recordings\]"),
        (TEXT.replace("budget = [0.5, 1.5], adj", "bugdet = 1, adj"), "guarantees must have keys among .*'bugdet'"),
        (TEXT.replace("common.horizon", "recordings.other"), "recordings.other must be a path, or a table"),
        (re.sub(", adjacency = .*floor", ", floor", TEXT), "guarantees must state their adjacency"),
        (re.sub("guarantees = {budget.*", "guarantees = {order = 2}", TEXT, count=1), "must have a budget, or floor"),
    ],
)
def test_mistakes_in_the_file_are_named(file, text, message, capsys, monkeypatch):
    file.write_text(text)
    result = run_dpfuse(capsys, monkeypatch, "sweep", file)
    assert result.exit_code == 2 and re.search(message, result.error)


def test_the_page_shows_the_example_file():
    assert f"```toml\n{EXAMPLE.read_text()}```" in (ROOT / "docs/sweeps.md").read_text()
    assert len(read_plan(EXAMPLE).settings) == 3


@pytest.mark.slow
def test_the_example_file_runs(tmp_path, capsys, monkeypatch):
    """With a short recording, few updates, one seed and one budget, and without the floor."""
    text = EXAMPLE.read_text()
    for long, short in {
        "seeds = [0, 1, 2]": "seeds = [0]",
        "[0.15, 0.5, 1.5]": "[0.5]",
        "floor = true": "floor = false",
        "horizon = 100": "horizon = 10",
        "num_updates = 1000": "num_updates = 2",
    }.items():
        assert long in text
        text = text.replace(long, short)
    (tmp_path / "sweep.toml").write_text(text)
    simulated = ("--runs", 1, "--minutes", 4, "--out", tmp_path / "road.dpfuse-data")
    assert run_dpfuse(capsys, monkeypatch, "simulate", "freeway", *simulated).exit_code == 0
    out = tmp_path / "out"
    result = run_dpfuse(capsys, monkeypatch, "sweep", tmp_path / "sweep.toml", "--out", out, "--workers", 0, "--json")
    assert result.exit_code == 0, result.error
    rows = json.loads(result.stdout)["designs"]
    assert [(row["setting"], row["accounting"], row["within_budget"]) for row in rows] == [
        ("classical", "total", True),
        ("adaptive, recurrent_filter gru", "total", True),
        ("adaptive, recurrent_filter guided", "total", True),
        ("individual", "individual", True),
    ]
    assert all(dpfuse.load(row["design"]).fingerprint == row["design_fingerprint"] for row in rows)
