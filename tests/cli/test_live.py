"""The whole of it, as `dpfuse live` starts it: centre, vehicles and remote estimator in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

import dpfuse
from dpfuse.cli import app
from dpfuse.cli._parts import Parts, stopped_at_the_end
from dpfuse.cli.live import DESIGN, Watched, _state_mean
from dpfuse.ledger import public_rows
from dpfuse.privacy import squared_steps
from dpfuse.wire.tokens import new_secret
from support.wire import PATIENCE_S, following, wait_for

RECORD = json.loads(DESIGN.with_suffix(".json").read_text())


@pytest.fixture(scope="module", autouse=True)
def compiled_once(request):
    """What other tests and runs have compiled serves these processes too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(request.config.cache.mkdir("jax")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        patch.setenv("JAX_PLATFORMS", "cpu")
        yield


def start(*arguments, folder):
    command = [sys.executable, "-W", "error", "-c", "from dpfuse.cli import main; main()", "live", "--json"]
    return subprocess.Popen(
        [*command, "--port", "0", "--out", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process, timeout_s):
    """The summary it prints; whatever happens, it does not outlive the test."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
    assert process.returncode == 0, err
    return json.loads(out)


def state_and_parent(number):
    """Of a process, as Linux tells it."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "gone", ""


def children_of(folder):
    """Processes that have the folder among their arguments."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def spent_by_sensor(folder):
    """What each sensor was debited, in Python integers, from the accounts of the ledger; private but in a replay."""
    import apsw

    connection = apsw.Connection(str(folder / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return dict(connection.execute("SELECT sensor, spent FROM accounts"))
    finally:
        connection.close()


def test_it_comes_up_releases_flow_and_it_ends_clean(tmp_path):
    folder = tmp_path / "live"
    process = start(folder=folder)
    try:
        url = process.stderr.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(url, timeout=PATIENCE_S).status_code == 200  # the page
        # Twice as many as are asked for below: who follows the feed may be a little behind the estimator.
        wait_for(lambda: (folder / "estimate.out").read_text().count("\n") >= 16 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
    finally:
        summary = end(process, PATIENCE_S)
    assert summary["ledger"]["rows"] >= summary["steps"] >= 8
    # The feed has six digits of numbers below 1000.
    assert summary["estimator"]["steps_compared"] >= 5
    assert summary["estimator"]["largest_difference"] <= 1e-3
    estimates = [json.loads(line) for line in (folder / "estimate.out").read_text().splitlines()]
    assert [each["step"] for each in estimates] == sorted({each["step"] for each in estimates})
    assert all(each["std"][0] > 0 for each in estimates)
    assert "reports sent" in (folder / "replay.log").read_text()
    assert (folder / "serve.log").read_text() == ""
    assert not children_of(folder)


def test_a_folder_with_a_ledger_in_it_is_left_alone(tmp_path):
    (tmp_path / "ledger.db").touch()
    result = CliRunner().invoke(app, ["live", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "fresh ledger" in result.output
    assert (tmp_path / "ledger.db").read_bytes() == b""


@pytest.mark.slow
def test_it_says_what_went_wrong_and_leaves_nobody_behind(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]), folder=tmp_path / "live")
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "`dpfuse serve` ended: dpfuse: [Errno 98] Address already in use" in err
    assert not children_of(tmp_path)


class TestWatched:
    def test_errors_and_missed_ticks_add_up(self):
        watched = Watched(prior=100.0)
        for step, mean, truth in [(3, 90.0, 93.0), (4, 95.0, 91.0), (6, 95.0, None)]:
            error = None if truth is None else [mean - truth]
            watched.take({"step": step, "mean": [mean], "truth": truth and [truth], "error": error, "latency_ms": 2.0})
        assert (watched.num_steps, watched.num_missed, watched.num_with_truth) == (3, 1, 2)
        assert watched.rmse == pytest.approx(np.sqrt((9 + 16) / 2))
        assert watched.prior_rmse == pytest.approx(np.sqrt((49 + 81) / 2))


class TestBuiltInDesign:
    def test_it_is_stationary_and_promises_what_its_record_says(self):
        design = dpfuse.load(DESIGN)
        assert design.structure.horizon is None
        assert design.guarantee == dpfuse.Guarantee(**RECORD["guarantee"])
        assert design.guarantee.accounting == "individual"
        assert (design.fingerprint, design.interval_s) == (RECORD["fingerprint"], 0.2)

    def test_the_record_shows_that_it_tracks(self):
        assert RECORD["within_budget"]
        assert RECORD["ci95"][1] < 0.1 * RECORD["prior_mse"]
        assert RECORD["non_private_mse"] < RECORD["mse"] < 3 * RECORD["non_private_mse"]
        # Ten minutes through, no minute is lost.
        assert max(RECORD["mse_by_minute"]) < 0.15 * RECORD["prior_mse"]
        assert 0.9 < RECORD["coverage"] < 0.99


def read_feed(url, points):
    with suppress(httpx.TransportError), following(url, path="feed") as lines:
        for line in lines:
            if line.startswith("data: ") and '"mean"' in line:
                points.append(json.loads(line.removeprefix("data: ")))


def kept_up(points, memory=25):
    """Those points, with the truth known, before which nine of ten steps were released and had reports.

    On a busy machine a step may be skipped and reports may be late. What was not told cannot be tracked.
    """
    heard = {point["step"] for point in points if point["reports"]}
    return [
        point
        for point in points
        if point["error"] and len(heard & set(range(point["step"] - memory, point["step"]))) >= 0.9 * memory
    ]


@pytest.mark.slow
def test_ten_minutes_of_traffic_are_tracked_and_no_vehicle_pays_more_than_it_has(tmp_path):
    """At four times the speed, with losses, repeats and garbage: 150 s of wall time."""
    folder = tmp_path / "live"
    process = start("--speed", "4", "--seconds", "155", "--loss", "0.05", "--garbage", "0.02", folder=folder)
    points = []
    url = process.stderr.readline().split()[0]
    threading.Thread(target=read_feed, args=(url, points), daemon=True).start()
    summary = end(process, 900)
    assert summary["steps"] + summary["missed"] >= 3000  # ten minutes in steps of 0.2 s
    # All that was released was told, but for what was on its way at the end.
    rows = [row.step for row in public_rows(folder / "ledger.db")]
    assert len(rows) - 5 <= summary["steps"] <= len(rows)
    assert [point["step"] for point in points] == rows[: len(points)] and len(points) >= len(rows) - 5
    tracked = kept_up(points)
    assert len(tracked) > 300
    errors, truths = (np.array([point[name][0] for point in tracked]) for name in ("error", "truth"))
    assert np.sqrt(np.mean(errors**2)) < 0.4 * np.sqrt(np.mean((truths - _state_mean()) ** 2))
    assert summary["estimator"]["largest_difference"] <= 1e-3
    budget = squared_steps(dpfuse.load(DESIGN).guarantee)
    spent = spent_by_sensor(folder)
    assert len(spent) > 300
    assert all(type(each) is int and 0 <= each <= budget for each in spent.values())
    # Negative control: the budget is what holds them back, not that they have nothing to say.
    assert max(spent.values()) > 0.9 * budget
    assert not children_of(folder)


@pytest.mark.slow
def test_a_kill_leaves_nobody_behind(tmp_path):
    with start(folder=tmp_path / "live") as process:
        wait_for(lambda: (tmp_path / "live/replay.out").exists())
        parts = [number for number in os.listdir("/proc") if state_and_parent(number)[1] == str(process.pid)]
        assert len(parts) == 3
        process.kill()
    wait_for(lambda: {state_and_parent(part)[0] for part in parts} <= {"gone", "Z"})  # Z: nobody here buries it


@pytest.mark.slow
def test_a_centre_that_is_killed_and_comes_back_is_followed_on(tmp_path):
    """Estimator and vehicles outlive it, and what the one has read is what the ledger holds."""
    new_secret(tmp_path / "secret")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    places = ("--secret", str(tmp_path / "secret"), "--ledger", str(tmp_path / "ledger.db"))
    centre = ("serve", "--design", str(DESIGN), *places, "--port", port, "--replay")

    def num_estimates():
        return (tmp_path / "estimate.out").read_text().count("\n")

    def num_returns(name):
        return (tmp_path / f"{name}.log").read_text().count("is back")

    def goes_on(number, num_kills):
        """Whether there are so many estimates, and both have found the centre again after each kill."""
        parts.check()
        is_found = all(num_returns(name) >= num_kills for name in ("estimate", "replay"))
        return is_found and num_estimates() >= number

    with stopped_at_the_end(Parts(tmp_path)) as parts:
        parts.start(*centre, "--new")
        url = parts.first_line("serve")
        parts.start("estimate", "--from", url)
        parts.start("replay", "--to", url, "--secret", str(tmp_path / "secret"))
        for num_kills in range(2):
            wait_for(partial(goes_on, num_estimates() + 10, num_kills))
            with parts.running.pop("serve") as killed:
                killed.kill()
            parts.start(*centre)
        parts.first_line("serve")
        wait_for(partial(goes_on, num_estimates() + 10, 2))
    read = [json.loads(line)["step"] for line in (tmp_path / "estimate.out").read_text().splitlines()]
    rows = [row.step for row in public_rows(tmp_path / "ledger.db")]
    assert read == rows[: len(read)] and len(read) >= 30
    assert (tmp_path / "serve.log").read_text() == ""
