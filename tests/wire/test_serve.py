"""`dpfuse serve` as a process: from reports to releases, restarts, failures, TLS, and what release times show."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import ssl
import threading
import time
from contextlib import closing, suppress

import httpx
import numpy as np
import pytest

from dpfuse.ledger import Ledger, public_rows, verify
from dpfuse.public.listening import bind
from dpfuse.remote.client import make_client
from dpfuse.wire.key_file import KeyFile
from dpfuse.wire.keys import Keys
from dpfuse.wire.serve import CentreOptions, Endpoints, _address, run_centre
from support.certificates import Authority
from support.designs import make_design
from support.timing import can_be_told_apart, in_pairs
from support.wire import (
    PATIENCE_S,
    address_of,
    addresses_of,
    certify,
    command,
    events,
    following,
    get,
    lines_of,
    make_report,
    unfinished,
    wait_for,
)


def test_a_public_input_that_the_design_does_not_read_is_refused_before_there_is_a_ledger(tmp_path):
    design, options = make_design(num_public=2), CentreOptions(inputs={"3": 0.5}, is_new=True)
    with pytest.raises(ValueError, match="input must be a number from 1 to 2, got '3'"):
        run_centre(design, tmp_path / "ledger.db", None, None, options)
    assert not (tmp_path / "ledger.db").exists()


@pytest.fixture(scope="module")
def place(tmp_path_factory, pytestconfig):
    """A folder with a key file and two designs, and the cache of compiled programs."""
    folder = tmp_path_factory.mktemp("serve")
    KeyFile.create(folder / "centre.keys")
    make_design("individual", spread=0.3, horizon=None, expected_stay=4.0).save(folder / "endless.dpfuse")
    make_design("total", horizon=3).save(folder / "finite.dpfuse")
    return folder, pytestconfig.cache.mkdir("jax")


def serve(place, design, *options, ledger="ledger.db", first=""):
    folder, cache = place
    arguments = ("--design", folder / design, "--ledger", ledger, "--keys", folder / "centre.keys")
    arguments += ("--port", 0, "--reading-port", 0)
    new = () if (folder / ledger).exists() else ("--new",)
    return command("serve", *arguments, *new, *options, folder=folder, cache=cache, first=first)


def test_a_centre_takes_reports_publishes_releases_and_stops_at_sigterm(place):
    keys = Keys.load(place[0] / "centre.keys")
    patient = "from dpfuse.wire import http; http._BODY_S = 600"
    packing = "from dpfuse.ledger import segments; segments._ROWS, segments._FEWEST_STEPS = 1, 2"
    options = "--interval", 0.1, "--keep-rows", 0
    with serve(place, "endless.dpfuse", *options, first=f"{patient}\n{packing}") as running:
        sensors, address = addresses_of(running)
        assert sensors.startswith("http://127.0.0.1:")
        public_key = get(f"{address}/v1/guarantee").json()["signed_by"]["public_key"]
        designs = get(f"{address}/v1/estimators").json()["designs"]
        assert designs == [path.name for path in (place[0] / "ledger.db.estimators").iterdir()] and len(designs) == 1
        clock = get(f"{sensors}/v1/clock").json()
        report = make_report(keys, 7, [0.123456, 271828.1828], step=clock["step"] + 1)
        answer = httpx.post(f"{sensors}/v1/reports", **lines_of(report), trust_env=False, timeout=PATIENCE_S)
        assert answer.json() == {"received": 1, "refused": []}
        with following(address) as lines, unfinished(sensors) as open_request:
            told = [event["step"] for event in events(lines, 5)]
            running.process.send_signal(signal.SIGTERM)
            told += [json.loads(line[6:])["step"] for line in lines if line.startswith("data: ")]
            answer = open_request.makefile("rb").read()
            assert running.process.wait(PATIENCE_S) == 0
        assert told == [row.step for row in public_rows(place[0] / "ledger.db")]  # every committed row
        with closing(sqlite3.connect(place[0] / "ledger.db")) as connection:
            assert connection.execute("SELECT count(*) FROM segments").fetchone()[0] >= 1  # some of them packed
        assert verify(place[0] / "ledger.db", public_key).signed == (public_key, 0)
        assert answer.startswith(b"HTTP/1.1 503") and b'"code":"stopping"' in answer
        assert running.stdout() == f"sensors {sensors}\nreaders {address}\n" and running.stderr() == ""


@pytest.mark.slow
def test_a_restarted_centre_returns_the_same_releases_and_a_second_one_is_refused(place):
    kept = []
    for _ in range(2):
        with serve(place, "endless.dpfuse", "--interval", 0.1, ledger="restart.db") as running:
            with following(address_of(running)) as lines:
                found = events(lines, len(kept) + 5)
            assert found[: len(kept)] == kept
            assert [event["step"] for event in found] == sorted({event["step"] for event in found})
            kept = found
            with serve(place, "endless.dpfuse", ledger="restart.db") as second:
                assert second.process.wait(PATIENCE_S) == 75
                assert "restart.db" in second.stderr() and second.stdout() == ""
            running.process.kill()


@pytest.mark.slow
def test_the_server_stays_up_after_a_finite_design_is_over(place):
    with serve(place, "finite.dpfuse", "--interval", 0.05, ledger="finite.db") as running:
        address = address_of(running)
        wait_for(lambda: get(f"{address}/v1/clock").json()["status"] == "over")
        assert get(f"{address}/v1/clock").json()["is_over"]
        steps = [release["step"] for release in get(f"{address}/v1/streams/main/releases").json()["releases"]]
        assert steps == [row.step for row in public_rows(place[0] / "finite.db")] and set(steps) <= {1, 2, 3}
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_a_failing_ledger_stops_the_centre_with_a_message(place):
    import apsw

    with serve(place, "endless.dpfuse", "--interval", 0.1, ledger="failing.db") as running:
        address_of(running)
        intruder = apsw.Connection(str(place[0] / "failing.db"))
        intruder.set_busy_timeout(60_000)
        intruder.execute("BEGIN IMMEDIATE")  # never ends: the writer waits two seconds, then gives up
        assert running.process.wait(PATIENCE_S) == 75
        intruder.close()
        assert "failing.db is locked by another program" in running.stderr()
        assert running.stderr().startswith("dpfuse: ") and running.stderr().count("\n") == 1


@pytest.mark.slow
def test_with_a_certificate_the_centre_accepts_only_tls(place):
    certificate = certify(place[0], "server")
    options = ("--tls-cert", "server.crt", "--tls-key", "server.key")
    with serve(place, "endless.dpfuse", *options, ledger="tls.db") as running:
        trusted = ssl.create_default_context(cafile=certificate)
        for address in addresses_of(running):
            assert address.startswith("https://127.0.0.1:")
            answer = httpx.get(f"{address}/v1/clock", verify=trusted, trust_env=False, timeout=PATIENCE_S)
            assert answer.status_code == 200
            with pytest.raises(httpx.ConnectError):
                get(f"{address}/v1/clock")
            with pytest.raises(httpx.TransportError):
                get(f"{address}/v1/clock".replace("https", "http"))


@pytest.mark.slow
def test_sighup_reads_certificates_again_at_both_doors_and_sensors_need_one_of_their_own(place):
    folder = place[0]
    authority = Authority(folder)
    client, used = authority.issue("client"), folder / "used.pem"
    shutil.copy(authority.issue("first"), used)
    options = ("--tls-cert", used, "--tls-key", used, "--tls-client-ca", authority.path)
    with serve(place, "endless.dpfuse", *options, ledger="client-tls.db") as running:
        sensors, readers = addresses_of(running)
        ports = [int(address.rpartition(":")[2]) for address in (sensors, readers)]
        open_to_all, known = (ssl.create_default_context(cafile=authority.path) for _ in range(2))
        known.load_cert_chain(client)

        def shown(port):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as plain:
                with known.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                    return secure.getpeercert(binary_form=True)

        assert httpx.get(f"{readers}/v1/clock", verify=open_to_all, trust_env=False).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{sensors}/v1/clock", verify=open_to_all, trust_env=False)
        with make_client(sensors, authority.path, client) as sensor:
            step = sensor.get("/v1/clock").json()["step"]
            report = make_report(Keys.load(folder / "centre.keys"), 7, step=step)
            assert sensor.post("/v1/reports", **lines_of(report)).json() == {"received": 1, "refused": []}
        first = {shown(port) for port in ports}
        shutil.copy(authority.issue("second"), used)
        assert len(first) == 1 and {shown(port) for port in ports} == first
        running.process.send_signal(signal.SIGHUP)
        wait_for(lambda: {shown(port) for port in ports}.isdisjoint(first))
        assert running.process.poll() is None and running.stderr() == ""


def test_an_unencrypted_public_address_logs_a_warning(caplog):
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert _address(Endpoints(host="::1"), listener) == f"http://[::1]:{port}" and caplog.text == ""
        assert _address(Endpoints(host="0.0.0.0"), listener) == f"http://0.0.0.0:{port}"
        assert "cross the network unencrypted" in caplog.text


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--ledger", "centre.keys/ledger.db"), 2, "centre.keys"),
        (("--stream", "a/b"), 2, "stream must be 1 to 64 letters"),
        (("--interval", "0"), 2, "interval_s must be finite and > 0"),
        (("--mqtt", "broker"), 2, "mqtt must be HOST:PORT"),
        (("--mqtt", "me:secret@broker:1883"), 2, "without user and password"),
        (("--tls-cert", "x"), 2, "--tls-key"),
        (("--tls-cert", "x", "--tls-key", "y"), 1, "must be a certificate and its private key in PEM"),
        (("--tls-client-ca", "x"), 2, "--tls-client-ca needs --tls-cert"),
        (("--bank", "postgresql://db/roads"), 2, "--centre"),
        (("--bank", "postgresql://me:secret@db/roads", "--centre", "a"), 2, "PGPASSFILE"),
        (("--keys", "nowhere"), 1, "no key file at nowhere"),
        (("--design", "nowhere"), 1, "no design file at nowhere"),
    ],
)
def test_wrong_options_exit_with_one_line(place, monkeypatch, capsys, options, code, message):
    from dpfuse import cli

    monkeypatch.chdir(place[0])
    arguments = ("--design", "endless.dpfuse", "--ledger", "new.db", "--new", "--keys", "centre.keys", "--port", "0",
                 "--reading-port", "0")  # fmt: skip
    monkeypatch.setattr("sys.argv", ["dpfuse", "serve", *arguments, *options])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    shown = capsys.readouterr()
    assert stop.value.code == code and message in shown.err and shown.out == "" and "secret" not in shown.err


def test_a_missing_ledger_is_not_replaced_by_an_empty_one(place, tmp_path, monkeypatch, capsys):
    """And `--new` does not replace an existing ledger. Both errors name the remedy."""
    from dpfuse import cli
    from dpfuse.policy import load

    def refusal(*options):
        path = tmp_path / "road.db"
        arguments = ("--design", place[0] / "endless.dpfuse", "--ledger", path, "--keys", place[0] / "centre.keys")
        monkeypatch.setattr(
            "sys.argv", ["dpfuse", "serve", *map(str, arguments), "--port=0", "--reading-port=0", *options]
        )
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 2
        return capsys.readouterr().err

    missing = refusal()
    assert "road.db is missing; put the ledger back, or give the path of the right one" in missing
    assert "dpfuse ledger create" in missing and "dpfuse serve --new" in missing
    assert not list(tmp_path.iterdir())
    Ledger.create(tmp_path / "road.db", load(place[0] / "endless.dpfuse")).close()
    assert "is there already; open it, or choose another name" in refusal("--new")
    assert "has the streams main, and one writer for all of them" in refusal("--stream", "west")


# Negative control: a centre that works after the end of a step, 0.2 ms for each sensor, and publishes when it is done.
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
    """Arrival times of releases in pairs of steps; in one step of each pair, chosen at random, more sensors report.

    Times are relative to the step's own time, up to a constant.
    """
    coin, keys, interval_s = np.random.default_rng(seed), Keys.load(place[0] / "centre.keys"), 0.06
    crowd = [keys.issue(sensor) for sensor in range(64 + num_more)]
    arrived, has_more, step = {}, {}, 0

    def in_time():
        usual = np.median(list(arrived.copy().values()) or [0.0])
        return in_pairs(arrived, has_more, usual + 0.75 * interval_s)

    options = ("--interval", interval_s, "--delay", 0.055)
    with serve(place, "endless.dpfuse", *options, ledger=f"times-{seed}.db", first=first) as running:
        sensors, readers = addresses_of(running)

        def listen():
            with following(readers) as lines, suppress(httpx.TransportError):
                for event in iter(lambda: events(lines, 1)[0]["step"], None):
                    arrived[event] = time.monotonic() - interval_s * event

        threading.Thread(target=listen, daemon=True).start()
        with httpx.Client(base_url=sensors, trust_env=False, timeout=PATIENCE_S) as client:
            for _ in range(20):  # warm
                client.post("/v1/reports", **lines_of(*(key.sign("main", 1, [0.5, -0.5]) for key in crowd)))
            while len(pairs := in_time()) < num_pairs:
                assert len(has_more) < 10 * num_pairs
                step = max(step + 2, client.get("/v1/clock").json()["step"])
                has_more[step] = is_fuller = int(coin.integers(2))
                for number, is_full in ((step, is_fuller), (step + 1, not is_fuller)):
                    while (clock := client.get("/v1/clock").json())["step"] < number:
                        time.sleep(min(clock["closes_in_s"], 0.02))
                    batch = [key.sign("main", number, [0.5, -0.5]) for key in crowd[: len(crowd) if is_full else 64]]
                    client.post("/v1/reports", **lines_of(*batch))
        running.process.kill()
    return pairs


@pytest.mark.slow
def test_arrival_times_of_releases_do_not_show_one_more_sensor(place):
    """One false alarm in a million. Negative control: a hundred more sensors, which take 20 ms, are found."""
    assert not can_be_told_apart(arrivals(place, 1, 250, seed=1))
    assert can_be_told_apart(arrivals(place, 100, 250, seed=2, first=AT_ONCE))
