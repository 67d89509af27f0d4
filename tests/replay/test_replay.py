"""Vehicles as clients: every one with its own token, at the pace of the centre, whatever goes wrong on the way."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import socket
import subprocess
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion
from typer.testing import CliRunner

from dpfuse.cli import app
from dpfuse.remote.client import make_client
from dpfuse.replay import player as player_module
from dpfuse.replay import transports as transports_module
from dpfuse.replay.faults import Faults, make_garbage
from dpfuse.replay.player import Replay, Scene, SceneSequence
from dpfuse.replay.scenes import is_chosen, make_scenes
from dpfuse.replay.transports import OutgoingMessage, OverMQTT
from dpfuse.types import Trajectories
from dpfuse.wire.broker import write_broker
from dpfuse.wire.tokens import Tokens
from support.parts import needs
from support.wire import PATIENCE_S, wait_for

SECRET = bytes(range(32))
INTERVAL_S = 0.05


class Clock:
    """Time that passes only while the player sleeps; what is planned happens on the way."""

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


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(player_module, "time", clock := Clock())
    return clock


class Listener(ThreadingHTTPServer):
    """The clock of a centre, and a notebook of what was sent to it."""

    daemon_threads = True

    def __init__(
        self, port=0, *, time=time, interval_s=INTERVAL_S, first_step=1, secret=SECRET, is_replay=True, horizon=None
    ):
        super().__init__(("127.0.0.1", port), _Handler)
        self.interval_s, self.first_step, self.is_replay, self.horizon = interval_s, first_step, is_replay, horizon
        self.tokens, self.time, self.start = Tokens(secret), time, time.monotonic()
        self.reports, self.truth, self.is_closed = [], {}, False
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
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        centre, now = self.server, self.server.clock()["step"]
        if self.path == "/v1/replay/truth":
            centre.truth[body["step"]] = body["state"]
            return self.answer({}, 202 if centre.is_replay else 404)
        tokens = [each.get("token") if isinstance(each, dict) else None for each in body["reports"]]
        refused = [at for at, token in enumerate(tokens) if not token or centre.tokens.sensor_of(token) is None]
        centre.reports += [(now, each) for each in body["reports"]]
        return self.answer({"received": len(tokens) - len(refused), "refused": refused}, 202)

    def answer(self, content, status=200):
        if self.server.is_closed:
            self.close_connection = True
            return
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def listen(clock):
    opened = []

    def start(*arguments, **options):
        opened.append(centre := Listener(*arguments, **{"time": clock} | options))
        return centre

    yield start
    for centre in opened:
        centre.close()


def scenes():
    """Three vehicles, of whom one is replaced every 10 scenes; scene k has the state k."""
    for number in itertools.count():
        sensors = np.array([7, 8, 100 + number // 10])
        yield Scene(np.array([float(number)]), sensors, np.stack([sensors + 0.5, np.full(3, number)], axis=1))


def play(centre, seconds, **options):
    told = []
    with make_client(centre.url) as client:
        player = Replay(client, SceneSequence(scenes(), INTERVAL_S), Tokens(SECRET), tell=told.append, **options)
        return player.run(seconds), told


def on_time(centre):
    """Reports by (step, sensor) that came while their step was collected for, or the one before it."""
    found = Counter()
    for now, report in centre.reports:
        if report["step"] in (now, now + 1):
            found[report["step"], centre.tokens.sensor_of(report["token"])] += 1
    return found


class TestPlaying:
    def test_every_vehicle_reports_once_a_step_with_its_own_token(self, listen):
        centre = listen()
        tally, told = play(centre, 0.6)
        assert not told and tally.speed == pytest.approx(1.0)
        assert tally.num_reports == 3 * tally.num_steps == len(centre.reports)
        by_step = {}
        for _, report in centre.reports:
            sensor, step = centre.tokens.sensor_of(report["token"]), report["step"]
            number = centre.truth[step][0]
            assert report["values"] == [sensor + 0.5, number] and report["stream"] == "main"
            by_step.setdefault(step, []).append(sensor)
        for step, sensors in by_step.items():
            assert sensors == [7, 8, 100 + int(centre.truth[step][0]) // 10]
        # Scene and step go together.
        assert sorted(centre.truth) == list(range(1, 14)) and {step - n for step, (n,) in centre.truth.items()} == {1}
        assert sum(on_time(centre).values()) == len(centre.reports)

    def test_what_holds_it_up_costs_scenes_and_no_time(self, listen, clock):
        """A machine under load: a pause of some steps, in the middle of one, is made up for at once."""
        centre = listen()
        clock.plans = [(clock.now + 0.22, lambda: clock.sleep(0.2))]
        tally, _ = play(centre, 0.6)
        assert set(range(1, 14)) - set(centre.truth) == {7, 8}
        assert {step - n for step, (n,) in centre.truth.items()} == {1} and tally.num_reports == 3 * tally.num_steps

    def test_a_centre_that_restarts_is_found_again(self, listen, clock, monkeypatch):
        monkeypatch.setattr(player_module, "_LONGEST_PAUSE_S", 0.1)
        first, later = listen(), []
        clock.plans = [
            (clock.now + 0.31, first.close),
            (clock.now + 0.56, lambda: later.append(listen(first.server_port, first_step=7))),
        ]
        tally, told = play(first, 1.2)
        [second] = later
        assert tally.num_outages == 1 and "is away" in told[0] and "is back" in told[-1] and len(told) == 2
        assert len(second.reports) >= 6
        # The traffic did not wait.
        assert min(number for (number,) in second.truth.values()) >= max(n for (n,) in first.truth.values()) + 4

    def test_it_ends_with_a_design_that_ends(self, listen, monkeypatch):
        monkeypatch.setattr(player_module, "_READ_CLOCK_EVERY_S", 0.1)
        tally, _ = play(listen(horizon=8), None)
        assert 8 <= tally.step <= 10  # it looks at the clock every other step

    def test_faster_than_recorded(self, listen):
        centre = listen()
        tally, _ = play(centre, 0.4, speed=2.0)
        steps = sorted(centre.truth)
        assert tally.speed == 2.0
        assert all(
            centre.truth[b][0] - centre.truth[a][0] == 2 * (b - a) for a, b in itertools.pairwise(steps) if b == a + 1
        )

    def test_a_speed_that_the_centres_clock_cannot_have(self, listen):
        with pytest.raises(
            ValueError, match="speed must be a multiple of 1 for a centre with steps of 0.05 s, got 1.5"
        ):
            play(listen(), 9.0, speed=1.5)

    def test_tokens_of_another_secret(self, listen):
        with pytest.raises(PermissionError, match="refuses these reports; were the tokens made with its secret"):
            play(listen(secret=bytes(32)), 9.0)

    def test_what_is_no_centre(self, listen, monkeypatch):
        monkeypatch.setattr(Listener, "clock", lambda _: {"detail": "not found"})
        with pytest.raises(ConnectionError, match="has no clock .status 200.; is it a centre?"):
            play(listen(), 9.0)

    def test_a_centre_without_replay_is_told_no_truth(self, listen):
        centre = listen(is_replay=False)
        _, told = play(centre, 0.6)
        assert told == ["the centre does not take the truth: it runs without --replay"]
        assert len(centre.truth) == 1 and centre.reports


class TestTroubles:
    def test_loss_duplicates_and_garbage_have_their_chances(self, listen):
        """Among 3 vehicles in 25 steps, fixed seed: neither none nor all."""
        tally, _ = play(listen(interval_s=0.025), 0.6, faults=Faults(loss=0.3, duplicates=0.3, garbage=0.3, seed=1))
        asked = 3 * tally.num_steps
        assert tally.num_steps == 25
        assert tally.num_reports == asked - tally.num_lost + tally.num_doubled
        for number in (tally.num_lost, tally.num_doubled, tally.num_garbage):
            assert 0.05 * asked < number < 0.6 * asked

    def test_delay_makes_reports_late(self, listen):
        centre = listen()
        play(centre, 0.8, faults=Faults(delay_s=8 * INTERVAL_S))
        late = [report for now, report in centre.reports if report["step"] < now]
        assert len(late) > len(centre.reports) / 3

    def test_garbage_is_json_and_of_many_kinds(self):
        report = {"token": Tokens(SECRET).issue(3), "stream": "main", "step": 5, "values": [1.5, 2.5]}
        rng = np.random.default_rng(0)
        kinds = {json.dumps(make_garbage(report, rng)) for _ in range(300)}
        assert len(kinds) > 12 and json.dumps(report) not in kinds

    @pytest.mark.parametrize("name", ["loss", "duplicates", "garbage"])
    def test_chances_are_chances(self, name):
        with pytest.raises(ValueError, match=f"{name} must be from 0 to 1, got 1.5"):
            Faults(**{name: 1.5})
        with pytest.raises(ValueError, match="delay_s must be from 0 to 3600"):
            Faults(delay_s=-1)


def is_taken(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True


@pytest.fixture
def broker(tmp_path):
    """A mosquitto that knows vehicles 0 to 120."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = write_broker(tmp_path / "broker", Tokens(SECRET), range(121), port=port)
    with subprocess.Popen([needs("mosquitto"), "-c", str(configuration)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: is_taken(port))
            yield port
        finally:
            process.terminate()


class TestOverMQTT:
    def test_every_vehicle_has_a_connection_and_a_topic_of_its_own(self, listen, broker, monkeypatch):
        monkeypatch.setattr(transports_module, "_EXPIRES_AFTER_S", int(PATIENCE_S))
        heard = queue.Queue()
        centre = paho.Client(CallbackAPIVersion.VERSION2, "listener", protocol=paho.MQTTv5)
        centre.username_pw_set("centre", Tokens(SECRET).password("centre"))
        centre.on_connect = lambda client, *_: client.subscribe("dpfuse/main/reports/+", 1)
        centre.on_subscribe = lambda *_: heard.put(None)
        centre.on_message = lambda _, __, message: heard.put((message.topic, json.loads(message.payload)))
        centre.connect("127.0.0.1", broker)
        centre.loop_start()
        try:
            assert heard.get(timeout=PATIENCE_S) is None
            vehicles = OverMQTT("127.0.0.1", broker, "main")
            try:
                tally, _ = play(listen(), 1.0, transport=vehicles)
                reports = [heard.get(timeout=PATIENCE_S) for _ in range(tally.num_reports)]
                assert set(vehicles._clients) >= {7, 8, 100}
            finally:
                vehicles.close()
        finally:
            centre.disconnect()
            centre.loop_stop()
        assert tally.num_reports == 3 * tally.num_steps > 0
        for topic, report in reports:
            sensor = Tokens(SECRET).sensor_of(report["token"])
            assert topic == f"dpfuse/main/reports/{sensor}" and report["values"][0] == sensor + 0.5

    def test_vehicles_that_the_broker_does_not_know(self, listen, broker, monkeypatch):
        monkeypatch.setattr(player_module, "time", time)  # the broker has a clock of its own
        vehicles = OverMQTT("127.0.0.1", broker, "main")
        strangers = (scene._replace(sensors=scene.sensors + 1000) for scene in scenes())
        data = SceneSequence(strangers, INTERVAL_S)
        try:
            with make_client(listen(time=time).url) as client:
                player = Replay(client, data, Tokens(SECRET), transport=vehicles)
                with pytest.raises(PermissionError, match="refuses a sensor; give its id and the same secret"):
                    player.run(PATIENCE_S)
        finally:
            vehicles.close()

    def test_a_vehicle_that_left_hangs_up(self, broker, monkeypatch):
        monkeypatch.setattr(transports_module, "_GONE_AFTER_S", 0.05)
        vehicles, tokens = OverMQTT("127.0.0.1", broker, "main"), Tokens(SECRET)
        try:
            vehicles.send([OutgoingMessage(sensor, tokens.issue(sensor), {}) for sensor in (1, 2)])
            time.sleep(0.1)
            vehicles.send([OutgoingMessage(2, tokens.issue(2), {})])
            assert set(vehicles._clients) == {2}
        finally:
            vehicles.close()
        assert not vehicles._clients


class TestTraffic:
    def test_the_freeway_goes_on_and_its_vehicles_keep_their_coin(self):
        moving, interval_s = make_scenes(None, 0.3, 0, first_id=10**6)
        played = list(itertools.islice(moving, 60))
        assert interval_s == 0.2
        for before, now in itertools.pairwise(played):
            # Whoever reports goes on to report for as long as it is on the road, and positions grow.
            places = dict(zip(before.sensors.tolist(), before.measurements[:, 0], strict=True))
            for sensor, (place, _) in zip(now.sensors.tolist(), now.measurements, strict=True):
                assert sensor >= 10**6
                assert place >= places.get(sensor, 0.0)
            gone = set(before.sensors.tolist()) - set(now.sensors.tolist())
            assert all(places[sensor] > 390 for sensor in gone)
        shares = [len(scene.sensors) / (0.4 * scene.state[0]) for scene in played]
        assert 0.15 < np.mean(shares) < 0.45

    def test_a_recording_starts_again_with_new_ids_and_says_so(self, tmp_path):
        sensors, present = np.array([[[3, 4], [3, 4], [9, 4]]]), np.array([[[1, 1], [1, 0], [1, 1]]], bool)
        values = np.arange(12.0).reshape(1, 3, 2, 2)
        data = Trajectories(np.ones((1, 3, 1)), values, present, sensors, interval_s=0.5)
        data.save(tmp_path / "a.dpfuse-data")
        told = []
        playing, interval_s = make_scenes(tmp_path / "a.dpfuse-data", 1.0, 0, 100, told.append)
        ids = [scene.sensors.tolist() for scene in itertools.islice(playing, 6)]
        assert ids == [[103, 104], [103], [109, 104], [113, 114], [113], [119, 114]]
        assert interval_s == 0.5
        assert told == ["the recording starts again, with new ids (turn 2)"]

    @pytest.mark.slow
    @pytest.mark.skipif(not os.environ.get("DPFUSE_DATA"), reason="DPFUSE_DATA is not set: no recordings at hand")
    def test_us_101_is_played_over_and_over(self):
        told = []
        playing, interval_s = make_scenes(Path(os.environ["DPFUSE_DATA"]), 0.3, 0, 0, told.append)
        first = next(playing)
        # All of it, 44 minutes, and then the first moment again.
        num_scenes = sum(1 for _ in itertools.takewhile(lambda _: not told, playing))
        assert num_scenes * interval_s > 40 * 60
        again = next(playing)
        assert abs(again.state[0] - first.state[0]) < 20
        assert not set(first.sensors.tolist()) & set(again.sensors.tolist())

    def test_coins_fall_evenly_and_for_themselves(self):
        ids = np.arange(10_000)
        by_seed = [is_chosen(ids, 0.3, seed) for seed in range(3)]
        for chosen in by_seed:
            # Five standard deviations, on either side; false alarms 6e-7 for each of three.
            assert abs(chosen.mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / len(ids))
        assert abs((by_seed[0] & by_seed[1]).mean() - 0.09) < 5 * np.sqrt(0.09 * 0.91 / len(ids))
        assert is_chosen(ids, 1.0, 0).all()
        assert (is_chosen(ids[500:], 0.3, 0) == by_seed[0][500:]).all()


def test_help_says_what_speed_means():
    text = CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "100", "NO_COLOR": "1"}).output
    assert "--interval 0.2/N" in text and "1x" in text


def test_no_secret_is_said_at_once(tmp_path):
    result = CliRunner().invoke(app, ["replay", "--secret", str(tmp_path / "none")])
    assert "no secret at" in str(result.exception)
