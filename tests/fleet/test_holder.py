"""What holds a shard: one that does not answer any more is killed and started again."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpfuse.fleet import holder as holder_module
from dpfuse.fleet.holder import ShardHolder, ShardSpec


@pytest.fixture
def operator():
    """An operator's port that answers with `server.status`."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(self.server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.status = 200
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def held(tmp_path, operator):
    """A holder whose shard is up: another program in its place, and the operator's port of the test."""
    spec = ShardSpec(
        name="north",
        ledger=tmp_path / "ledger.db",
        streams=("a",),
        is_made=True,
        design="d",
        keys=Path("k"),
        port=9000,
    )
    holder = ShardHolder()
    holder._spec = spec
    holder._process = process = subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE)
    holder._started_at = time.monotonic()
    address = f"http://127.0.0.1:{operator.server_port}"
    holder._addresses = {"sensors": "http://127.0.0.1:1", "readers": "http://127.0.0.1:2", "operator": address}
    yield holder, spec, process
    process.kill()
    process.wait()
    process.stdin.close()


@pytest.fixture
def clock(monkeypatch):
    """The time that the holder reads, in a list."""
    now = [1000.0]
    monkeypatch.setattr(holder_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_options_name_the_ledger_so_that_each_has_a_witness_of_its_own(held):
    _, spec, _ = held
    spec = replace(spec, ledger=spec.ledger.with_name("ledger-2.db"), options=("--witness=/mnt/{ledger}.jsonl",))
    assert "--witness=/mnt/north-ledger-2.jsonl" in spec.serve_command()


def test_a_shard_that_is_not_alive_for_30_s_is_killed_and_down(held, operator, clock, caplog):
    holder, spec, process = held
    assert holder.ensure(spec).state == "up"
    operator.status = 503
    for passed_s in (5.0,) * 5 + (4.0,):
        clock[0] += passed_s
        assert holder.ensure(spec).state == "up" and process.poll() is None
    clock[0] += 1.0
    assert holder.ensure(spec).state == "up"
    assert process.wait(30) < 0
    assert "a shard hangs and is killed" in caplog.text
    assert holder.ensure(spec).state == "down" and "a shard has ended and starts again" in caplog.text


def test_a_shard_that_nobody_asked_for_long_is_not_killed_for_one_bad_answer(held, operator, clock):
    holder, spec, process = held
    assert holder.ensure(spec).state == "up"
    operator.status = 503
    for _ in range(5):
        clock[0] += 600.0
        assert holder.ensure(spec).state == "up"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)
    clock[0] += 600.0
    holder.ensure(spec)
    assert process.wait(30) < 0


def test_a_shard_whose_port_is_silent_for_30_s_counts_as_hanging(held, operator, clock, monkeypatch):
    holder, spec, process = held
    operator.shutdown()  # connections are taken and not answered
    monkeypatch.setattr(holder_module, "_ANSWERS_WITHIN_S", 0.05)
    for _ in range(6):
        assert holder.ensure(spec).state == "up" and process.poll() is None
        clock[0] += 5.0
    assert holder.ensure(spec).state == "up"
    assert process.wait(30) < 0


def test_on_a_node_that_has_not_the_ledger_nothing_is_made_and_nothing_is_lost(tmp_path, held):
    _, spec, _ = held
    holder = ShardHolder(lambda: "10.0.0.5")
    for is_made in (False, True):
        found = holder.ensure(replace(spec, node="10.0.0.4", is_made=is_made))
        assert (found.state, found.node) == ("elsewhere", "10.0.0.5")
    assert not spec.ledger.exists()
    assert holder.ensure(replace(spec, node="10.0.0.5")).state == "lost"


def test_a_shard_that_is_alive_again_is_not_killed(held, operator, clock):
    holder, spec, process = held
    for status in (503, 503, 503, 200) * 3:
        operator.status = status
        assert holder.ensure(spec).state == "up"
        clock[0] += 5.0
    assert process.poll() is None
