"""The centre over HTTP: the same answer for every report, nothing before its time, limits, and nobody held up."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import resource
import signal
import socket
import ssl
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import numpy as np
import pytest

from dpfuse.ledger import Ledger, public_rows
from dpfuse.privacy import gdp_epsilon
from dpfuse.public import events as events_module
from dpfuse.wire import connections, intake
from dpfuse.wire import http as http_module
from dpfuse.wire.messages import MAX_BATCH, MAX_BODY
from dpfuse.wire.serve import Endpoints, _address, _bind
from dpfuse.wire.tokens import Tokens, new_secret
from support.designs import make_design
from support.timing import can_be_told_apart, in_pairs
from support.wire import (
    JSON,
    PATIENCE_S,
    Recorder,
    address_of,
    call,
    certify,
    command,
    events,
    following,
    make_report,
    rig,
    serving,
    wait_for,
)

CANARY = 271828.1828


@pytest.fixture
def live(tmp_path):
    with rig(tmp_path) as parts:
        yield parts


@pytest.fixture
def recorded(tmp_path):
    """With a recorder in the centre's place."""
    with rig(tmp_path, centre=Recorder()) as parts:
        yield parts


class TestReports:
    def test_reports_reach_the_centre_with_the_id_of_their_token(self, recorded):
        answer = recorded.send(recorded.report(7, [1.5, -2], step=3), recorded.report(8, [0, 0], "other"))
        assert (answer.status_code, answer.json()) == (202, {"received": 2, "refused": []})
        assert recorded.centre.got == [("main", 7, 3, [1.5, -2]), ("other", 8, 1, [0, 0])]

    def test_one_bad_message_costs_no_other_in_its_batch(self, recorded):
        good = [recorded.report(sensor) for sensor in range(4)]
        forged = recorded.report(1) | {"token": recorded.tokens.issue(2)[:-1] + "x"}
        batch = [good[0], forged, None, 3, "text", [], {}, good[1], {"token": 5}, good[2] | {"values": "NaN"}, good[3]]
        answer = recorded.send(*batch)
        assert answer.json() == {"received": 4, "refused": [1, 2, 3, 4, 5, 6, 8]}
        assert [sensor for _, sensor, *_ in recorded.centre.got] == [0, 1, 3]

    def test_numbers_that_json_or_doubles_do_not_know_cost_their_own_report_alone(self, recorded):
        texts = [
            json.dumps(recorded.report(sensor)).replace("0.5, -0.5", values)
            for sensor, values in enumerate(["NaN, 1", "1e999, 1", "1, 1", "-Infinity, 1", f"{'9' * 5000}, 1"])
        ]
        answer = recorded.call("POST", "/v1/reports", content=f'{{"reports": [{", ".join(texts)}]}}', headers=JSON)
        assert answer.json() == {"received": 5, "refused": []}
        assert recorded.centre.got[2] == ("main", 2, 1, [1, 1])

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_every_report_with_a_right_token_gets_the_same_bytes(self, tmp_path, accounting):
        """Whatever the centre knows: in time, late, early, double, unknown, garbage, or of a sensor that is spent."""
        options = {"horizon": None, "expected_stay": 1.0} if accounting == "individual" else {}
        with rig(tmp_path, make_design(accounting, spread=1.0, budget=1e-4, **options)) as live:
            for _ in range(4):
                live.send(live.report(5, [1, 1], step=live.centre.now))
                live.tick()
            now = live.centre.now
            kinds = [
                live.report(7, step=now),
                live.report(7, step=now),  # double
                live.report(7, [0.1, 0.2], step=now),  # double, and another
                live.report(5, step=now),  # has spent its account
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

    def test_what_is_sent_in_time_counts_and_what_is_late_does_not(self, tmp_path, monkeypatch):
        """Without noise, to see it."""
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


class TestErrors:
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
    def test_every_error_has_one_shape_and_echoes_nothing(self, live, caplog, method, path, options, status, code):
        with caplog.at_level(logging.DEBUG, "dpfuse"):
            answer = live.call(method, path, **options)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"] and set(answer.json()["error"]) == {"code", "message"}
        assert answer.json()["error"]["code"] == code
        shown = f"{answer.text} {answer.headers} {caplog.text}"
        assert str(CANARY) not in shown and "271828" not in shown

    def test_an_error_of_our_own_is_told_by_its_type_alone(self, tmp_path, caplog):
        class Broken(Recorder):
            def receive(self, *report):
                raise ValueError(f"cannot use {report}")

        with rig(tmp_path, centre=Broken()) as live:
            answer = live.send(live.report(7, [CANARY, 0]))
        assert answer.status_code == 500 and answer.json()["error"]["code"] == "internal"
        assert "ValueError in" in caplog.text
        assert "271828" not in caplog.text + answer.text

    def test_the_description_has_every_path_and_no_page_that_loads_from_elsewhere(self, live):
        described = live.get("/openapi.json").json()
        assert {"/v1/reports", "/v1/clock", "/v1/guarantee", "/v1/streams/{stream}/releases"} <= set(described["paths"])
        assert live.get("/redoc").status_code == 404


class TestReleases:
    def test_releases_are_the_committed_rows_and_come_when_they_are_published(self, live):
        live.tick()
        waiting = live.centre.tick()
        assert len(list(live.ledger.rows("main"))) == 2
        assert [release["step"] for release in live.get("/v1/streams/main/releases").json()["releases"]] == [1]
        assert live.get("/v1/streams/main/releases?start=2").json() == {"releases": []}
        live.hub.publish(waiting)
        releases = live.get("/v1/streams/main/releases").json()["releases"]
        rows = [row.to_dict() for row in live.ledger.rows("main")]
        assert releases == rows

    def test_pages_add_up_and_memory_and_disk_give_the_same_bytes(self, live):
        for _ in range(7):
            live.tick()
        whole = live.get("/v1/streams/main/releases").content
        pages = [live.get(f"/v1/streams/main/releases?start={start}&limit=3").json()["releases"] for start in (1, 4, 7)]
        assert [len(page) for page in pages] == [3, 3, 1]
        assert list(itertools.chain(*pages)) == json.loads(whole)["releases"]
        live.hub._first["main"], live.hub._recent["main"] = 8, live.hub._recent["main"].__class__()  # all forgotten
        assert live.hub.is_old("main", 1) and live.get("/v1/streams/main/releases").content == whole

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_sizes_are_equal_in_two_runs_that_differ_in_one_sensor(self, tmp_path, accounting):
        """Whole answers and whole event streams, byte counts; the releases themselves differ, by their noise."""
        sizes, contents = [], []
        for name, sensors in [("one", range(5)), ("two", range(6)), ("nobody", [])]:
            (tmp_path / name).mkdir()
            with rig(tmp_path / name, make_design(accounting, spread=1.0)) as live:
                for step in range(1, 6):
                    live.send(*(live.report(sensor, [1, sensor / 5], step=step) for sensor in sensors))
                    live.tick()
                answer = live.get("/v1/streams/main/releases")
                live.hub.close()
                frames = live.get("/v1/streams/main/releases/events")
                sizes.append((len(answer.content), len(frames.content), len(str(answer.headers))))
                contents.append(answer.content)
        assert len(set(sizes)) == 1 and len(set(contents)) == 3

    def test_the_clock_says_when_a_design_is_over_and_the_centre_stays_up(self, tmp_path):
        with rig(tmp_path, make_design("total", horizon=2)) as live:
            assert live.get("/v1/clock").json() == live.watch.clock() | {"status": "running", "spent": []}
            live.tick(), live.tick()
            live.watch.status = "over"
            clock = live.get("/v1/clock").json()
            assert (clock["is_over"], clock["status"], clock["step"]) == (True, "over", 3)
            assert len(live.get("/v1/streams/main/releases").json()["releases"]) == 2
            assert live.send(live.report(7, step=3)).status_code == 202

    def test_the_clock_names_streams_whose_total_budget_is_spent(self, tmp_path):
        with rig(tmp_path, make_design("total", horizon=3), streams=("a", "b")) as live:
            spent = [live.get("/v1/clock").json()["spent"]]
            for _ in range(3):
                live.tick()
                spent.append(live.get("/v1/clock").json()["spent"])
            assert spent == [[], [], [], ["a", "b"]]
            assert all(row.budget_left > 0 for row in map(live.hub.latest, ("a", "b")))  # the headroom

    def test_the_guarantee_is_in_numbers_and_words(self, live, tmp_path):
        promise = live.get("/v1/guarantee").json()
        assert promise["guarantee"] == live.design.guarantee.to_dict()
        assert (promise["streams"], promise["fingerprint"]) == (["main"], live.design.fingerprint)
        assert promise["channels"] == [{"low": -1.0, "high": 1.0}] * 2
        assert "gdp" not in promise["epsilon"] and 5.97 < promise["epsilon"]["zcdp"] < 5.99
        assert any("sensor" in sentence for sentence in promise["in_words"])
        (tmp_path / "finite").mkdir()
        with rig(tmp_path / "finite", make_design("individual"), streams=("a", "b")) as finite:
            epsilon = finite.get("/v1/guarantee").json()["epsilon"]["gdp"]
            assert epsilon == gdp_epsilon(2.0, 1.5, 1e-5, 6 * 2 * 2)

    def test_the_truth_is_told_in_a_replay_alone(self, tmp_path):
        with rig(tmp_path, replay=True) as live:
            truth = {"stream": "main", "step": 1, "state": [3.5]}
            assert live.call("POST", "/v1/replay/truth", json=truth).status_code == 202
            for wrong in [{}, truth | {"state": "x"}, truth | {"step": "1"}, truth | {"state": [1] * 65}]:
                assert live.call("POST", "/v1/replay/truth", json=wrong).status_code == 422
            live.send(live.report(1), live.report(2), live.report(3, stream="nowhere"))
            live.tick()
            live.hub.close()
            feed = live.get("/v1/streams/main/feed").text
            [point] = [json.loads(line[6:]) for line in feed.splitlines() if '"truth"' in line]
            assert (point["truth"], point["reports"]) == ([3.5], 2)


def is_admitted(address):
    path = f"{address}/v1/streams/main/releases/events"
    with httpx.stream("GET", path, trust_env=False, timeout=PATIENCE_S) as answer:
        return answer.status_code == 200


class TestEvents:
    def test_releases_come_from_the_start_and_then_as_they_are_published(self, live):
        live.tick(), live.tick()
        with serving(live.app) as address, following(address) as lines:
            assert [event["step"] for event in events(lines, 2)] == [1, 2]
            live.tick()
            assert [event["step"] for event in events(lines, 1)] == [3]
            wanted = live.get("/v1/streams/main/releases?start=3").json()["releases"][0]
            live.tick()
            with following(address, params={"start": 3}) as later:
                assert events(later, 1) == [wanted]

    def test_who_comes_back_goes_on_after_the_last_event(self, live):
        for _ in range(4):
            live.tick()
        live.hub.close()
        answer = live.get("/v1/streams/main/releases/events", headers={"last-event-id": "2"})
        assert [line for line in answer.text.splitlines() if line.startswith("id")] == ["id: 3", "id: 4"]
        for path in ("releases/events", "feed"):
            answer = live.get(f"/v1/streams/main/{path}", headers={"last-event-id": "0" * 30 + "3"})
            assert [line for line in answer.text.splitlines() if line.startswith("id")] == ["id: 4"]
        for header in ["x", "-1", "٣", "9" * 400]:
            answer = live.get("/v1/streams/main/releases/events", headers={"last-event-id": header.encode()})
            assert answer.status_code == 200

    def test_heartbeats_tell_the_state_by_the_clock(self, live, monkeypatch):
        monkeypatch.setattr(events_module, "HEARTBEAT_S", 0.1)
        with serving(live.app) as address:
            start = time.monotonic()
            with following(address) as lines:
                assert [line for line in itertools.islice(lines, 4) if line] == [": running", ": running"]
                assert 0.15 < time.monotonic() - start
                live.watch.status = "over"
                wait_for(lambda: next(lines) == ": over")

    @pytest.fixture
    def live(self, tmp_path):
        """With seats for two."""
        with rig(tmp_path, max_subscribers=2) as parts:
            yield parts

    def test_a_reader_that_does_not_read_holds_up_nobody_and_is_let_go(self, live, monkeypatch):
        """With it there, 40,000 releases leave, and another reader has them all."""
        monkeypatch.setattr(events_module, "_SEND_S", 1.0)
        [published] = live.tick()

        def make(step):
            return published._replace(row=published.row._replace(step=step))

        live.hub._history = lambda stream, start: (make(step).row for step in range(start, 40_002))
        with serving(live.app) as address, socket.socket() as stuck:
            host, port = address.removeprefix("http://").split(":")
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect((host, int(port)))
            stuck.sendall(b"GET /v1/streams/main/releases/events HTTP/1.1\r\nHost: x\r\n\r\n")
            with following(address) as lines:
                assert events(lines, 1)[0]["step"] == 1
                wait_for(lambda: not is_admitted(address))
                for first in range(2, 40_002, 500):
                    for step in range(first, first + 500):
                        live.hub.publish([make(step)])
                    assert events(lines, 500)[-1]["step"] == first + 499
                wait_for(lambda: is_admitted(address))  # in the place of the one that was let go

    def test_subscribers_are_limited(self, live):
        with serving(live.app) as address:
            with following(address), following(address):
                answer = get(f"{address}/v1/streams/main/releases/events")
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_subscribers")
            wait_for(lambda: is_admitted(address))


class TestClients:
    def test_an_endless_body_is_cut_off(self, recorded):
        sent = []

        def endless():
            while True:
                sent.append(1)
                yield b" " * 65536

        with serving(recorded.app) as address:
            try:
                answer = httpx.post(f"{address}/v1/reports", content=endless(), headers=JSON, trust_env=False)
                assert answer.status_code == 413
            except httpx.TransportError:
                pass  # cut off in the middle of a write
            assert len(sent) < 200

    def test_a_body_that_trickles_is_cut_off(self, recorded, monkeypatch):
        monkeypatch.setattr(http_module, "_BODY_S", 0.3)
        with serving(recorded.app) as address:
            with unfinished(address) as slow:
                assert b"408" in slow.recv(4096).split(b"\r\n")[0]

    def test_headers_without_end_are_refused(self, recorded):
        with serving(recorded.app) as address:
            host, port = address.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as long:
                with suppress(ConnectionError):  # it may be refused before all of it is sent
                    long.sendall(b"GET /v1/clock HTTP/1.1\r\n" + b"X-Long: " + b"a" * 200_000)
                assert b"400" in long.recv(4096).split(b"\r\n")[0]

    def test_connections_are_limited_before_the_system_runs_out_of_them(self, live, monkeypatch):
        """Those above the limit are told so, those far above are cut off, and silent ones make room in the end."""
        protocol = connections.limited_protocol(
            connections.ConnectionLimits(num_served=3, num_accepted=5), http_module.too_busy
        )
        with serving(live.app, http=protocol) as address, ExitStack() as stack:
            host, port = address.removeprefix("http://").split(":")

            def connect():
                return stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))

            def status():
                with suppress(httpx.TransportError):
                    return get(f"{address}/v1/clock").status_code

            silent = [connect() for _ in range(4)]
            answer = get(f"{address}/v1/clock")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_busy")
            silent.append(connect())
            with pytest.raises(httpx.TransportError):
                get(f"{address}/v1/clock")
            stack.close()
            wait_for(lambda: status() == 200)
            monkeypatch.setattr(connections, "_REQUEST_S", 0.3)
            silent = [connect() for _ in range(4)]
            assert [one.recv(1) for one in silent] == [b""] * 4
            wait_for(lambda: status() == 200)

    @pytest.mark.parametrize("limits", [(100, 1024), (256, 300), (1024, 2**20), (1024, resource.RLIM_INFINITY)])
    def test_there_is_room_for_subscribers_and_for_others_whatever_the_limit(self, monkeypatch, limits):
        now = list(limits)
        monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(now))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: now.__setitem__(slice(None), limits))
        limits_now = connections.raise_limits()
        assert now[0] == (limits[1] if limits[1] in (1024, 300) else 65536) and now[1] == limits[1]
        assert 0 < 2 * limits_now.max_subscribers < limits_now.num_served < limits_now.num_accepted
        assert limits_now.num_accepted + connections.BACKLOG < now[0] or now[0] == 300

    def test_a_system_without_files_is_told_of_once_a_minute(self, caplog):
        logger = logging.getLogger("test.seldom")
        logger.addFilter(connections.LogSeldom())
        for _ in range(5):
            logger.error("socket.accept() out of system resource\nsocket: %s", "x", exc_info=OSError(24, "too many"))
        logger.error("Exception in callback BaseSelectorEventLoop._start_serving(...)")
        logger.error("something else")
        assert [record.message for record in caplog.records] == [
            "no open files left: new connections wait",
            "something else",
        ]
        assert "Traceback" not in caplog.text and "OSError" not in caplog.text

    def test_many_clients_at_once_lose_nothing(self, recorded):
        def send(client_number, address):
            with httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
                for step in range(5):
                    batch = [make_report(recorded.tokens, 1000 * client_number + i, step=step) for i in range(50)]
                    assert client.post(f"{address}/v1/reports", json={"reports": batch}).json()["received"] == 50

        with serving(recorded.app) as address:
            threads = [threading.Thread(target=send, args=(number, address)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert (
            len(set((sensor, step) for _, sensor, step, _ in recorded.centre.got)) == len(recorded.centre.got) == 1000
        )

    def test_a_large_batch_leaves_room_for_other_requests(self, tmp_path):
        class Slow(Recorder):
            def receive(self, *report):
                super().receive(*report)
                time.sleep(0.0001)

        with rig(tmp_path, centre=Slow()) as live:
            batch = {"reports": [live.report(sensor) for sensor in range(MAX_BATCH)]}

            async def both():
                transport = httpx.ASGITransport(live.app)
                async with httpx.AsyncClient(transport=transport, base_url="http://centre") as client:
                    sending = asyncio.ensure_future(client.post("/v1/reports", json=batch))
                    while not live.centre.got:
                        await asyncio.sleep(0)
                    assert (await client.get("/v1/clock")).status_code == 200
                    num_taken = len(live.centre.got)
                    assert (await sending).status_code == 202
                    return num_taken

            assert 0 < asyncio.run(both()) < MAX_BATCH

    @pytest.mark.parametrize(("due_in_s", "waits_s"), [(0.002, 0.005), (0.0, 0.003), (0.004, 0), (0.19, 0)])
    def test_no_report_is_taken_around_the_moment_of_a_release(self, recorded, monkeypatch, due_in_s, waits_s):
        """Before the body is read, and before each part of a batch, the intake waits until the release has left."""
        waited = []

        async def sleep(seconds):
            waited.append((pytest.approx(seconds), len(recorded.centre.got)))

        closes_in_s = (due_in_s - 0.1) % 0.2
        monkeypatch.setattr(intake.asyncio, "sleep", sleep)
        recorded.watch.clock = lambda: {"closes_in_s": closes_in_s, "delay_s": 0.1, "interval_s": 0.2}
        recorded.send(*(recorded.report(sensor) for sensor in range(intake._PART_SIZE + 1)))
        assert waited == [(waits_s, 0), (waits_s, 0), (waits_s, intake._PART_SIZE)]


@pytest.fixture(scope="module")
def place(tmp_path_factory, pytestconfig):
    """A folder with a secret and two designs, and a cache of compiled programs."""
    folder = tmp_path_factory.mktemp("serve")
    new_secret(folder / "secret")
    make_design("individual", spread=0.3, horizon=None, expected_stay=4.0).save(folder / "endless.dpfuse")
    make_design("total", horizon=3).save(folder / "finite.dpfuse")
    return folder, pytestconfig.cache.mkdir("jax")


def serve(place, design, *options, ledger="ledger.db", first=""):
    folder, cache = place
    arguments = ("--design", folder / design, "--ledger", ledger, "--secret", folder / "secret", "--port", 0)
    new = () if (folder / ledger).exists() else ("--new",)
    return command("serve", *arguments, *new, *options, folder=folder, cache=cache, first=first)


def get(address):
    return httpx.get(address, trust_env=False, timeout=PATIENCE_S)


@contextmanager
def unfinished(address):
    """A request whose body is still to come."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as slow:
        slow.sendall(b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 100\r\n\r\n{")
        yield slow


class TestServe:
    def test_from_reports_to_releases_and_out_at_sigterm(self, place):
        tokens = Tokens.load(place[0] / "secret")
        patient = "from dpfuse.wire import http; http._BODY_S = 600"
        with serve(place, "endless.dpfuse", "--interval", 0.1, first=patient) as running:
            address = address_of(running)
            assert address.startswith("http://127.0.0.1:")
            clock = get(f"{address}/v1/clock").json()
            report = make_report(tokens, 7, [0.123456, CANARY], step=clock["step"] + 1)
            answer = httpx.post(
                f"{address}/v1/reports", json={"reports": [report]}, trust_env=False, timeout=PATIENCE_S
            )
            assert answer.json() == {"received": 1, "refused": []}
            with following(address) as lines, unfinished(address) as open_request:
                told = [event["step"] for event in events(lines, 5)]
                running.process.send_signal(signal.SIGTERM)
                told += [json.loads(line[6:])["step"] for line in lines if line.startswith("data: ")]
                answer = open_request.makefile("rb").read()
                assert running.process.wait(PATIENCE_S) == 0
            assert told == [row.step for row in public_rows(place[0] / "ledger.db")]  # all that was committed
            assert answer.startswith(b"HTTP/1.1 503") and b'"code":"stopping"' in answer
            assert running.stdout() == f"{address}\n" and running.stderr() == ""

    @pytest.mark.slow
    def test_a_restart_hands_out_the_same_bytes_and_a_second_centre_is_refused(self, place):
        kept = []
        for _ in range(2):
            with serve(place, "endless.dpfuse", "--interval", 0.1, ledger="restart.db") as running:
                with following(address_of(running)) as lines:
                    found = events(lines, len(kept) + 5)
                assert found[: len(kept)] == kept
                assert [event["step"] for event in found] == sorted({event["step"] for event in found})
                kept = found
                with serve(place, "endless.dpfuse", ledger="restart.db") as second:
                    assert second.process.wait(PATIENCE_S) == 1
                    assert "restart.db" in second.stderr() and second.stdout() == ""
                running.process.kill()

    @pytest.mark.slow
    def test_a_finite_design_ends_and_the_server_stays(self, place):
        with serve(place, "finite.dpfuse", "--interval", 0.05, ledger="finite.db") as running:
            address = address_of(running)
            wait_for(lambda: get(f"{address}/v1/clock").json()["status"] == "over")
            assert get(f"{address}/v1/clock").json()["is_over"]
            steps = [release["step"] for release in get(f"{address}/v1/streams/main/releases").json()["releases"]]
            assert steps == [row.step for row in public_rows(place[0] / "finite.db")] and set(steps) <= {1, 2, 3}
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(PATIENCE_S) == 0

    @pytest.mark.slow
    def test_a_ledger_that_fails_stops_it_with_a_message(self, place):
        import apsw

        with serve(place, "endless.dpfuse", "--interval", 0.1, ledger="failing.db") as running:
            address_of(running)
            intruder = apsw.Connection(str(place[0] / "failing.db"))
            intruder.set_busy_timeout(60_000)
            intruder.execute("BEGIN IMMEDIATE")  # and never lets go: the writer waits two seconds, then gives up
            assert running.process.wait(PATIENCE_S) == 1
            intruder.close()
            assert "failing.db is locked by another program" in running.stderr()
            assert running.stderr().startswith("dpfuse: ") and running.stderr().count("\n") == 1

    @pytest.mark.slow
    def test_it_speaks_tls_and_nothing_else_then(self, place):
        certificate = certify(place[0], "server")
        options = ("--tls-cert", "server.crt", "--tls-key", "server.key")
        with serve(place, "endless.dpfuse", *options, ledger="tls.db") as running:
            address = address_of(running)
            assert address.startswith("https://127.0.0.1:")
            trusted = ssl.create_default_context(cafile=certificate)
            assert (
                httpx.get(f"{address}/v1/clock", verify=trusted, trust_env=False, timeout=PATIENCE_S).status_code == 200
            )
            with pytest.raises(httpx.ConnectError):
                get(f"{address}/v1/clock")
            with pytest.raises(httpx.TransportError):
                get(f"{address}/v1/clock".replace("https", "http"))

    def test_an_address_that_others_can_listen_in_to_is_warned_of(self, caplog):
        assert _address(Endpoints("::1"), 8765) == "http://[::1]:8765" and caplog.text == ""
        assert (
            _address(Endpoints("0.0.0.0"), 80) == "http://0.0.0.0:80" and "cross the network unencrypted" in caplog.text
        )

    @pytest.mark.parametrize(
        ("options", "code", "message"),
        [
            (("--ledger", "nowhere/ledger.db"), 1, "nowhere"),
            (("--stream", "a/b"), 2, "stream must be 1 to 64 letters"),
            (("--interval", "0"), 2, "interval_s must be finite and > 0"),
            (("--mqtt", "broker"), 2, "mqtt must be HOST:PORT"),
            (("--tls-cert", "x"), 2, "--tls-key"),
            (("--secret", "nowhere"), 1, "no secret at nowhere"),
            (("--design", "nowhere"), 1, "no design file at nowhere"),
        ],
    )
    def test_misuse_is_one_line(self, place, monkeypatch, capsys, options, code, message):
        from dpfuse import cli

        monkeypatch.chdir(place[0])
        arguments = ("--design", "endless.dpfuse", "--ledger", "new.db", "--new", "--secret", "secret", "--port", "0")
        monkeypatch.setattr("sys.argv", ["dpfuse", "serve", *arguments, *options])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        shown = capsys.readouterr()
        assert stop.value.code == code and message in shown.err and shown.out == ""

    def test_a_lost_ledger_is_not_replaced(self, place, tmp_path, monkeypatch, capsys):
        """Nor is one that is there by a new one; both say what to do."""
        from dpfuse import cli
        from dpfuse.policy import load

        def refusal(*options):
            path = tmp_path / "road.db"
            arguments = ("--design", place[0] / "endless.dpfuse", "--ledger", path, "--secret", place[0] / "secret")
            monkeypatch.setattr("sys.argv", ["dpfuse", "serve", *map(str, arguments), "--port", "0", *options])
            with pytest.raises(SystemExit) as stop:
                cli.main()
            assert stop.value.code == 1
            return capsys.readouterr().err

        missing = refusal()
        assert "road.db is missing; a new ledger never replaces one that may be lost: put the ledger back" in missing
        assert "dpfuse ledger create" in missing and "dpfuse serve --new" in missing
        assert not list(tmp_path.iterdir())
        Ledger.create(tmp_path / "road.db", load(place[0] / "endless.dpfuse")).close()
        assert "is there already; open it, or choose another name" in refusal("--new")


# A centre as it must not be: it works when a step is over, 0.2 ms for each sensor, and publishes when it is done.
AT_ONCE = """
import time
from dpfuse.policy.exact import ExactStep
from dpfuse.centre.centre import FusionCentre
from dpfuse.centre.clock import Ticker
propose = ExactStep.propose
ExactStep.propose = lambda self, carry, stream, ids, *rest: (
    time.sleep(2e-4 * len(ids)) or propose(self, carry, stream, ids, *rest)
)
Ticker._publish_at = lambda self, moment, due: self._publish(due) or []
FusionCentre.work_ahead = lambda self: None
"""


def arrivals(place, num_more, num_pairs, seed, first=""):
    """When releases arrive over the wire, in so many pairs of steps; in one of each more sensors reported over HTTP.

    In which is a coin's choice. Times are counted from the step's own, but for a constant.
    """
    coin, tokens, interval_s = np.random.default_rng(seed), Tokens.load(place[0] / "secret"), 0.06
    crowd = [make_report(tokens, sensor) for sensor in range(64 + num_more)]
    arrived, has_more, step = {}, {}, 0

    def in_time():
        usual = np.median(list(arrived.copy().values()) or [0.0])
        return in_pairs(arrived, has_more, usual + 0.75 * interval_s)

    options = ("--interval", interval_s, "--delay", 0.055)
    with serve(place, "endless.dpfuse", *options, ledger=f"times-{seed}.db", first=first) as running:
        address = address_of(running)

        def listen():
            with following(address) as lines, suppress(httpx.TransportError):
                for event in iter(lambda: events(lines, 1)[0]["step"], None):
                    arrived[event] = time.monotonic() - interval_s * event

        threading.Thread(target=listen, daemon=True).start()
        with httpx.Client(base_url=address, trust_env=False, timeout=PATIENCE_S) as client:
            for _ in range(20):  # warm
                client.post("/v1/reports", json={"reports": crowd})
            while len(pairs := in_time()) < num_pairs:
                assert len(has_more) < 10 * num_pairs
                step = max(step + 2, client.get("/v1/clock").json()["step"])
                has_more[step] = is_fuller = int(coin.integers(2))
                for number, is_full in ((step, is_fuller), (step + 1, not is_fuller)):
                    while (clock := client.get("/v1/clock").json())["step"] < number:
                        time.sleep(min(clock["closes_in_s"], 0.02))
                    batch = [report | {"step": number} for report in crowd[: len(crowd) if is_full else 64]]
                    client.post("/v1/reports", json={"reports": batch})
        running.process.kill()
    return pairs


@pytest.mark.slow
def test_one_sensor_more_cannot_be_told_from_when_releases_arrive(place):
    """One false alarm in a million. In the control a hundred more can be told: they take 20 ms."""
    assert not can_be_told_apart(arrivals(place, 1, 250, seed=1))
    assert can_be_told_apart(arrivals(place, 100, 250, seed=2, first=AT_ONCE))


def test_call_raises_what_leaves_the_application():
    """Negative control of the helper: an application that raises does not look like one that answers."""

    async def broken(scope, receive, send):
        raise RuntimeError("out")

    with pytest.raises(RuntimeError, match="out"):
        call(broken, "GET", "/")


def test_answers_leave_at_once():
    """A listening socket whose connections do not wait for acknowledgements, and drop peers that give none."""
    with _bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
