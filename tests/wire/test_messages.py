"""Reports as sensors send them: what is parsed, and that nothing makes the parsers raise."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.wire.messages import MAX_LENIENT, check_stream_name, parse_report, read_json, token_of

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["token", "stream", "step", "values"]), inner),
    max_leaves=8,
)


def test_a_well_formed_report_is_parsed():
    text = b'{"token": "17.ab", "stream": "main", "step": 42, "values": [103.2, 9]}'
    assert parse_report(read_json(text)) == ("17.ab", "main", 42, [103.2, 9])


@pytest.mark.parametrize(
    "change",
    [{"step": "42"}, {"step": 42.0}, {"step": True}, {"step": None}, {"stream": 3}, {"stream": ["main"]},
     {"values": "103.2"}, {"values": {"0": 1}}, {"values": ["103.2", "9"]}, {"values": [None]}, {"values": [True]},
     {"values": [[1.0], [2.0]]}, {"values": None}],
)  # fmt: skip
def test_a_report_with_a_field_of_another_type_is_not_parsed(change):
    assert parse_report({"token": "17.ab", "stream": "main", "step": 42, "values": [103.2, 9.8]} | change) is None


@given(anything)
def test_no_message_makes_the_parser_raise(message):
    assert isinstance(token_of(message), str)
    assert parse_report(message) is None or isinstance(message, dict)


@given(st.binary() | anything.map(lambda value: json.dumps(value).encode()))
def test_no_text_makes_the_json_reader_raise(text):
    read_json(text)


def test_a_number_outside_double_invalidates_only_its_own_report():
    batch = read_json(b'[{"values": [1e999]}, {"values": [NaN]}, {"values": [%s]}, {"values": [1.5]}]' % (b"9" * 5000))
    assert [report["values"][0] == 1.5 for report in batch] == [False, False, False, True]
    assert not any(math.isfinite(report["values"][0]) for report in batch[:3])
    assert read_json(b"[-9223372036854775808, NaN]")[0] == -(2**63)


def test_only_small_texts_are_read_by_the_slow_parser():
    """It blocks all threads, so a release could be late."""
    for size, is_read in [(MAX_LENIENT, True), (MAX_LENIENT + 1, False)]:
        assert (read_json(b"[NaN]".ljust(size)) is not None) == is_read
        assert read_json(b"[1]".ljust(size)) == [1]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"[1]x", b"[" * 2000 + b"]" * 2000]
)
def test_a_text_that_is_not_json_is_none(text):
    assert read_json(text) is None


def test_deeply_nested_json_is_read_and_is_not_a_report():
    assert parse_report({"token": "", "stream": "", "step": 1, "values": read_json(b"[" * 900 + b"]" * 900)}) is None


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "+", "#", "a" * 65, "a\n", "$SYS/x"])
def test_a_stream_name_must_fit_into_a_url_and_a_topic(name):
    with pytest.raises(ValueError, match="stream must be 1 to 64 letters"):
        check_stream_name(name)
