"""A whole audit: it passes for a design that keeps its guarantee, and is shown as text, JSON and figure."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpfuse import audit as audit_package
from dpfuse import audit_design, cli
from dpfuse.audit import Check, attacks, to_text
from dpfuse.audit.runs import run_worlds
from dpfuse.audit.search import _NUM_GUIDED_PATHS, _NUM_PATHS, find_pair
from dpfuse.audit.worlds import NUM_ROWS, make_worlds, measurement_range
from dpfuse.policy import ExactStep
from dpfuse.privacy import GRID, gdp_epsilon
from support.attacks import SURE, small
from support.designs import SOME_CASES, make_design

REPLACED = ("total", "replace-one", "ball")


@pytest.fixture(scope="module")
def audited_with_runs():
    """A whole audit of an adaptive design, and the transcripts of its two attacks."""
    transcripts = []

    def run_and_keep(*arguments):
        transcripts.append(run_worlds(*arguments))
        return transcripts[-1]

    design = small(REPLACED, spending="adaptive", spread=1.0, recurrent_filter="gru")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks, "run_worlds", run_and_keep)
        return audit_design(design, num_runs=40, confidence=SURE), transcripts


@pytest.fixture
def audited(audited_with_runs):
    return audited_with_runs[0]


def allowed_difference(shares, num_paths):
    """Between the reach in the search, over `num_paths` paths, and in exact runs: six standard errors.

    The search has maximised over its own paths, for which 2% of the reach is allowed in addition.
    """
    return 0.02 * shares.mean() + 6 * shares.std() * math.sqrt(1 / num_paths + 1 / len(shares))


class TestAuditDesign:
    def test_a_design_that_keeps_its_guarantee_passes(self, audited):
        assert audited.passed, to_text(audited)
        worst, own = audited.attacks
        assert 0.999 < worst.reach <= 1 and 0.5 < own.reach < 1
        assert own.by_ascent > own.by_hand  # gradients find more than corners and random trajectories
        assert audited.false_alarm < 1e-5

    def test_exact_runs_leak_as_much_as_the_search_found(self, audited_with_runs):
        audited, transcripts = audited_with_runs
        own = audited.attacks[1]
        budget = 2 * audited.guarantee.budget / audited.guarantee.order
        shares = np.array(transcripts[1].distances(), float) / GRID**2 / budget
        allowed = allowed_difference(shares, _NUM_PATHS)
        assert allowed < own.by_ascent / 10
        assert own.reach == pytest.approx(shares.mean(), rel=1e-6)
        assert own.reach == pytest.approx(own.by_ascent, abs=allowed)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_runs": 3}, "num_runs must be at least 10"),
            ({"confidence": 0.4}, "confidence must be in"),
            ({"num_steps": 5}, "at most the design's horizon, 4, got 5"),
        ],
    )
    def test_wrong_options_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            audit_design(small(), **options)

    def test_a_design_without_a_guarantee_is_refused(self):
        with pytest.raises(ValueError, match="the non-private floor has none to audit"):
            audit_design(make_design(features="unbounded", spending="constant"))


@pytest.mark.slow
@pytest.mark.parametrize("case", SOME_CASES)
def test_the_worst_pair_is_in_range_and_leaks_as_much_in_exact_runs(case):
    design = small(case, spread=1.0)
    found = find_pair(design, 4, seed=0)
    low, high = measurement_range(design)
    for canary in filter(None, (found.canary, found.replacement)):
        assert ((canary.measurements >= low) & (canary.measurements <= high)).all()
    step = ExactStep(design, NUM_ROWS)
    distances = run_worlds(step, make_worlds(design, found.canary, found.replacement, seed=0), 200).distances()
    shares, expected = np.array(distances, float) / step.mechanism.budget, max(found.by_hand, found.by_ascent)
    allowed = allowed_difference(shares, _NUM_GUIDED_PATHS)
    assert allowed < expected / 5
    assert shares.mean() == pytest.approx(expected, abs=allowed)


class TestOutput:
    def test_the_text_names_attacks_and_verdict(self, audited):
        text = to_text(audited)
        assert "the worst f" in text and "Passed: no check contradicts (2, 9)-Rényi" in text

    @pytest.fixture
    def command(self, audited, tmp_path, monkeypatch):
        """Calls `dpfuse audit` with a given result; returns its output and the options of the audit."""
        asked = {}
        small().save(tmp_path / "small.dpfuse")

        def call(*arguments, result=audited):
            monkeypatch.setattr(
                audit_package, "audit_design", lambda design, **options: asked.update(options) or result
            )
            return CliRunner().invoke(cli.app, ["audit", str(tmp_path / "small.dpfuse"), *arguments]), asked

        return call

    def test_the_command_passes_its_options_and_prints_json(self, audited, command, tmp_path):
        figure = tmp_path / "new" / "audit.png"
        given = "--runs 20 --confidence 0.99 --delta 1e-6 --steps 3 --seed 5 --json --figure"
        result, asked = command(*given.split(), str(figure))
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == json.loads(json.dumps(audited.to_dict()))
        assert asked == {
            "num_runs": 20, "confidence": 0.99, "delta": 1e-6, "num_steps": 3, "seed": 5, "progress": True,
        }  # fmt: skip
        assert figure.stat().st_size > 5000

    def test_a_figure_is_overwritten_with_force_only(self, command, tmp_path):
        figure = tmp_path / "audit.png"
        figure.write_text("mine")
        result, asked = command("--figure", str(figure))
        assert result.exit_code == 2 and "--force" in result.output
        assert not asked and figure.read_text() == "mine"  # refused before the audit
        result, _ = command("--figure", str(figure), "--force")
        assert result.exit_code == 0, result.output
        assert figure.stat().st_size > 5000

    def test_a_failed_check_is_exit_1(self, audited, command):
        broken = replace(audited, checks=(*audited.checks, Check("grid", False, "off the grid")))
        result, _ = command(result=broken)
        assert result.exit_code == 1
        assert "BROKEN" in result.stdout and "FAIL grid" in result.stdout


@pytest.mark.slow
def test_the_command_audits_a_design(tmp_path):
    small(spending="adaptive").save(tmp_path / "small.dpfuse")
    arguments = ["audit", str(tmp_path / "small.dpfuse"), "--runs", "20", "--confidence", str(SURE), "--json"]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["passed"] and answer["num_runs"] == 20 and len(answer["attacks"]) == 2
    assert answer["epsilon_claimed"] == pytest.approx(gdp_epsilon(2.0, 9.0, 1e-5, 8))
