"""Log lines: one a record, as text or JSON, with time, level and fields, and no text of an exception."""

from __future__ import annotations

import json
import logging
import re

import pytest

from dpfuse import _logs


@pytest.fixture
def make_line(monkeypatch, capsys):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield lambda: capsys.readouterr().err
    for handler in root.handlers:
        root.removeHandler(handler)
    for handler in before[0]:
        root.addHandler(handler)
    root.setLevel(before[1])
    _logs._chosen.update({"log-format": "text", "log-level": "warning"})


def test_a_line_of_text_has_time_level_and_fields(make_line):
    _logs.set_up_logs()
    logging.getLogger("dpfuse.x").warning("a step was\nskipped", extra=_logs.fields(step=17, why="too late"))
    line = make_line()
    pattern = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING dpfuse.x: a step was skipped step=17 why="too late"\n'
    assert re.fullmatch(pattern, line), line


def test_a_line_of_json_is_one_object(make_line):
    _logs.set_up_logs("json", "info")
    logging.getLogger("dpfuse.x").info("hello %s", "there", extra=_logs.fields(step=17, level="no"))
    found = json.loads(make_line())
    assert found["message"] == "hello there" and found["step"] == 17
    assert found["level"] == "info" and found["logger"] == "dpfuse.x" and found["time"].endswith("Z")
    assert _logs.log_options() == ["--log-format=json", "--log-level=info"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_the_text_of_an_exception_is_not_logged(make_line, log_format):
    _logs.set_up_logs(log_format)
    try:
        raise ValueError("secret 103.2")
    except ValueError:
        logging.getLogger("dpfuse.x").exception("it failed")
    line = make_line()
    assert "secret" not in line and "it failed (ValueError)" in line and line.count("\n") == 1


def test_lines_below_the_level_are_left_out(make_line):
    _logs.set_up_logs()
    logging.getLogger("dpfuse.x").info("hello")
    assert make_line() == ""


def test_the_error_that_ends_a_command_is_a_line_of_the_log(make_line):
    _logs.print_error("the ledger is missing")
    assert make_line() == "dpfuse: the ledger is missing\n"
    _logs.set_up_logs("json")
    _logs.print_error("the ledger is missing")
    assert json.loads(make_line())["message"] == "the ledger is missing"
