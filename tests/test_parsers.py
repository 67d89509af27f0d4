"""Everything that parses bytes from strangers, with inputs of any kind; `make fuzz` runs the same for longer."""

from __future__ import annotations

import logging

import pytest

from dpfuse.wire import intake as intake_module
from support.fuzz import NAMES, mutations, run
from support.fuzz_targets import TARGETS

# For each target, some minutes for all of them. By number, so that every machine tries the same.
NUM_GUIDED = 45_000

# Negative control: an intake that breaks down at a line that begins like a list.
PLANTED = """
from dpfuse.wire import intake
parse_report = intake.parse_report
def break_down(line):
    if line.startswith(b"["):
        raise KeyError("planted")
    return parse_report(line)
intake.parse_report = break_down
"""


def test_every_target_is_run():
    assert set(NAMES) == set(TARGETS)


@pytest.mark.parametrize("name", NAMES)
def test_changed_inputs_are_refused_as_documented(name, tmp_path):
    with TARGETS[name](tmp_path) as (check, seeds):
        for data in mutations(seeds, {"archive": 5, "event": 30, "settings": 20}.get(name, 150), seed=1):
            check(data)


@pytest.mark.parametrize(("level", "text"), [("debug", "values [0.2718281828]"), ("error", "broken")])
def test_a_measurement_or_an_error_in_the_log_of_a_target_is_found(monkeypatch, tmp_path, level, text):
    """Negative control."""
    with TARGETS["message"](tmp_path) as (check, seeds):
        check(seeds[0])
        say = getattr(logging.getLogger("dpfuse.wire.intake"), level)
        monkeypatch.setattr(intake_module, "parse_report", lambda line: say("%s", text))
        with pytest.raises(AssertionError):
            check(seeds[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_are_guided_by_coverage_are_refused_as_documented(name):
    pytest.importorskip("atheris", reason="pip install 'dpfuse[dev]' on Linux")
    found = run(name, inputs=NUM_GUIDED)
    assert found["inputs"] >= NUM_GUIDED and found["covered"] > 20


@pytest.mark.slow
def test_a_planted_error_is_found():
    pytest.importorskip("atheris", reason="pip install 'dpfuse[dev]' on Linux")
    with pytest.raises(AssertionError, match="planted"):
        run("message", seconds=60, first=PLANTED)
