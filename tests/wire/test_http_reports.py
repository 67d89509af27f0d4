"""Reports over HTTP: the same answer for every report, and errors that repeat nothing."""

from __future__ import annotations

import logging

import pytest

from dpfuse.wire.intake import MAX_REFUSED
from support.designs import make_design
from support.wire import JSON, NDJSON, Recorder, call, rig

CANARY = 271828.1828


@pytest.fixture
def recorded(tmp_path):
    """With a recorder in the centre's place."""
    with rig(tmp_path, centre=Recorder()) as parts:
        yield parts


def test_reports_reach_the_centre_with_the_id_of_their_key(recorded):
    answer = recorded.send(recorded.report(7, [1.5, -2], step=3), recorded.report(8, [0, 0], "other"))
    assert (answer.status_code, answer.json()) == (202, {"received": 2, "refused": []})
    assert recorded.centre.got == [("main", 7, 3, [1.5, -2]), ("other", 8, 1, [0, 0])]


def test_a_bad_message_does_not_affect_the_others_in_its_batch(recorded):
    good = [recorded.report(sensor) for sensor in range(4)]
    forged = recorded.report(1) | {"key": "2.1.0"}
    batch = [good[0], forged, None, 3, "text", [], {}, good[1], {"key": 5}, good[2] | {"values": "NaN"}, good[3]]
    answer = recorded.send(*batch)
    assert answer.json() == {"received": 3, "refused": [1, 2, 3, 4, 5, 6, 8, 9]}
    assert [sensor for _, sensor, *_ in recorded.centre.got] == [0, 1, 3]


def test_an_answer_names_a_bounded_number_of_refused_lines(recorded):
    answer = recorded.send(*[None] * (2 * MAX_REFUSED), recorded.report(7))
    assert answer.json() == {"received": 1, "refused": list(range(MAX_REFUSED))}


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_every_report_with_a_valid_mac_gets_the_same_bytes(tmp_path, accounting):
    """In time, late, early, repeated, of an unknown stream, too many values, or from a sensor with a spent account."""
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
            live.report(8, step=-(2**63)),
            live.report(8, step=2**63 - 1),
            live.report(8, stream="nowhere"),
            live.report(8, [CANARY, 1e308], step=now),
            live.report(9, [], step=now),
            live.report(9, [1] * 100, step=now),
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
            sums[name] = [any(row.to_release().value) for row in live.ledger.rows("main")]
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
            "wrong_type",
        ),
        ("POST", "/v1/reports", {"content": f"{CANARY}"}, 415, "wrong_type"),
        ("POST", "/v1/reports", {"content": f"{CANARY}", "headers": JSON}, 415, "wrong_type"),
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


@pytest.mark.parametrize(
    "body",
    [f'{{"{CANARY}', b"\xff\xfe", b"[" * 400_000, f"[{CANARY}]", f'{{"reports": {CANARY}}}', b" " * 10**6, "NaN"],
)
def test_a_line_that_is_no_report_is_refused_and_repeated_nowhere(still, caplog, body):
    with caplog.at_level(logging.DEBUG, "dpfuse"):
        answer = still.call("POST", "/v1/reports", content=body, headers=NDJSON)
    assert (answer.status_code, answer.json()) == (202, {"received": 0, "refused": [0]})
    assert "271828" not in f"{answer.headers} {caplog.text}"


def test_an_empty_body_has_no_lines(still):
    assert still.call("POST", "/v1/reports", content=b"", headers=NDJSON).json() == {"received": 0, "refused": []}


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"content": f'{{"{CANARY}', "headers": JSON}, 400, "not_json"),
        ({"content": b"", "headers": JSON}, 400, "not_json"),
        ({"content": b"[" * 4000, "headers": JSON}, 400, "not_json"),
        ({"json": [CANARY]}, 422, "not_a_truth"),
        ({"content": b" " * 4097, "headers": JSON}, 413, "too_large"),
        ({"content": f"{CANARY}"}, 415, "wrong_type"),
    ],
)
def test_a_truth_that_is_none_is_refused_and_repeated_nowhere(tmp_path, options, status, code):
    with rig(tmp_path, centre=Recorder(), replay=True) as live:
        answer = live.call("POST", "/v1/replay/truth", **options)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "271828" not in f"{answer.text} {answer.headers}"


def test_an_unexpected_error_is_logged_by_type_and_place_without_its_text(tmp_path, caplog):
    class Broken(Recorder):
        def receive(self, *report):
            raise ValueError(f"cannot use {report}")

    with rig(tmp_path, centre=Broken()) as live:
        answer = live.send(live.report(7, [CANARY, 0]))
    assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
    assert "ValueError in" in caplog.text
    assert "271828" not in caplog.text + answer.text


def test_openapi_describes_every_path_of_intake_and_reading_and_no_page_loads_foreign_scripts(still):
    intake, reading = (
        set(call(app, "GET", "/openapi.json").json()["paths"]) for app in (still.intake_app, still.reading_app)
    )
    assert intake == {"/v1/reports", "/v1/inputs", "/v1/clock"}
    assert {"/v1/clock", "/v1/guarantee", "/v1/streams/{stream}/releases", "/v1/relay/events"} <= reading - {
        "/v1/reports"
    }
    assert still.get("/redoc").status_code == 404


def test_the_helper_call_raises_what_the_application_raises():
    """Negative control of the helper: an application that raises does not look like one that answers."""

    async def broken(scope, receive, send):
        raise RuntimeError("out")

    with pytest.raises(RuntimeError, match="out"):
        call(broken, "GET", "/")
