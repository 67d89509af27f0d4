"""Messages of any shape over HTTP and MQTT: no crash, no status 5xx, and no measurement in anything public.

In some cases a sensor reports a number that occurs nowhere else, the canary. The tests look for all its spellings in
every answer, header and log line, and afterwards in metrics, page, feed, releases and public rows.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from functools import partial
from urllib.parse import quote

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from dpfuse.ledger import public_rows
from dpfuse.wire.keys import Keys
from dpfuse.wire.mqtt import Bridge
from support.designs import make_design
from support.wire import NDJSON, SECRET, Recorder, make_report, rig

KEYS = Keys.from_secret(SECRET)
CANARIES = (0.2718281828, 271828.1828, -2718281828, 2.718281828e-5, "0.2718281828", "271828.1828")
# Seven or eight digits, with point and comma anywhere, rounded or not; and the bytes of float and double in hex.
_DIGITS = re.compile(r"[.,]?".join("271828") + r"[.,]?(1[.,]?[789]|2(?!\d))")
_BYTES = [np.array(CANARIES[0], kind).tobytes().hex() for kind in ("<f4", ">f4", "<f8", ">f8")]
schemathesis.serializer.alias("application/x-ndjson", "application/json")  # a body of one line
SCALES = [pytest.param(50, id="some"), pytest.param(5000, id="many", marks=pytest.mark.slow)]


def has_canary(text):
    return bool(_DIGITS.search(text)) or any(spelling in text for spelling in _BYTES)


class Lines(logging.Handler):
    """Everything that is logged, at any level, with tracebacks."""

    def __init__(self):
        super().__init__(0)
        self.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


@pytest.fixture
def log(capfd):
    """Returns what was logged or printed so far."""
    lines, root = Lines(), logging.getLogger()
    of_server = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access")]
    for noisy in ("hypothesis", "jax", "jax._src", "asyncio", "httpx", "httpcore"):  # of clients and tests
        logging.getLogger(noisy).setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as patch:
        for logger in (root, *of_server):  # a server that another test started may have set a level of its own
            patch.setattr(logger, "level", logging.DEBUG)
            patch.setattr(logger, "disabled", False)
            if logger is root or not logger.propagate:
                patch.setattr(logger, "handlers", [*logger.handlers, lines])
        logging.getLogger().manager._clear_cache()
        yield lambda: "\n".join([*lines.lines, *capfd.readouterr()])
    logging.getLogger().manager._clear_cache()


@pytest.fixture
def live(tmp_path):
    """A centre after three steps, with the canary in its range; its event streams end, so that tests can read them."""
    with rig(tmp_path, make_design("individual", spread=0.3, horizon=None), replay=False) as parts:
        for _ in range(3):
            parts.tick()
        parts.hub.close()
        yield parts


numbers = st.sampled_from(CANARIES) | st.floats() | st.integers() | st.text(max_size=5) | st.none() | st.booleans()
anything = st.recursive(
    numbers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
key_names = st.sampled_from(["7.1.0", "8.1.0", "7.1.1", "7.2.0", "", "٧.1.0"]) | st.text(max_size=9)
reports = st.fixed_dictionaries(
    {},
    optional={
        "key": key_names | anything,
        "stream": st.sampled_from(["main", "other", ""]) | anything,
        "step": st.integers(0, 9) | anything,
        "values": st.lists(numbers, max_size=3) | anything,
        "mac": st.sampled_from(["0" * 32, "", "ä" * 32]) | anything,
        "more": anything,
    },
)
bodies = st.builds(
    lambda content, cut: content[:cut],
    st.lists((reports | anything).map(json.dumps), max_size=5).map("\n".join) | anything.map(json.dumps) | st.text(),
    st.none() | st.integers(0, 200),
)


def check_answer(answer):
    shown = f"{answer.status_code} {answer.headers} {answer.text}"
    assert answer.status_code < 500, shown
    assert not has_canary(shown), shown
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"code", "message"}


def everything_public(live):
    """Everything public of the centre, as one text."""
    paths = ["/", "/metrics", "/healthz", "/openapi.json", "/v1/clock", "/v1/guarantee", "/v1/streams/main/releases",
             "/v1/streams/main/releases/events", "/v1/streams/main/feed", "/v1/relay/settings",
             "/v1/relay/events"]  # fmt: skip
    answers = [live.get(path) for path in paths]
    assert all(answer.status_code == 200 for answer in answers)
    rows = [f"{row} {row.to_dict()}" for row in public_rows(live.ledger.path)]
    return "\n".join([f"{answer.headers} {answer.text}" for answer in answers] + rows)


def many(max_examples):
    return settings(max_examples=max_examples, suppress_health_check=list(HealthCheck), deadline=None)


@pytest.mark.parametrize("num_cases", SCALES[1:])
def test_requests_made_from_the_openapi_description_leak_nothing(live, log, num_cases):
    """schemathesis makes requests that fit the OpenAPI description, and requests that do not."""
    schemas = [schemathesis.openapi.from_dict(app.openapi()) for app in (live.intake_app, live.reading_app)]
    operations = [found.ok() for schema in schemas for found in schema.get_all_operations()]
    assert {"/v1/reports", "/v1/clock", "/metrics", "/v1/streams/{stream}/feed"} <= {one.path for one in operations}
    num_checked = 0

    def check(case):
        nonlocal num_checked
        options = case.as_transport_kwargs(base_url="http://centre")
        options = {name: value for name, value in options.items() if name in ("params", "json", "data", "headers")}
        if isinstance(options.get("data"), str | bytes):
            options["content"] = options.pop("data")
        answer = live.call(case.method, quote(case.formatted_path, safe="/%"), **options)
        check_answer(answer)
        assert answer.status_code != 500
        assert answer.status_code in {int(status) for status in case.operation.definition.raw["responses"]}
        num_checked += 1

    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for operation in operations:
            share = num_cases // 2 if operation.path == "/v1/reports" else num_cases // 20
            with suppress(Unsatisfiable):  # a path without parameters has no wrong request
                many(max(share // 2, 2))(given(operation.as_strategy(generation_mode=mode))(check))()
    assert num_checked >= num_cases // 4
    assert not has_canary(log())


@pytest.mark.parametrize("num_cases", SCALES)
def test_reports_of_any_shape_over_http_leak_nothing(live, log, num_cases):
    @many(num_cases)
    @given(bodies)
    def check(body):
        check_answer(live.call("POST", "/v1/reports", content=body.encode(errors="replace"), headers=NDJSON))
        if has_canary(body) and live.centre.now < 200:
            live.send(*(live.report(sensor, [CANARIES[0]] * 2, step=live.centre.now) for sensor in (7, 8)))
            live.tick()

    check()
    assert live.centre.now > 10  # the canary was reported in time and in range
    assert not has_canary(everything_public(live))
    assert not has_canary(log())


@pytest.mark.parametrize("num_cases", SCALES)
def test_payloads_of_any_shape_over_mqtt_leak_nothing(live, log, num_cases):
    bridge = Bridge(live.intake, live.hub, live.watch, lambda: [("centre", "password")], "127.0.0.1", 1)
    topics = (
        st.sampled_from(["dpfuse/main/reports/7.1.0", "dpfuse/main/reports/8.1.0", "dpfuse/other/reports/7.1.0"])
        | st.text()
    )

    @many(num_cases)
    @given(
        topics,
        bodies.map(partial(str.encode, errors="replace")) | reports.map(json.dumps).map(str.encode) | st.binary(),
    )
    def check(topic, payload):
        assert bridge.receive(topic, payload) is None

    check()
    for step in (live.centre.now, live.centre.now + 1):
        report = make_report(KEYS, 7, [CANARIES[0]] * 2, step=step)
        bridge.receive("dpfuse/main/reports/7.1.0", json.dumps(report).encode())
        live.tick()
    assert not has_canary(everything_public(live))
    assert not has_canary(log())


class TestNegativeControls:
    @pytest.mark.parametrize("canary", CANARIES)
    def test_every_spelling_of_the_canary_is_found(self, canary):
        number = float(canary)
        spellings = [
            repr(canary),
            str(number),
            f"{number:e}",
            f"{number:.10g}",
            f"{number:.8g}",
            repr(np.float32(number)),
        ]
        for text in [*spellings, json.dumps({"values": [canary]}), repr(np.array([number])), f"{number:,.14f}"]:
            assert has_canary(f"in {text} the middle")
        assert has_canary(np.array(CANARIES[0], "<f8").tobytes().hex())
        assert not has_canary("release 2718 2818 0.27 " + "".join(map(str, range(1000))))

    def test_a_centre_that_logs_a_measurement_is_found(self, tmp_path, log):
        class Talkative(Recorder):
            def receive(self, stream, sensor, step, values):
                logging.getLogger("dpfuse.centre").debug("got %s", values)

        with rig(tmp_path, centre=Talkative()) as live:
            live.send(live.report(7, [CANARIES[0], 0]))
        assert has_canary(log())

    def test_a_logged_traceback_with_a_measurement_is_found(self, log):
        try:
            float(f"{CANARIES[0]} m")
        except ValueError:
            logging.getLogger("uvicorn.error").exception("it failed")
        assert has_canary(log())

    def test_an_answer_with_a_measurement_is_found(self):
        import httpx

        with pytest.raises(AssertionError):
            check_answer(httpx.Response(202, json={"received": [CANARIES[1]]}))
        with pytest.raises(AssertionError):
            check_answer(httpx.Response(500, json={}))
        with pytest.raises(KeyError):
            check_answer(httpx.Response(422, json={"detail": [{"input": 3}]}))
