"""The page over all shards: how often it asks them, and what it takes from them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from dpfuse.fleet import overview
from support.wire import call

_GOOD = {"health": "ok", "status": "running", "step": 5, "steps_behind": 0, "steps_missing": 0}


def make_map(readers="http://127.0.0.1:1", version=1):
    shards = {name: {"readers": readers, "state": "up", "generation": 1} for name in ("north", "south")}
    return {"version": version, "shards": shards, "streams": {}}


@pytest.fixture
def answers(monkeypatch):
    """Shards that answer `answers.content`; `answers.paths` are what they were asked."""

    class Answers:
        content, status, paths, pulled = json.dumps(_GOOD).encode(), 200, [], 0

        def __call__(self, request):
            self.paths.append(request.url.path)
            return httpx.Response(self.status, content=self._chunks())

        def _chunks(self):
            for at in range(0, len(self.content), 1000):
                self.pulled += 1
                yield self.content[at : at + 1000]

    found = Answers()
    transport = httpx.MockTransport(found)
    monkeypatch.setattr(overview, "make_client", lambda url: httpx.Client(transport=transport, base_url=url))
    found.paths = []
    return found


def test_many_visitors_ask_each_shard_once_a_second(answers, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(overview.time, "monotonic", lambda: now[0])
    published = [make_map()]
    app = overview.make_fleet_app(lambda: published[0])
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda at: call(app, "GET", ("/", "/healthz")[at % 2]).status_code, range(40)))
    assert statuses == [200] * 40 and answers.paths == ["/healthz"] * 2
    now[0] += 0.9
    assert call(app, "GET", "/healthz").json()["ok"] and len(answers.paths) == 2
    now[0] += 0.2
    answers.content = json.dumps(_GOOD | {"health": "late"}).encode()
    assert call(app, "GET", "/healthz").status_code == 503 and len(answers.paths) == 4
    published[0] = make_map(version=2)
    assert "Map version 2" in call(app, "GET", "/").text and len(answers.paths) == 6


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_of_a_shard_is_read_whatever_its_status(answers, status):
    answers.status, answers.content = status, json.dumps(_GOOD | {"health": "late", "more": 1}).encode()
    found = overview.describe_shards(make_map())[0]
    assert (found["health"], found["step"], found["steps_behind"]) == ("late", 5, 0) and "more" not in found


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[" * 2000, b"[]", b"5", *(json.dumps(_GOOD | wrong).encode() for wrong in (
        {"health": "\ud800"}, {"health": "<b>"}, {"health": {}}, {"step": 2**64}, {"step": "5"}, {"step": -1},
        {"steps_behind": None}, {"step": float("nan")}, {"step": True}))],
)  # fmt: skip
def test_what_is_not_the_health_of_a_centre_is_shown_as_no_centre(answers, content):
    answers.content = content
    app = overview.make_fleet_app(make_map)
    health = call(app, "GET", "/healthz")
    assert health.status_code == 503 and {one["health"] for one in health.json()["shards"]} == {"no centre"}
    assert "<td>no centre</td>" in call(app, "GET", "/").text


def test_a_long_answer_is_not_read_to_its_end(answers):
    answers.content = b" " * 10_000_000
    assert {one["health"] for one in overview.describe_shards(make_map())} == {"no centre"}
    assert answers.pulled <= 20
