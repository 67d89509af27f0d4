"""Reports over HTTP: the same answer for every report, and errors that repeat nothing."""

from __future__ import annotations

import json
import logging

import pytest

from dpfuse.wire.messages import MAX_BATCH, MAX_BODY
from support.designs import make_design
from support.wire import JSON, Recorder, call, rig

CANARY = 271828.1828


@pytest.fixture
def recorded(tmp_path):
    """With a recorder in the centre's place."""
    with rig(tmp_path, centre=Recorder()) as parts:
        yield parts


def test_reports_reach_the_centre_with_the_id_of_their_token(recorded):
    answer = recorded.send(recorded.report(7, [1.5, -2], step=3), recorded.report(8, [0, 0], "other"))
    assert (answer.status_code, answer.json()) == (202, {"received": 2, "refused": []})
    assert recorded.centre.got == [("main", 7, 3, [1.5, -2]), ("other", 8, 1, [0, 0])]


def test_a_bad_message_does_not_affect_the_others_in_its_batch(recorded):
    good = [recorded.report(sensor) for sensor in range(4)]
    forged = recorded.report(1) | {"token": recorded.tokens.issue(2)[:-1] + "x"}
    batch = [good[0], forged, None, 3, "text", [], {}, good[1], {"token": 5}, good[2] | {"values": "NaN"}, good[3]]
    answer = recorded.send(*batch)
    assert answer.json() == {"received": 4, "refused": [1, 2, 3, 4, 5, 6, 8]}
    assert [sensor for _, sensor, *_ in recorded.centre.got] == [0, 1, 3]


def test_numbers_outside_json_or_double_invalidate_only_their_own_report(recorded):
    texts = [
        json.dumps(recorded.report(sensor)).replace("0.5, -0.5", values)
        for sensor, values in enumerate(["NaN, 1", "1e999, 1", "1, 1", "-Infinity, 1", f"{'9' * 5000}, 1"])
    ]
    answer = recorded.call("POST", "/v1/reports", content=f'{{"reports": [{", ".join(texts)}]}}', headers=JSON)
    assert answer.json() == {"received": 5, "refused": []}
    assert recorded.centre.got[2] == ("main", 2, 1, [1, 1])


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_every_report_with_a_valid_token_gets_the_same_bytes(tmp_path, accounting):
    """In time, late, early, repeated, of an unknown stream, garbage, or from a sensor whose account is spent."""
    options = {"horizon": None, "expected_stay": 1.0} if accounting == "individual" else {}
    with rig(tmp_path, make_design(accounting, spread=1.0, budget=1e-4, **options)) as live:
        for _ in range(4):
            live.send(live.report(5, [1, 1], step=live.centre.now))
            live.tick()
        now = live.centre.now
        kinds = [
            live.report(7, step=now),
            live.report(7, step=now),  # repeated
            live.report(7, [0.1, 0.2], step=now),  # repeated, with other values
            live.report(5, step=now),  # its account is spent
            live.report(8, step=now + 1),
            live.report(8, step=now - 1),
            live.report(8, step=-(2**70)),
            live.report(8, step=2**70),
            live.report(8, stream="nowhere"),
            live.report(8, [CANARY, 1e308], step=now),
            live.report(9, [], step=now),
            live.report(9, [1] * 100, step=now),
            live.report(9, step=now) | {"values": {"a": CANARY}},
            live.report(9, step=now) | {"values": [[[[]]]], "stream": None, "step": "x"},
            {"token": live.tokens.issue(9)},
        ]
        answers = [live.send(report) for report in kinds]
        assert len({(answer.status_code, answer.content, str(answer.headers)) for answer in answers}) == 1
        assert answers[0].json() == {"received": 1, "refused": []}
        live.tick()
        assert [live.send(report).content for report in kinds] == [answers[0].content] * len(kinds)


def test_reports_in_time_count_and_late_ones_do_not(tmp_path, monkeypatch):
    """Without noise, so that the releases show it."""
    monkeypatch.setattr("dpfuse.privacy.release.add_noise", lambda values, noise: values)
    sums = {}
    for name in ("in time", "a step ahead", "late", "nothing"):
        (tmp_path / name).mkdir()
        with rig(tmp_path / name) as live:
            reports = {"in time": (1, 1), "a step ahead": (1, 2), "late": (2, 1)}
            for now in (1, 2, 3):
                if reports.get(name, (0, 0))[0] == now:
                    live.send(live.report(7, [1, 1], step=reports[name][1]))
                live.tick()
            sums[name] = [any(row.to_release().value) for row in live.hub.rows("main")]
    assert sums["in time"] == [True, False, False] and sums["a step ahead"] == [False, True, False]
    assert sums["late"] == sums["nothing"] == [False] * 3


@pytest.fixture(scope="module")
def still(tmp_path_factory):
    """A centre that makes no step."""
    with rig(tmp_path_factory.mktemp("still")) as parts:
        yield parts


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        (
            "POST",
            "/v1/reports",
            {"content": f"{CANARY}", "headers": {"content-type": "text/plain"}},
            415,
            "not_json",
        ),
        ("POST", "/v1/reports", {"content": f"{CANARY}"}, 415, "not_json"),
        ("POST", "/v1/reports", {"content": f'{{"{CANARY}', "headers": JSON}, 400, "not_json"),
        ("POST", "/v1/reports", {"content": b"\xff\xfe", "headers": JSON}, 400, "not_json"),
        ("POST", "/v1/reports", {"content": b"[" * 400_000, "headers": JSON}, 400, "not_json"),
        ("POST", "/v1/reports", {"content": b"", "headers": JSON}, 400, "not_json"),
        ("POST", "/v1/reports", {"json": [CANARY]}, 422, "not_reports"),
        ("POST", "/v1/reports", {"json": {"reports": CANARY}}, 422, "not_reports"),
        ("POST", "/v1/reports", {"json": {"reports": [CANARY] * (MAX_BATCH + 1)}}, 413, "too_many_reports"),
        ("POST", "/v1/reports", {"content": b" " * (MAX_BODY + 1), "headers": JSON}, 413, "too_large"),
        ("GET", f"/v1/streams/{CANARY}/releases", {}, 404, "unknown_stream"),
        ("GET", f"/v1/streams/{CANARY}/releases/events", {}, 404, "unknown_stream"),
        ("GET", f"/v1/streams/main/releases?start={CANARY}", {}, 422, "not_as_described"),
        ("GET", "/v1/streams/main/releases?start=0", {}, 422, "not_as_described"),
        ("GET", f"/v1/streams/main/releases?start={2**63}", {}, 422, "not_as_described"),
        ("GET", "/v1/streams/main/releases?limit=1001", {}, 422, "not_as_described"),
        ("GET", f"/{CANARY}", {}, 404, "not_found"),
        ("GET", "/v1/reports", {}, 405, "method_not_allowed"),
        ("DELETE", "/v1/streams/main/releases", {}, 405, "method_not_allowed"),
        ("POST", "/v1/replay/truth", {"json": {"stream": "main", "step": 1, "state": [CANARY]}}, 404, "not_found"),
        ("GET", "/docs", {}, 404, "not_found"),
        ("GET", "/v1/clock/", {}, 404, "not_found"),
    ],
)
def test_every_error_has_the_same_shape_and_repeats_nothing_that_was_sent(
    still, caplog, method, path, options, status, code
):
    with caplog.at_level(logging.DEBUG, "dpfuse"):
        answer = still.call(method, path, **options)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert list(answer.json()) == ["error"] and set(answer.json()["error"]) == {"code", "message"}
    assert answer.json()["error"]["code"] == code
    shown = f"{answer.text} {answer.headers} {caplog.text}"
    assert str(CANARY) not in shown and "271828" not in shown


def test_an_unexpected_error_is_logged_by_type_and_place_without_its_text(tmp_path, caplog):
    class Broken(Recorder):
        def receive(self, *report):
            raise ValueError(f"cannot use {report}")

    with rig(tmp_path, centre=Broken()) as live:
        answer = live.send(live.report(7, [CANARY, 0]))
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
    assert "ValueError in" in caplog.text
    assert "271828" not in caplog.text + answer.text


def test_openapi_describes_every_path_and_no_page_loads_foreign_scripts(still):
    described = still.get("/openapi.json").json()
    assert {"/v1/reports", "/v1/clock", "/v1/guarantee", "/v1/streams/{stream}/releases"} <= set(described["paths"])
    assert still.get("/redoc").status_code == 404


def test_the_helper_call_raises_what_the_application_raises():
    """Negative control of the helper: an application that raises does not look like one that answers."""

    async def broken(scope, receive, send):
        raise RuntimeError("out")

    with pytest.raises(RuntimeError, match="out"):
        call(broken, "GET", "/")
