"""What parses bytes from strangers, each as a function that raises only if something is wrong.

A target is made by a context manager. It gives the function and some inputs to begin with. An input may crash nothing
and must be refused in the documented way. No target may log an error or a measurement. Of `http`, answers may hold no
measurement and have no status 5xx.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import logging
import math
import re
import zipfile
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace

import httpx
import orjson

import dpfuse
from dpfuse.errors import DpfuseError, FileRefused, ReleaseRefused
from dpfuse.public.answers import too_busy
from dpfuse.public.connections import ByAddress, ByIdentity, ConnectionLimits, limited_protocol
from dpfuse.public.feed import Feed
from dpfuse.public.hub import Hub
from dpfuse.public.listening import make_server
from dpfuse.public.reading import make_reading_app
from dpfuse.public.settings import PublicSettings
from dpfuse.public.witness_file import WitnessFile
from dpfuse.remote import client as client_module
from dpfuse.remote import relay as relay_module
from dpfuse.remote import witness as witness_module
from dpfuse.remote.witness import Witness
from dpfuse.wire.http import make_intake_app
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.messages import parse_report, unpad_values
from dpfuse.wire.mqtt import Bridge
from support.designs import busy_data, make_design
from support.wire import call, make_report, rig

CANARY = 0.2718281828
_CANARY = re.compile(rb"2[.,]?718281[78]")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")


@contextmanager
def archive(folder):
    """Designs, estimators and recordings: raw files, good ones with other metadata, and with one other array."""
    design, kinds = make_design(spread=0.3), []
    design.save(folder / "design")
    design.export_estimator(folder / "estimator")
    busy_data().save(folder / "recording")
    loads = (dpfuse.load, dpfuse.RemoteEstimator.load, dpfuse.Trajectories.load)
    for name, load in zip(("design", "estimator", "recording"), loads, strict=True):
        with zipfile.ZipFile(folder / name) as good:
            kinds.append((load, {entry: good.read(entry) for entry in good.namelist()}))

    def check(data):
        (load, entries), mode, rest = kinds[data[0] % 3], data[0] // 3 % 3, data[1:]
        if mode:
            names = sorted(set(entries) - {"metadata.json"})
            changed = "metadata.json" if mode == 1 else names[rest[0] % len(names)] if rest else names[0]
            (buffer := io.BytesIO()).name = ""
            with zipfile.ZipFile(buffer, "w") as made:
                for name, content in (entries | {changed: rest[mode - 1 :]}).items():
                    made.writestr(name, content)
            rest = buffer.getvalue()
        (path := folder / "fuzzed").write_bytes(rest)
        try:
            load(path)
        except FileRefused:
            return

    seeds = []
    for number, (_, entries) in enumerate(kinds):
        seeds += [bytes([number]) + (folder / ("design", "estimator", "recording")[number]).read_bytes()]
        seeds += [bytes([number + 3]) + entries["metadata.json"]]
        seeds += [bytes([number + 6, 0]) + entries[min(set(entries) - {"metadata.json"})]]
    yield check, seeds


def _reports(live):
    """Reports that are right, wrong, sealed or with the canary."""
    key = live.keys.issue(7)
    values = ([0.5, -0.5], [CANARY, 1], [0.5, None], [], [1e308, -0.0], [2**70], [0] * 40)
    good = [key.sign("main", step, one) for one in values for step in (1, 2**63 - 1)]
    good += [key.seal("main", 1, [CANARY, 0.5]), make_report(live.keys, 2**63 - 1)]
    wrong = [good[0] | {"mac": ""}, good[0] | {"values": [None]}, good[0] | {"key": "07.1.0"}, {"key": "7.1.0"}]
    return [json.dumps(one).encode() for one in good + wrong]


def _sign_again(live, line):
    """The report of a line with a right MAC; None if it is no report or no sensor could sign it."""
    report = parse_report(line)
    if report is None or report.sealed:
        return None
    try:
        values = [None if math.isnan(value) else value for value in report.values]
        return json.dumps(live.keys.issue(7).sign(report.stream, report.step, values)).encode()
    except OverflowError:  # a whole number that no double can hold
        return None


@contextmanager
def message(folder):
    """Reports, as they come and again with a right MAC, through the intake into a centre that makes releases."""
    with rig(folder) as live:
        count = itertools.count(1)

        def check(data):
            live.intake.accept(data.split(b"\n"))
            if (signed := _sign_again(live, data)) is not None:
                assert live.intake.accept([signed]) == []
            values = unpad_values(data)
            assert values is None or not any(map(math.isinf, values))
            if next(count) % 1000 == 0:
                live.tick()

        yield check, _reports(live)


@contextmanager
def mqtt(folder):
    """Topic and payload of a message from the broker."""
    with rig(folder) as live:
        bridge = Bridge(live.intake, live.hub, live.watch, lambda: [("centre", "password")], "127.0.0.1", 1)

        def check(data):
            topic, _, payload = data.partition(b"\0")
            assert bridge.receive(topic.decode(errors="replace"), payload) is None

        topics = (b"dpfuse/main/reports/7.1.0", b"dpfuse/other/reports/7.1.0", b"dpfuse/main/releases", b"")
        yield check, [topic + b"\0" + line for topic in topics for line in _reports(live)]


@contextmanager
def event(folder):
    """Events of a centre as a relay reads them, which believes a local centre and asks others for signatures."""
    with rig(folder, replay=True) as live:
        for _ in range(3):
            live.tick()
        live.hub.close()
        paths = ("/v1/relay/settings", "/v1/estimator")
        stored = {path: call(live.reading_app, "GET", path).content for path in paths} | {"/v1/estimators": b"{}"}

        def answer(request):
            return httpx.Response(200, stream=httpx.ByteStream(stored[request.url.path]))

        transport = httpx.MockTransport(answer)
        before = relay_module.make_client
        relay_module.make_client = lambda url, ca: httpx.Client(transport=transport, base_url="http://centre")

        def check(data):
            relay = relay_module.Relay("unix:centre" if data[:1] == b"u" else "http://centre")
            try:
                for line in client_module._lines(SimpleNamespace(iter_raw=lambda: _chunks(data[1:]))):
                    if line.startswith(b"data:"):
                        relay._take(client_module._parse(line[5:]))
            except (ReleaseRefused, DpfuseError):
                pass
            if relay.clock._answer is not None:
                for one in relay.hub.recent("main"):
                    orjson.dumps(relay.feed.describe(one))
                app = make_reading_app(relay.feed, b"", relay.clock)
                for path, wanted in (("/metrics", {200}), ("/v1/clock", {200}), ("/healthz", {200, 503})):
                    assert call(app, "GET", path).status_code in wanted, path

        text = call(live.reading_app, "GET", "/v1/relay/events?start=1").content
        try:
            yield check, [b"u" + text, b"h" + text, b"h" + text.replace(b'"step":2', b'"step":9')]
        finally:
            relay_module.make_client = before


@contextmanager
def settings(folder):
    """Changes of a centre's public settings, as a relay reads them: refused, or every answer made of them is whole."""
    with rig(folder) as live:
        true = live.feed.settings.to_dict()
    clock = {"step": 1, "closes_in_s": 0.1, "interval_s": 0.2, "delay_s": 0.1, "is_over": False}
    paths = ("/", "/metrics", "/v1/clock", "/v1/guarantee", "/v1/relay/settings")

    def check(data):
        try:
            found = PublicSettings.from_dict(true | client_module._parse(data))
        except (ReleaseRefused, ValueError):
            return
        feed = Feed(Hub(dict.fromkeys(found.streams, 0), lambda stream, start: iter(())), found)
        app = make_reading_app(feed, b"", lambda: clock)
        for path in paths:
            assert call(app, "GET", path).status_code == 200, (path, data)

    texts = ["a [b]", "\ud800", "<script>", "\0", "9" * 300, "box"]
    values = [*texts, 0, -1, 1, 2**63 - 1, 2**64, 5e-324, 1e-6, 1e308, math.inf, math.nan, True, None, [], {}]
    changes = [{name: value} for at, name in enumerate(true) for value in values[at % 4 :: 4]]
    changes += [{"guarantee": true["guarantee"] | {name: value}} for name in true["guarantee"] for value in values[6:]]
    changes += [{name: [text] * len(true["channels"])} for name in ("labels", "channel_labels") for text in texts]
    yield check, [json.dumps(each).encode() for each in (true, *changes)]


@contextmanager
def witness(folder):
    """What a centre answers to a witness: settings, clock or releases. The kept releases can be read again."""
    with rig(folder) as live:
        for _ in range(3):
            live.tick()
        live.hub.close()
        paths = ("/v1/relay/settings", "/v1/clock", "/v1/streams/main/releases")
        true = {path: call(live.reading_app, "GET", path).content for path in paths}
    answers = dict(true)
    transport = httpx.MockTransport(
        lambda q: httpx.Response(200, stream=httpx.ByteStream(answers.get(q.url.path, b"{}")))
    )
    before = witness_module.make_client, witness_module._MAX_PAGES
    witness_module.make_client = lambda url, ca: httpx.Client(transport=transport, base_url=url)
    witness_module._MAX_PAGES = 3

    def check(data):
        (path := folder / "tips").write_bytes(b"")
        answers.update(true | {paths[data[0] % 3]: data[1:]})
        for _ in range(2):
            try:
                with Witness("http://centre", path) as found:
                    found.look()
                    found.look()
            except FileRefused:
                raise  # it cannot read what it has written
            except DpfuseError:
                pass

    steps = (b"Infinity", b"NaN", b'"1"', b"[1]", b"{}", b"1e400", b"-5", b"true", b"9" * 30)
    seeds = [bytes([at]) + true[path] for at, path in enumerate(paths)] + [b'\1{"step":%s}' % step for step in steps]
    [release, *_] = json.loads(true[paths[2]])["releases"]
    changed = [release | {name: value} for name in release for value in (None, 0, 2**64, "\ud800", [], True, "x" * 99)]
    seeds += [b"\2" + json.dumps({"releases": [each]}).encode() for each in (*changed, None, [], "x")]
    try:
        yield check, seeds
    finally:
        witness_module.make_client, witness_module._MAX_PAGES = before


def _chunks(data):
    """The data in pieces, and a last line end."""
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]
    yield b"\n"


@contextmanager
def file(folder):
    """Files of the centre itself: the key file, revoked keys and the witness's messages."""
    KeyFile.create(folder / "keys").revoke([7])
    (path := folder / "fuzzed.keys").touch(0o600)
    (revoked := folder / "fuzzed.keys.revoked").touch(0o600)

    def check(data):
        kind, rest = data[0] % 3, data[1:]
        path.write_bytes(rest if kind == 0 else (folder / "keys").read_bytes())
        revoked.write_bytes(rest if kind == 1 else b"")
        (folder / "witness").write_bytes(rest)
        try:
            if kind < 2:
                KeyFile.load(path)
            else:
                WitnessFile(folder / "witness").close()
        except FileRefused:
            return

    seeds = [b"\0" + (folder / "keys").read_bytes(), b"\1" + (folder / "keys.revoked").read_bytes()]
    yield check, [*seeds, b'\2{"step": 3}\n', b'\2{"step": 3}\n{"st']


class _Sink(asyncio.Transport):
    """In the place of a socket: keeps what is sent."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.sent, self._is_closing = b"", False

    def write(self, data):
        self.sent += data

    def close(self):
        self._is_closing = True

    abort = close

    def is_closing(self):
        return self._is_closing

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        pass

    resume_reading = pause_reading


class _Log(logging.Handler):
    """Keeps what is logged, with tracebacks."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname} {self.format(record)}")


def _with_log(made):
    """The target, which after each input also looks for errors and measurements in the log."""

    @contextmanager
    @wraps(made)
    def target(folder):
        log, ours = _Log(), logging.getLogger("dpfuse")
        before = ours.level
        ours.setLevel(logging.DEBUG)
        logging.getLogger().addHandler(log)
        try:
            with made(folder) as (check, seeds):

                def check_both(data):
                    check(data)
                    lines, log.lines = log.lines, []
                    assert not any(line.startswith(("ERROR", "CRITICAL")) for line in lines), lines
                    assert not _CANARY.search("\n".join(lines).encode()), "a measurement in the log"

                yield check_both, seeds
        finally:
            logging.getLogger().removeHandler(log)
            ours.setLevel(before)

    return target


@contextmanager
def http(folder):
    """Bytes of a connection at either door, from the first one on; answers and logs are searched for the canary."""
    limits = ConnectionLimits(1000, 1000)
    with rig(folder, make_design("individual", spread=0.3, horizon=None)) as live, asyncio.Runner() as runner:
        live.send(live.report(7, [CANARY, 0.5]))
        for _ in range(3):
            live.tick()
        live.hub.close()  # ends event streams
        held = ByIdentity(limits)
        doors = [(make_intake_app(live.watch, live.intake, live.feed, held), held)]
        doors += [(live.reading_app, ByAddress(limits))]
        servers = [make_server(app, limited_protocol(admission, too_busy)) for app, admission in doors]
        for server in servers:
            server.config.load()

        async def talk(server, data):
            sink, state = _Sink(), server.server_state
            protocol = server.config.http_protocol_class(server.config, state, {}, _loop=asyncio.get_running_loop())
            protocol.connection_made(sink)
            if data:  # an empty one is none
                protocol.data_received(data)
            for _ in range(100):
                if not state.tasks:
                    break
                await asyncio.sleep(0)
            protocol.connection_lost(None)
            if state.tasks:
                await asyncio.wait_for(asyncio.gather(*state.tasks, return_exceptions=True), 20)
            return sink.sent

        def check(data):
            sent = runner.run(talk(servers[data[0] % 2], data[1:]))
            assert all(int(status) < 500 for status in _STATUS.findall(sent)), sent[:300]
            assert not _CANARY.search(sent), "a measurement in an answer"

        yield check, _requests(live)


def _requests(live):
    def post(body, path=b"/v1/reports", kind=b"application/x-ndjson"):
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
        return head % (path, kind, len(body)) + body

    paths = ["/", "/metrics", "/healthz", "/openapi.json", "/v1/clock", "/v1/guarantee", "/v1/estimator",
             "/v1/estimators", "/v1/estimators/1", "/v1/relay/settings", "/v1/relay/events?start=2",
             "/v1/streams/main/releases?start=1&limit=2",
             "/v1/streams/main/releases/events", "/v1/streams/main/feed", "/static/page.js"]  # fmt: skip
    gets = [f"GET {path} HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 1\r\n\r\n".encode() for path in paths]
    chunked = b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
    chunked += b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    posts = [post(line) for line in _reports(live)[:6]] + [post(b"\n".join(_reports(live))), chunked, gets[0] + gets[4]]
    posts += [chunked.replace(b"3\r\n", b"1\r\n").replace(b"x-ndjson", b"text"), posts[0][:-9]]
    return [b"\0" + one for one in [*posts, gets[4], gets[0]]] + [b"\1" + one for one in [*gets, posts[0]]]


TARGETS = {made.__name__: _with_log(made) for made in (archive, message, mqtt, event, settings, witness, file, http)}
