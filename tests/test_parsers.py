"""Everything that parses bytes from strangers, with inputs of any kind; `make fuzz` runs the same for longer."""

from __future__ import annotations

import pytest

from support.fuzz import NAMES, mutations, run
from support.fuzz_targets import TARGETS

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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_are_guided_by_coverage_are_refused_as_documented(name):
    pytest.importorskip("atheris", reason="pip install 'dpfuse[dev]' on Linux")
    found = run(name, seconds=5)
    assert found["inputs"] > 20 and found["covered"] > 20


@pytest.mark.slow
def test_a_planted_error_is_found():
    pytest.importorskip("atheris", reason="pip install 'dpfuse[dev]' on Linux")
    with pytest.raises(AssertionError, match="planted"):
        run("message", seconds=60, first=PLANTED)
