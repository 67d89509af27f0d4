"""A centre that serves releases over HTTP with the faults of a network."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


class FlakyCentre(ThreadingHTTPServer):
    """Serves releases with cuts, gaps, repeats, forged events and status 503."""

    daemon_threads = True

    def __init__(
        self, messages, *, per_connection=2, left_out=(), failures=0, changed=None, forged=(), estimators=None
    ):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.messages, self.per_connection, self.left_out = messages, per_connection, set(left_out)
        self.failures, self.changed, self.forged = failures, changed or {}, forged
        self.estimators = estimators or {}  # files by their place
        self.last_event_ids, self.asked = [], []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        path, centre = urlsplit(self.path), self.server
        start = int(parse_qs(path.query).get("start", ["1"])[0])
        centre.asked.append(path.path)
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
            frames = [
                f": running\n\nid: {each['step']}\ndata: {json.dumps(each)}   \n\n" for each in [*centre.forged, *sent]
            ]
            self.answer("".join(frames).encode() + b"data", kind="text/event-stream")
        elif path.path == "/v1/streams/main/releases":
            self.answer(json.dumps({"releases": known[:2]}).encode())
        elif path.path == "/v1/clock":
            is_over = centre.last_event_ids[-1:] == [centre.messages[-1]["step"]]
            self.answer(json.dumps({"is_over": is_over}).encode())
        elif path.path == "/v1/estimators":
            designs = [place.removeprefix("/v1/estimators/") for place in centre.estimators]
            self.answer(json.dumps({"designs": designs}).encode())
        elif path.path in centre.estimators:
            self.answer(centre.estimators[path.path], kind="application/zip")
        else:
            self.answer(b"{}", 404)

    def answer(self, content, status=200, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def flaky_centre(*arguments, **options):
    """The centre, served in a thread of its own."""
    with FlakyCentre(*arguments, **options) as centre:
        threading.Thread(target=centre.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield centre
        centre.shutdown()
