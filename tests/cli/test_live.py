"""`dpfuse live`: centre, vehicles and remote estimator, each in its own process."""

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
from dpfuse.cli._feed_summary import FeedSummary
from dpfuse.cli._processes import Processes, stopped_at_exit
from dpfuse.cli.live import DESIGN, state_mean
from dpfuse.ledger import public_rows
from dpfuse.privacy import squared_steps
from dpfuse.wire.key_file import KeyFile
from support.wire import PATIENCE_S, following, wait_for, without_skips


@pytest.fixture(scope="module", autouse=True)
def compiled_once(request):
    """These processes use the compilation cache of all tests."""
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
    """The summary that it prints. The process never outlives the test."""
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
    """The state and the parent of a process, from Linux."""
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
    """What each sensor was debited, in Python integers, from the accounts of the ledger."""
    import apsw

    connection = apsw.Connection(str(folder / "ledger.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return dict(connection.execute("SELECT sensor, spent FROM accounts"))
    finally:
        connection.close()


@pytest.mark.slow
def test_releases_are_estimated_and_all_processes_end_at_ctrl_c(tmp_path):
    folder = tmp_path / "live"
    process = start(folder=folder)
    try:
        url = process.stderr.readline().split()[0]
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(url, timeout=PATIENCE_S).status_code == 200  # the page
        # Twice as many as are compared below, because the feed may be a little behind the estimator.
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
    assert without_skips((folder / "serve.log").read_text()) == ""
    assert not children_of(folder)


def test_a_folder_that_holds_a_ledger_is_refused(tmp_path):
    (tmp_path / "ledger.db").touch()
    result = CliRunner().invoke(app, ["live", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "empty folder" in result.output
    assert (tmp_path / "ledger.db").read_bytes() == b""


@pytest.mark.parametrize("road", [("--lanes", "3"), ("--section-m", "200")])
def test_the_lanes_of_the_built_in_freeway_cannot_be_changed(tmp_path, road):
    result = CliRunner().invoke(app, ["live", "--out", str(tmp_path / "live"), *road], env={"COLUMNS": "200"})
    assert result.exit_code == 2 and "need --data: the built-in freeway has 5 lanes and 400 m" in result.output
    assert not (tmp_path / "live").exists()


@pytest.mark.slow
def test_a_port_in_use_is_reported_and_no_process_is_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start("--port", str(taken.getsockname()[1]), folder=tmp_path / "live")
        _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "`dpfuse serve` ended: dpfuse: [Errno 98] Address already in use" in err
    assert not children_of(tmp_path)


class TestFeedSummary:
    def test_errors_and_skipped_steps_are_summed(self):
        feed = FeedSummary(prior=100.0)
        for step, mean, truth in [(3, 90.0, 93.0), (4, 95.0, 91.0), (6, 95.0, None)]:
            error = None if truth is None else [mean - truth]
            feed.add({"step": step, "mean": [mean], "truth": truth and [truth], "error": error, "latency_ms": 2.0})
        assert (feed.num_steps, feed.num_skipped, feed.num_with_truth) == (3, 1, 2)
        assert feed.rmse == pytest.approx(np.sqrt((9 + 16) / 2))
        assert feed.prior_rmse == pytest.approx(np.sqrt((49 + 81) / 2))


def test_the_built_in_design_is_stationary_with_individual_accounting():
    design = dpfuse.load(DESIGN)
    assert design.structure.horizon is None and design.interval_s == 0.2
    assert design.guarantee is not None and design.guarantee.accounting == "individual"


def read_feed(url, points):
    with suppress(httpx.TransportError), following(url, path="feed") as lines:
        for line in lines:
            if line.startswith("data: ") and '"mean"' in line:
                points.append(json.loads(line.removeprefix("data: ")))


def kept_up(points, memory=25):
    """The points with a known truth before which nine of ten steps had a release with reports.

    On a busy machine steps may be skipped and reports may be late, and then the estimate cannot be good.
    """
    reported = {point["step"] for point in points if point["reports"]}
    return [
        point
        for point in points
        if point["error"] and len(reported & set(range(point["step"] - memory, point["step"]))) >= 0.9 * memory
    ]


@pytest.mark.slow
def test_ten_minutes_of_traffic_are_tracked_within_every_budget(tmp_path):
    """At four times the speed, with losses, repeats and garbage: 150 s of wall time."""
    folder = tmp_path / "live"
    process = start("--speed", "4", "--seconds", "155", "--loss", "0.05", "--garbage", "0.02", folder=folder)
    points = []
    url = process.stderr.readline().split()[0]
    threading.Thread(target=read_feed, args=(url, points), daemon=True).start()
    summary = end(process, 900)
    assert summary["steps"] + summary["skipped"] >= 3000  # ten minutes in steps of 0.2 s
    # The feed shows every release, except those in transit at the end.
    rows = [row.step for row in public_rows(folder / "ledger.db")]
    assert len(rows) - 5 <= summary["steps"] <= len(rows)
    assert [point["step"] for point in points] == rows[: len(points)] and len(points) >= len(rows) - 5
    tracked = kept_up(points)
    assert len(tracked) > 300
    errors, truths = (np.array([point[name][0] for point in tracked]) for name in ("error", "truth"))
    assert np.sqrt(np.mean(errors**2)) < 0.4 * np.sqrt(np.mean((truths - state_mean()) ** 2))
    assert summary["estimator"]["largest_difference"] <= 1e-3
    budget = squared_steps(dpfuse.load(DESIGN).guarantee)
    spent = spent_by_sensor(folder)
    assert len(spent) > 300
    assert all(type(each) is int and 0 <= each <= budget for each in spent.values())
    # Negative control: some vehicles spend most of their budget.
    assert max(spent.values()) > 0.6 * budget
    assert not children_of(folder)


@pytest.mark.slow
def test_no_process_is_left_after_a_kill(tmp_path):
    with start(folder=tmp_path / "live") as process:
        wait_for(lambda: (tmp_path / "live/replay.out").exists())
        parts = [number for number in os.listdir("/proc") if state_and_parent(number)[1] == str(process.pid)]
        assert len(parts) == 3
        process.kill()
    wait_for(lambda: {state_and_parent(part)[0] for part in parts} <= {"gone", "Z"})  # Z: a zombie


@pytest.mark.slow
def test_estimator_and_vehicles_go_on_after_the_centre_was_killed(tmp_path):
    """The estimator has read the rows that the ledger holds."""
    KeyFile.create(tmp_path / "centre.keys")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = ("--port", str(one.getsockname()[1]), "--reading-port", str(other.getsockname()[1]))
    places = ("--keys", str(tmp_path / "centre.keys"), "--ledger", str(tmp_path / "ledger.db"))
    centre = ("serve", "--design", str(DESIGN), *places, *ports, "--replay", "--input", "reporting_lanes=0.6")

    def num_estimates():
        return (tmp_path / "estimate.out").read_text().count("\n")

    def num_returns(name):
        return (tmp_path / f"{name}.log").read_text().count("is back")

    def goes_on(number, num_kills):
        """Whether there are so many estimates, and both have reconnected after each kill."""
        processes.check()
        is_found = all(num_returns(name) >= num_kills for name in ("estimate", "replay"))
        return is_found and num_estimates() >= number

    with stopped_at_exit(Processes(tmp_path)) as processes:
        processes.start(*centre, "--new")
        for_sensors, for_readers = (line.split()[1] for line in processes.first_lines("serve", 2))
        processes.start("estimate", "--from", for_readers)
        processes.start("replay", "--to", for_sensors, "--keys", str(tmp_path / "centre.keys"))
        for num_kills in range(2):
            wait_for(partial(goes_on, num_estimates() + 10, num_kills))
            with processes.running.pop("serve") as killed:
                killed.kill()
            processes.start(*centre)
        processes.first_lines("serve", 2)
        wait_for(partial(goes_on, num_estimates() + 10, 2))
    read = [json.loads(line)["step"] for line in (tmp_path / "estimate.out").read_text().splitlines()]
    rows = [row.step for row in public_rows(tmp_path / "ledger.db")]
    assert read == rows[: len(read)] and len(read) >= 30
    assert without_skips((tmp_path / "serve.log").read_text()) == ""
