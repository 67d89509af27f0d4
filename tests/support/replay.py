"""A listening HTTP server with the clock of a centre, and scenes to send to it."""

from __future__ import annotations

import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from dpfuse.remote.client import make_client
from dpfuse.replay.player import Replay
from dpfuse.replay.scenes import Scene, SceneSequence
from dpfuse.wire.keys import Keys
from dpfuse.wire.messages import parse_report

SECRET = bytes(range(32))
INTERVAL_S = 0.05


class Clock:
    """Time that passes only while the player sleeps; `plans` are called at their times."""

    def __init__(self):
        self.now, self.plans = 1000.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        until = self.now + seconds
        while self.plans and self.plans[0][0] <= until:
            self.now, act = self.plans.pop(0)
            act()
        self.now = max(self.now, until)


class Listener(ThreadingHTTPServer):
    """Answers with the clock of a centre and keeps what was sent to it."""

    daemon_threads = True

    def __init__(
        self, port=0, *, time=time, interval_s=INTERVAL_S, first_step=1, secret=SECRET, is_replay=True, horizon=None
    ):
        super().__init__(("127.0.0.1", port), _Handler)
        self.interval_s, self.first_step, self.is_replay, self.horizon = interval_s, first_step, is_replay, horizon
        self.keys, self.time, self.start = Keys.from_secret(secret), time, time.monotonic()
        self.reports, self.inputs, self.truth, self.is_closed = [], [], {}, False
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def clock(self):
        passed = self.time.monotonic() - self.start
        step = self.first_step + int(passed // self.interval_s)
        is_over = self.horizon is not None and step > self.horizon
        closes_in_s = self.interval_s - passed % self.interval_s
        return {"step": step, "closes_in_s": closes_in_s, "interval_s": self.interval_s, "is_over": is_over}

    def close(self):
        self.is_closed = True
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(self.server.clock())

    def do_POST(self):
        lines = self.rfile.read(int(self.headers["content-length"])).splitlines()
        body = [json.loads(line) for line in lines]
        centre, now = self.server, self.server.clock()["step"]
        if self.path == "/v1/replay/truth":
            centre.truth[body[0]["step"]] = body[0]["state"]
            return self.answer({}, 202 if centre.is_replay else 404)
        parsed = [parse_report(line) for line in lines]
        if self.path == "/v1/inputs":
            assert not any(centre.keys.check_inputs(each).refusal for each in parsed)
            centre.inputs += [(now, each) for each in body]
            return self.answer({"received": len(lines), "refused": []}, 202)
        refused = [at for at, report in enumerate(parsed) if report is None or centre.keys.check(report)[1]]
        centre.reports += [(now, each) for each in body]
        return self.answer({"received": len(lines) - len(refused), "refused": refused}, 202)

    def answer(self, content, status=200):
        if self.server.is_closed:
            self.close_connection = True
            return
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def scenes():
    """Three sensors, of which one is replaced every 10 scenes; scene k has the state k."""
    for number in itertools.count():
        sensors = np.array([7, 8, 100 + number // 10])
        yield Scene(np.array([float(number)]), sensors, np.stack([sensors + 0.5, np.full(3, number)], axis=1))


def play(centre, seconds, data=None, **options):
    told = []
    with make_client(centre.url) as client:
        player = Replay(
            client, SceneSequence(data or scenes(), INTERVAL_S), Keys.from_secret(SECRET), tell=told.append, **options
        )
        return player.run(seconds), told
