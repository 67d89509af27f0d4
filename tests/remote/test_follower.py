"""Following a centre's releases over HTTP: through lost connections, gaps, repeats and restarts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from dpfuse.cli import app
from dpfuse.errors import ReleaseRefused
from dpfuse.remote import client as client_module
from dpfuse.remote import follower as follower_module
from dpfuse.remote.follower import fetch_estimator, follow
from support.remote import assert_close


class FlakyCentre(ThreadingHTTPServer):
    """Serves releases with the faults of a network: cuts, gaps, repeats and status 503."""

    daemon_threads = True

    def __init__(self, messages, *, per_connection=2, left_out=(), failures=0, changed=None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages, self.per_connection, self.left_out = messages, per_connection, set(left_out)
        self.failures, self.changed = failures, changed or {}
        self.last_event_ids = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path = urlsplit(self.path)
        start = int(parse_qs(path.query).get("start", ["1"])[0])
        centre = self.server
        known = [message for message in centre.messages if message["step"] >= start]
        if centre.failures:
            centre.failures -= 1
            self.answer(b"{}", 503)
        elif path.path == "/v1/streams/main/releases/events":
            centre.last_event_ids.append(int(self.headers["last-event-id"]))
            again = [message for message in centre.messages if message["step"] == start - 1]
            sent = [
                message
                for message in [*again, *known][: centre.per_connection]
                if message["step"] not in centre.left_out
            ]
            sent = [centre.changed.get(message["step"], message) for message in sent]
            frames = [f": running\n\nid: {each['step']}\ndata: {json.dumps(each)}   \n\n" for each in sent]
            self.answer("".join(frames).encode() + b"data", kind="text/event-stream")
        elif path.path == "/v1/streams/main/releases":
            self.answer(json.dumps({"releases": known[:2]}).encode())
        elif path.path == "/v1/clock":
            is_over = centre.last_event_ids[-1:] == [centre.messages[-1]["step"]]
            self.answer(json.dumps({"is_over": is_over}).encode())
        else:
            self.answer(b"{}", 404)

    def answer(self, content, status=200, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def flaky(monkeypatch):
    centres = []
    monkeypatch.setattr(follower_module, "_FIRST_PAUSE_S", 0.01)

    def start(*arguments, **options):
        centres.append(centre := FlakyCentre(*arguments, **options))
        threading.Thread(target=centre.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return centre

    yield start
    for centre in centres:
        centre.shutdown()
        centre.server_close()


def test_every_release_is_read_once_through_cuts_gaps_and_repeats(usual, flaky):
    """Connections end after three events, events are missing or repeated, and the centre is away at first."""
    remote, told = usual.estimator(), []
    centre = flaky(usual.messages, left_out=(2, 5), failures=2, per_connection=3)
    found = list(follow(centre.url, "main", usual.estimator(), tell=told.append))
    assert found == [remote.update(message) for message in usual.messages]
    assert centre.last_event_ids[0] == 0 and centre.last_event_ids[-1] == 6  # it continued after the last step
    assert any("is away (TryAgain)" in line for line in told) and any("is back" in line for line in told)


def test_a_step_that_the_centre_skipped_is_not_a_gap(gappy, flaky):
    found = list(follow(flaky(gappy.messages).url, "main", gappy.estimator()))
    for estimate, expected in zip(found, gappy.estimates, strict=True):
        assert_close(estimate, expected)


def test_following_starts_at_the_given_step(usual, flaky):
    centre = flaky(usual.messages, per_connection=9)
    assert [found.step for found in follow(centre.url, "main", usual.estimator(), start=4)] == [4, 5, 6]


def test_following_continues_after_the_last_step_read(usual, flaky):
    remote = usual.estimator()
    for message in usual.messages[:3]:
        remote.update(message)
    centre = flaky(usual.messages, per_connection=9)
    assert [found.step for found in follow(centre.url, "main", remote)] == [4, 5, 6]


def test_a_release_missing_from_the_past_is_reported(usual, flaky):
    """Step 3 is missing, and the hash of step 4 follows from it."""
    centre = flaky([message for message in usual.messages if message["step"] != 3])
    with pytest.raises(ReleaseRefused, match="step 4 of stream 'main' does not follow from the release before it"):
        list(follow(centre.url, "main", usual.estimator()))


@pytest.mark.parametrize(
    ("release", "message"),
    [({"step": "x"}, "step must be a whole number"), ({"step": 1, "stream": "other"}, "of another stream")],
)
def test_a_malformed_release_ends_the_following(usual, flaky, release, message):
    centre = flaky(usual.messages, changed={1: release})
    with pytest.raises(ReleaseRefused, match=message):
        list(follow(centre.url, "main", usual.estimator()))


def test_an_unknown_stream_or_address_is_reported(usual, flaky):
    centre = flaky(usual.messages)
    with pytest.raises(ReleaseRefused, match="answered with status 404; is this the right address"):
        list(follow(centre.url, "nowhere", usual.estimator()))
    with pytest.raises(ReleaseRefused, match="status 404"):
        fetch_estimator(centre.url)
    with pytest.raises(ConnectionError, match="no centre answers at http://127.0.0.1:1 .ConnectError.; is it runn"):
        fetch_estimator("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="url must begin with http"):
        fetch_estimator("127.0.0.1:8765")


def test_the_estimate_command_prints_a_line_for_each_release(usual, flaky):
    remote, centre = usual.estimator(), flaky(usual.messages, per_connection=9)
    arguments = ["estimate", "--from", centre.url, "--estimator", str(usual.path), "--steps", "4"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    expected = [remote.update(message) for message in usual.messages[:4]]
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"stream": "main", "step": each.step, "mean": list(each.mean), "std": list(each.std)} for each in expected
    ]


def test_an_endless_line_is_refused(usual, flaky, monkeypatch):
    monkeypatch.setattr(client_module, "_MAX_LINE", 3)
    with pytest.raises(ReleaseRefused, match="must fit a line of 3 bytes"):
        list(follow(flaky(usual.messages).url, "main", usual.estimator()))
