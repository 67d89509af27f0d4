"""Messages, tokens and the hub: what may be sent, by whom, and what is handed out when."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import stat
import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfuse.errors import FileRefused
from dpfuse.public import hub as hub_module
from dpfuse.public.hub import Hub
from dpfuse.public.rows import Row, release_message
from dpfuse.wire.messages import MAX_LENIENT, check_stream_name, parse_report, read_json, token_of
from dpfuse.wire.tokens import Tokens, new_secret

INT64 = st.integers(-(2**63), 2**63 - 1)
NATURAL = st.integers(0, 2**63 - 1)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["token", "stream", "step", "values"]), inner),
    max_leaves=8,
)


def make_row(stream="main", step=1, release=(3, -4), weight=5, cost=7, left=9):
    content = b"".join(number.to_bytes(8, "little", signed=True) for number in release)
    return Row.after(b"\0" * 32, stream, step, content, weight, cost, left)


class TestReports:
    def test_a_report_is_read(self):
        text = b'{"token": "17.ab", "stream": "main", "step": 42, "values": [103.2, 9]}'
        assert parse_report(read_json(text)) == ("17.ab", "main", 42, [103.2, 9])

    @pytest.mark.parametrize(
        "change",
        [{"step": "42"}, {"step": 42.0}, {"step": True}, {"step": None}, {"stream": 3}, {"stream": ["main"]},
         {"values": "103.2"}, {"values": {"0": 1}}, {"values": ["103.2", "9"]}, {"values": [None]}, {"values": [True]},
         {"values": [[1.0], [2.0]]}, {"values": None}],
    )  # fmt: skip
    def test_what_is_of_another_type_is_none(self, change):
        assert parse_report({"token": "17.ab", "stream": "main", "step": 42, "values": [103.2, 9.8]} | change) is None

    @given(anything)
    def test_nothing_raises(self, message):
        assert isinstance(token_of(message), str)
        assert parse_report(message) is None or isinstance(message, dict)

    @given(st.binary() | anything.map(lambda value: json.dumps(value).encode()))
    def test_no_text_raises(self, text):
        read_json(text)

    def test_a_number_that_no_double_holds_spoils_its_own_report_alone(self):
        batch = read_json(
            b'[{"values": [1e999]}, {"values": [NaN]}, {"values": [%s]}, {"values": [1.5]}]' % (b"9" * 5000)
        )
        assert [report["values"][0] == 1.5 for report in batch] == [False, False, False, True]
        assert not any(math.isfinite(report["values"][0]) for report in batch[:3])
        assert read_json(b"[-9223372036854775808, NaN]")[0] == -(2**63)

    def test_the_slow_reader_is_for_small_texts_alone(self):
        """It holds the interpreter, and a release might wait for it."""
        for size, is_read in [(MAX_LENIENT, True), (MAX_LENIENT + 1, False)]:
            assert (read_json(b"[NaN]".ljust(size)) is not None) == is_read
            assert read_json(b"[1]".ljust(size)) == [1]

    @pytest.mark.parametrize(
        "text", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"[1]x", b"[" * 2000 + b"]" * 2000]
    )
    def test_what_is_not_json_is_none(self, text):
        assert read_json(text) is None

    def test_deep_nesting_that_is_json_is_read_and_is_no_report(self):
        assert (
            parse_report({"token": "", "stream": "", "step": 1, "values": read_json(b"[" * 900 + b"]" * 900)}) is None
        )

    @pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "+", "#", "a" * 65, "a\n", "$SYS/x"])
    def test_a_stream_name_must_fit_address_and_topic(self, name):
        with pytest.raises(ValueError, match="stream must be 1 to 64 letters"):
            check_stream_name(name)


class TestReleases:
    @given(NATURAL, st.tuples(INT64, INT64), NATURAL, NATURAL, NATURAL)
    def test_every_release_of_a_stream_has_one_width_and_holds_the_row(self, step, release, weight, cost, left):
        row = make_row("main", step, release, weight, cost, left)
        text = release_message(row)
        assert len(text) == len(release_message(make_row()))
        read = json.loads(text)
        assert (read["step"], tuple(read["release"]), read["fusion_weight"]) == (step, release, weight)
        assert (read["cost"], read["budget_left"], read["hash"]) == (cost, left, row.hash.hex())
        assert (read["stream"], read["grid"]) == ("main", 2**20)

    def test_in_individual_accounting_cost_and_budget_are_null(self):
        texts = [release_message(make_row(step=step, cost=None, left=None)) for step in (1, 10**12)]
        assert len(set(map(len, texts))) == 1
        assert json.loads(texts[0])["cost"] is None and json.loads(texts[0])["budget_left"] is None

    def test_without_padding_widths_would_differ(self):
        """Negative control."""
        assert len({len(release_message(make_row(step=step)).rstrip()) for step in (1, 10)}) == 2


class TestTokens:
    @pytest.fixture
    def tokens(self):
        return Tokens(b"s" * 32)

    @given(NATURAL)
    def test_a_token_names_its_sensor(self, sensor):
        tokens = Tokens(b"s" * 32)
        assert tokens.sensor_of(tokens.issue(sensor)) == sensor

    def test_a_token_is_the_stated_hmac(self, tokens):
        import hashlib
        import hmac

        expected = hmac.new(b"s" * 32, b"dpfuse sensor 17", hashlib.sha256).hexdigest()
        assert tokens.issue(17) == f"17.{expected}"

    @pytest.mark.parametrize(
        "change",
        [lambda t: "18." + t[3:], lambda t: t[:-1] + ("1" if t[-1] == "0" else "0"), lambda t: "0" + t,
         lambda t: "+" + t,
         lambda t: t.upper(), lambda t: t + "\n", lambda t: " " + t, lambda t: t[3:], lambda t: "", lambda t: "-" + t,
         lambda t: "١٧" + t[2:], lambda t: str(2**63) + t[2:], lambda t: "9" * 5000 + t[2:]],
    )  # fmt: skip
    def test_anything_else_is_nobody(self, tokens, change):
        token = tokens.issue(17)
        assert tokens.sensor_of(token) == 17  # also once it is remembered
        assert tokens.sensor_of(change(token)) is None

    def test_another_secret_has_other_tokens(self, tokens):
        assert tokens.sensor_of(Tokens(b"t" * 32).issue(17)) is None

    @pytest.mark.parametrize("sensor", [-1, 2**63, True, 1.0, "1"])
    def test_only_ids_get_tokens(self, tokens, sensor):
        with pytest.raises(ValueError, match="sensor must be a whole number from 0"):
            tokens.issue(sensor)

    def test_what_is_remembered_is_bounded_and_right(self, tokens, monkeypatch):
        monkeypatch.setattr("dpfuse.wire.tokens._CACHE_SIZE", 3)
        for sensor in range(10):
            assert tokens.sensor_of(tokens.issue(sensor)) == sensor
            tokens.sensor_of(f"{sensor}.{'0' * 64}")
            assert len(tokens._sensors) <= 3
        assert all(token == tokens.issue(sensor) for token, sensor in tokens._sensors.items())

    def test_nothing_shows_the_secret(self, tokens):
        assert repr(tokens) == "Tokens(...)"

    def test_a_secret_is_made_once_and_for_its_owner_alone(self, tmp_path):
        path = tmp_path / "secret"
        new_secret(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        token = Tokens.load(path).issue(1)
        with pytest.raises(FileRefused, match="is there already"):
            new_secret(path)
        assert Tokens.load(path).issue(1) == token

    def test_a_secret_that_others_may_read_or_that_is_none_is_refused(self, tmp_path):
        path = tmp_path / "secret"
        with pytest.raises(FileRefused, match="no secret at .*dpfuse token --new"):
            Tokens.load(path)
        new_secret(path)
        path.chmod(0o640)
        with pytest.raises(FileRefused, match="chmod 600"):
            Tokens.load(path)
        path.chmod(0o600)
        path.write_text("hunter2\n")
        with pytest.raises(FileRefused, match="64 hex digits") as refusal:
            Tokens.load(path)
        assert "hunter2" not in str(refusal.value)


class Ledger:
    """Rows that were committed, published or not."""

    def __init__(self, last=0):
        self.rows = [make_row(step=step) for step in range(1, last + 1)]
        self.reads = 0

    def read(self, stream, start):
        self.reads += 1
        return iter([row for row in self.rows if row.step >= start])

    def commit(self, step):
        self.rows.append(make_row(step=step))
        return SimpleNamespace(row=self.rows[-1], mean=(float(step),), std=(1.0,))


class TestHub:
    @pytest.fixture
    def ledger(self):
        return Ledger(last=3)

    @pytest.fixture
    def hub(self, ledger):
        return Hub({"main": 3}, ledger.read)

    def test_what_was_committed_before_is_there_at_once(self, hub):
        assert [row.step for row in hub.rows("main")] == [1, 2, 3]
        assert hub.last_step("main") == 3 and hub.latest("main").step == 3 and hub.recent("main") == []

    def test_a_committed_row_is_not_shown_before_it_is_published(self, hub, ledger):
        waiting = ledger.commit(4)
        assert [row.step for row in hub.rows("main")] == [1, 2, 3]
        assert hub.rows("main", 4) == [] and hub.latest("main").step == 3
        hub.publish([waiting])
        assert [row.step for row in hub.rows("main")] == [1, 2, 3, 4]
        assert hub.rows("main", 4) == [waiting.row] and hub.recent("main") == [waiting]

    @given(st.lists(st.integers(1, 3), max_size=30), st.integers(1, 80), st.integers(1, 9))
    def test_pages_are_the_ledger_from_memory_or_disk(self, gaps, start, limit):
        """Steps may be skipped; memory holds 16 here, so long runs are read from both places."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hub_module, "_MAX_KEPT", 16)
            ledger = Ledger(last=3)
            hub = Hub({"main": 3}, ledger.read)
            for step in itertools.accumulate(gaps, initial=3):
                if step > 3:
                    hub.publish([ledger.commit(step)])
            assert hub.rows("main", start, limit) == [row for row in ledger.rows if row.step >= start][:limit]
            if hub.recent("main"):
                ledger.reads = 0
                assert hub.rows("main", hub.recent("main")[0].row.step)
                assert ledger.reads == 0

    def test_memory_is_bounded_by_the_number_of_streams(self):
        ledger = Ledger()
        for num_streams, kept in [(1, 4096), (64, 1024), (10_000, 16)]:
            hub = Hub({"main": 0} | {f"s{number}": 0 for number in range(1, num_streams)}, ledger.read)
            for step in range(1, kept + 10):
                hub.publish([SimpleNamespace(row=make_row(step=step), mean=(), std=())])
            assert len(hub.recent("main")) == kept

    def test_a_thread_that_waits_is_woken(self, hub, ledger):
        number = hub.number
        threading.Timer(0.05, lambda: hub.publish([ledger.commit(4)])).start()
        start = time.monotonic()
        hub.wait(number, 120)
        assert time.monotonic() - start < 60 and hub.last_step("main") == 4
        hub.wait(number, 120)  # it was published already
        hub.wait(hub.number, 0.01)  # nothing comes

    def test_event_loops_that_wait_are_woken_and_nobody_else_is_held_up(self, hub, ledger):
        async def follow():
            number = hub.number
            threading.Timer(0.05, lambda: hub.publish([ledger.commit(4)])).start()
            start = time.monotonic()
            await asyncio.gather(*(hub.wait_async(number, 120) for _ in range(100)))
            await hub.wait_async(number, 120)
            assert time.monotonic() - start < 60
            await hub.wait_async(hub.number, 0.02)
            assert hub._waiting == {}

        asyncio.run(follow())
        assert hub.last_step("main") == 4
        hub.publish([ledger.commit(5)])  # the loop is closed

    def test_closing_wakes_everybody(self, hub):
        number = hub.number
        threading.Timer(0.05, hub.close).start()
        start = time.monotonic()
        hub.wait(number, 120)
        assert hub.is_closed
        asyncio.run(hub.wait_async(hub.number, 120))
        assert time.monotonic() - start < 60
