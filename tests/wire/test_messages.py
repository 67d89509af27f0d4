"""Reports as sensors send them: what is parsed, and that nothing makes the parser raise."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.wire.messages import MAX_REPORT, check_stream_name, pad_values, parse_report, unpad_values

GOOD = {"key": "17.1.0", "stream": "main", "step": 42, "values": [103.2, 9], "mac": "ab"}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["key", "stream", "step", "values", "mac"]), inner),
    max_leaves=8,
)


def to_line(message):
    return json.dumps(message).encode()


def test_a_well_formed_report_is_parsed():
    assert parse_report(to_line(GOOD)) == ("17.1.0", "main", 42, [103.2, 9], "ab", b"")


@pytest.mark.parametrize(
    "change",
    [{"step": "42"}, {"step": 42.0}, {"step": True}, {"step": None}, {"stream": 3}, {"stream": ["main"]},
     {"values": "103.2"}, {"values": {"0": 1}}, {"values": ["103.2", "9"]}, {"values": [True]}, {"values": [None, "9"]},
     {"values": [[1.0], [2.0]]}, {"values": None}, {"key": 3}, {"mac": None}, {"mac": "ä"},
     {"stream": "a b"}, {"stream": "a" * 65}, {"values": [float("nan")]}, {"step": 2**70}, {"step": 2**63},
     {"values": [float("inf")]}],
)  # fmt: skip
def test_a_report_with_a_field_of_another_type_is_not_parsed(change):
    assert parse_report(to_line(GOOD | change)) is None


@given(st.binary() | anything.map(to_line) | anything.map(lambda value: to_line(GOOD | {"values": value})))
def test_no_line_makes_the_parser_raise(line):
    report = parse_report(line)
    assert report is None or isinstance(json.loads(line), dict)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"\xff\xfe", b"[" * 4000, b'{"a":' * 700, b"[1]x", b"[" * 2000 + b"]" * 2000, b"null", b"[]"]
)
def test_a_line_that_is_not_a_json_object_is_not_parsed(line):
    assert parse_report(line) is None


def test_a_sealed_report_is_parsed_and_is_never_also_a_plain_one():
    sealed = {"key": "17.1.0", "stream": "main", "step": 42, "sealed": "00ff"}
    assert parse_report(to_line(sealed)) == ("17.1.0", "main", 42, [], "", b"\x00\xff")
    for change in ({"sealed": "00f"}, {"sealed": "FF"}, {"sealed": ""}, {"sealed": 3}, {"values": [1]}, {"mac": "ab"}):
        assert parse_report(to_line(sealed | change)) is None


@given(st.binary(max_size=300))
def test_no_content_makes_the_reader_of_sealed_values_raise(content):
    values = unpad_values(content)
    is_complete = values is not None and all(map(math.isfinite, values))
    assert not is_complete or pad_values(values) == content[: len(pad_values(values))]


def test_values_that_are_not_finite_are_missing_in_a_sealed_report():
    assert unpad_values(pad_values([1.0, 2.0])) == [1.0, 2.0]
    for value in (float("nan"), float("inf"), float("-inf")):
        known, missing = unpad_values(pad_values([1.0, value]))
        assert known == 1.0 and math.isnan(missing)
        assert len(pad_values([1.0, value])) == len(pad_values([1.0, 2.0]))
    assert unpad_values(b"\x00\x11" + bytes(128)) is None  # 17 values in the room of 16


def test_a_line_that_is_too_long_is_not_parsed():
    assert parse_report(to_line(GOOD).ljust(MAX_REPORT)) is not None
    assert parse_report(to_line(GOOD).ljust(MAX_REPORT + 1)) is None


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "+", "#", "a" * 65, "a\n", "$SYS/x"])
def test_a_stream_name_must_fit_into_a_url_and_a_topic(name):
    with pytest.raises(ValueError, match="stream must be 1 to 64 letters"):
        check_stream_name(name)
