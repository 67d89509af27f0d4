"""Releases and public facts over HTTP: pages, event streams, clock, guarantee and truth."""

from __future__ import annotations

import itertools
import json
import socket
import time
from contextlib import ExitStack

import httpx
import numpy as np
import pytest

from dpfuse import SensorAttributes
from dpfuse.privacy import gdp_epsilon
from dpfuse.public import events as events_module
from support.designs import make_design
from support.wire import PATIENCE_S, Recorder, events, following, get, rig, serving, wait_for


@pytest.fixture
def live(tmp_path):
    with rig(tmp_path) as parts:
        yield parts


def test_releases_are_the_committed_rows_and_appear_when_published(live):
    live.tick()
    waiting = live.centre.tick()
    assert len(list(live.ledger.rows("main"))) == 2
    assert [release["step"] for release in live.get("/v1/streams/main/releases").json()["releases"]] == [1]
    assert live.get("/v1/streams/main/releases?start=2").json() == {"releases": []}
    live.hub.publish(waiting)
    releases = live.get("/v1/streams/main/releases").json()["releases"]
    assert releases == [json.loads(live.signer.to_message(row).content) for row in live.ledger.rows("main")]


def test_pages_join_to_the_whole_and_memory_and_ledger_give_the_same_bytes(live):
    for _ in range(7):
        live.tick()
    whole = live.get("/v1/streams/main/releases").content
    pages = [live.get(f"/v1/streams/main/releases?start={start}&limit=3").json()["releases"] for start in (1, 4, 7)]
    assert [len(page) for page in pages] == [3, 3, 1]
    assert list(itertools.chain(*pages)) == json.loads(whole)["releases"]
    live.hub._first["main"], live.hub._recent["main"] = 8, live.hub._recent["main"].__class__()  # nothing in memory
    assert live.hub.is_old("main", 1) and live.get("/v1/streams/main/releases").content == whole


@pytest.mark.parametrize("accounting", ["total", "individual"])
def test_answer_sizes_do_not_depend_on_the_sensors(tmp_path, accounting):
    """Whole answers and whole event streams have equal byte counts; the releases differ, by their noise."""
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


def test_the_clock_shows_that_a_finite_design_is_over_and_the_centre_stays_up(tmp_path):
    with rig(tmp_path, make_design("total", horizon=2)) as live:
        assert live.get("/v1/clock").json() == live.watch.clock() | {"status": "running", "spent": []}
        live.tick(), live.tick()
        live.watch.status = "over"
        clock = live.get("/v1/clock").json()
        assert (clock["is_over"], clock["status"], clock["step"]) == (True, "over", 3)
        assert len(live.get("/v1/streams/main/releases").json()["releases"]) == 2
        assert live.send(live.report(7, step=3)).status_code == 202


def test_the_clock_names_streams_whose_total_budget_is_spent(tmp_path):
    with rig(tmp_path, make_design("total", horizon=3), streams=("a", "b")) as live:
        spent = [live.get("/v1/clock").json()["spent"]]
        for _ in range(3):
            live.tick()
            spent.append(live.get("/v1/clock").json()["spent"])
        assert spent == [[], [], [], ["a", "b"]]
        assert all(
            row.budget_left > 0 for row in (live.hub.recent(name)[-1].row for name in ("a", "b"))
        )  # the headroom


def test_the_guarantee_is_given_in_numbers_and_in_words(live, tmp_path):
    statement = live.get("/v1/guarantee").json()
    assert statement["guarantee"] == live.design.guarantee.to_dict()
    assert (statement["streams"], statement["fingerprint"]) == (["main"], live.design.fingerprint)
    assert statement["channels"] == [{"low": -1.0, "high": 1.0}] * 2
    assert "gdp" not in statement["epsilon"] and 5.97 < statement["epsilon"]["zcdp"] < 5.99
    assert any("sensor" in sentence for sentence in statement["in_words"])
    (tmp_path / "finite").mkdir()
    with rig(tmp_path / "finite", make_design("individual"), streams=("a", "b")) as finite:
        epsilon = finite.get("/v1/guarantee").json()["epsilon"]["gdp"]
        assert epsilon == gdp_epsilon(2.0, 1.5, 1e-5, 6 * 2 * 2)


def test_the_guarantee_shows_the_fingerprint_of_the_sensors_attributes(tmp_path):
    (centre := Recorder()).attributes = SensorAttributes(np.array([7, 3]), np.array([[0.7], [0.3]]))
    with rig(tmp_path, centre=centre) as live:
        shown = live.get("/v1/guarantee").json()["attributes"]
    assert shown == SensorAttributes(np.array([3, 7]), np.array([[0.3], [0.7]])).fingerprint and len(shown) == 64


def test_only_a_replay_takes_the_truth(tmp_path):
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
    @pytest.fixture
    def live(self, tmp_path):
        """With at most two subscribers."""
        with rig(tmp_path, max_subscribers=2) as parts:
            yield parts

    def test_events_hold_past_releases_and_then_each_new_one(self, live):
        live.tick(), live.tick()
        with serving(live.app) as address, following(address) as lines:
            assert [event["step"] for event in events(lines, 2)] == [1, 2]
            live.tick()
            assert [event["step"] for event in events(lines, 1)] == [3]
            wanted = live.get("/v1/streams/main/releases?start=3").json()["releases"][0]
            live.tick()
            with following(address, params={"start": 3}) as later:
                assert events(later, 1) == [wanted]

    def test_a_client_that_reconnects_continues_after_its_last_event(self, live):
        for _ in range(4):
            live.tick()
        live.hub.close()
        answer = live.get("/v1/streams/main/releases/events", headers={"last-event-id": "2"})
        assert [line for line in answer.text.splitlines() if line.startswith("id")] == ["id: 3", "id: 4"]
        assert answer.headers["x-accel-buffering"] == "no"  # for a proxy that would collect the stream
        for path in ("releases/events", "feed"):
            answer = live.get(f"/v1/streams/main/{path}", headers={"last-event-id": "0" * 30 + "3"})
            assert [line for line in answer.text.splitlines() if line.startswith("id")] == ["id: 4"]
        for header in ["x", "-1", "٣", "9" * 400]:
            answer = live.get("/v1/streams/main/releases/events", headers={"last-event-id": header.encode()})
            assert answer.status_code == 200

    def test_heartbeats_hold_the_status(self, live, monkeypatch):
        monkeypatch.setattr(events_module, "HEARTBEAT_S", 0.1)
        with serving(live.app) as address:
            start = time.monotonic()
            with following(address) as lines:
                assert [line for line in itertools.islice(lines, 4) if line] == [": running", ": running"]
                assert 0.15 < time.monotonic() - start
                live.watch.status = "over"
                wait_for(lambda: next(lines) == ": over")

    def test_a_subscriber_that_does_not_read_delays_no_other_and_is_disconnected(self, live, monkeypatch):
        """Meanwhile 20,000 releases are published, and another subscriber gets them all."""
        monkeypatch.setattr(events_module, "_SEND_S", 1.0)
        [published] = live.tick()

        def make(step):
            return published._replace(row=published.row._replace(step=step))

        live.hub._history = lambda stream, start: (make(step).row for step in range(start, 20_002))
        with serving(live.app) as address, socket.socket() as stuck:
            host, port = address.removeprefix("http://").split(":")
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect((host, int(port)))
            stuck.sendall(b"GET /v1/streams/main/releases/events HTTP/1.1\r\nHost: x\r\n\r\n")
            with following(address) as lines:
                assert events(lines, 1)[0]["step"] == 1
                wait_for(lambda: not is_admitted(address))
                for first in range(2, 20_002, 500):
                    for step in range(first, first + 500):
                        live.hub.publish([make(step)])
                    assert events(lines, 500)[-1]["step"] == first + 499
                wait_for(lambda: is_admitted(address))  # in place of the one that was disconnected

    def test_the_number_of_subscribers_is_limited(self, live):
        with serving(live.app) as address:
            with following(address), following(address):
                answer = get(f"{address}/v1/streams/main/releases/events")
                assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_subscribers")
                for other in ("streams/main/feed", "relay/events"):  # which have places of their own
                    with httpx.stream("GET", f"{address}/v1/{other}", trust_env=False, timeout=PATIENCE_S) as answer:
                        assert answer.status_code == 200
            wait_for(lambda: is_admitted(address))

    @pytest.mark.parametrize("path", ["streams/main/releases/events", "streams/main/feed", "relay/events"])
    def test_one_address_cannot_take_the_places_of_all_subscribers(self, tmp_path, path):
        def subscribe(client):
            answer = stack.enter_context(client.stream("GET", f"/v1/{path}"))
            return answer.status_code

        with ExitStack() as stack:
            live = stack.enter_context(rig(tmp_path, max_subscribers=3, subscribers_per_address=2))
            address = stack.enter_context(serving(live.app))
            here, elsewhere = (
                stack.enter_context(
                    httpx.Client(base_url=address, timeout=PATIENCE_S, transport=httpx.HTTPTransport(local_address=own))
                )
                for own in ("127.0.0.1", "127.0.0.2")
            )
            with here.stream("GET", f"/v1/{path}"):
                assert [subscribe(here), subscribe(here), subscribe(elsewhere)] == [200, 429, 200]
                assert subscribe(elsewhere) == 429  # all three places are taken
            wait_for(lambda: subscribe(here) == 200)


@pytest.mark.parametrize(
    "path", ["/", "/v1/clock", "/v1/streams/main/releases", "/metrics", "/healthz", "/v1/estimator"]
)
def test_head_is_answered_like_get_without_a_body(live, path):
    live.tick()
    with serving(live.app) as url:
        head, whole = httpx.head(url + path), httpx.get(url + path)
    assert head.status_code == whole.status_code and head.content == b"" and whole.content
    assert head.headers["content-type"] == whole.headers["content-type"]
    if path != "/v1/clock":  # a clock may have another number of digits
        assert head.headers["content-length"] == whole.headers["content-length"]


def test_head_of_an_event_stream_ends_at_once_and_keeps_no_place(tmp_path):
    with rig(tmp_path, max_subscribers=1) as live, serving(live.app) as url:
        for _ in range(3):
            head = httpx.head(f"{url}/v1/streams/main/releases/events", timeout=PATIENCE_S)
            assert head.status_code == 200 and head.headers["content-type"].startswith("text/event-stream")
        assert httpx.head(f"{url}/v1/reports").status_code == 405
        assert httpx.head(f"{url}/v1/nothing").status_code == 404
