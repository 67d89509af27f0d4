"""The operator's port: startup, readiness and liveness apart, private metrics behind a token, and skips logged once."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace

import httpx
import pytest

from dpfuse.public.parts import CentreParts
from dpfuse.wire import operations as operations_module
from dpfuse.wire.operations import Operations, PartsWatch
from dpfuse.wire.operator_port import make_operator_app
from support.wire import call, command, endless_design, rig, wait_for


def codes(operations):
    app = make_operator_app(operations)
    return {path: call(app, "GET", f"/{path}").status_code for path in ("startupz", "readyz", "livez")}


def number_of_steps(metrics):
    found = re.search(r'^dpfuse_steps_total\{result="released"\} (\S+)$', metrics, re.MULTILINE)
    return float(found[1]) if found else 0


@pytest.fixture
def watched(tmp_path):
    """A running centre that an `Operations` follows."""
    with rig(tmp_path) as live:
        operations = Operations()
        operations.watch(live.watch, live.feed, live.ledger.path, live.intake.counts.copy)
        yield SimpleNamespace(live=live, operations=operations)


class TestChecks:
    def test_a_centre_that_starts_is_alive_and_not_ready(self):
        assert codes(Operations()) == {"startupz": 503, "readyz": 503, "livez": 200}

    def test_a_centre_that_releases_is_ready(self, watched):
        watched.live.tick()
        watched.operations.is_started = True
        assert codes(watched.operations) == {"startupz": 200, "readyz": 200, "livez": 200}

    @pytest.mark.parametrize(
        "parts", [CentreParts(ledger=False), CentreParts(bank=False), CentreParts(broker=False)], ids=str
    )
    def test_a_part_that_is_away_makes_it_unready_and_no_restart(self, watched, parts):
        watched.operations.is_started = True
        watched.live.feed._parts = lambda: parts
        assert codes(watched.operations) == {"startupz": 200, "readyz": 503, "livez": 200}

    def test_a_ticker_that_hangs_or_failed_is_not_alive(self, watched, monkeypatch):
        watched.operations.is_started = True
        watched.live.watch.status = "failed"
        assert codes(watched.operations)["livez"] == 503
        watched.live.watch.status = "running"
        watched.operations.on_release(1, 0.001)
        assert codes(watched.operations)["livez"] == 200
        monkeypatch.setattr(operations_module, "_HANGS_S", 0.0)
        monkeypatch.setattr(operations_module, "_HANGS_STEPS", 0)
        assert codes(watched.operations)["livez"] == 503


class TestMetrics:
    def test_metrics_count_steps_latency_and_reports(self, watched):
        watched.live.send(watched.live.report(), watched.live.report(sensor=8) | {"mac": "0" * 64})
        watched.operations.on_release(1, 0.03)
        watched.operations.on_skip(2, "late")
        watched.operations.on_skip(3, "bank")
        headers = {"Authorization": "Bearer a-token"}
        text = call(make_operator_app(watched.operations, "a-token"), "GET", "/metrics", headers=headers).text
        for line in [
            'dpfuse_steps_total{result="released"} 1.0',
            'dpfuse_steps_total{result="skipped_late"} 1.0',
            'dpfuse_steps_total{result="skipped_bank"} 1.0',
            'dpfuse_tick_seconds_bucket{le="0.02"} 0.0',
            'dpfuse_tick_seconds_bucket{le="0.05"} 1.0',
            "dpfuse_tick_seconds_count 1.0",
            'dpfuse_reports_total{result="taken"} 1.0',
        ]:
            assert f"\n{line}\n" in text, line
        for name in ("dpfuse_ledger_bytes", "dpfuse_disk_free_bytes", "process_resident_memory_bytes"):
            assert f"\n{name} " in text
        assert "dpfuse_versions_info{" in text

    def test_metrics_need_the_token_and_checks_do_not(self):
        app = make_operator_app(Operations(), token="a-token")
        assert call(app, "GET", "/metrics").status_code == 401
        assert call(app, "GET", "/metrics", headers={"Authorization": "Bearer b-token"}).status_code == 401
        assert call(app, "GET", "/metrics", headers={"Authorization": "Bearer a-token"}).status_code == 200

    def test_without_a_token_metrics_are_closed(self):
        """Other users of the machine can reach the port."""
        app = make_operator_app(Operations())
        for given in ("Bearer None", "Bearer "):
            assert call(app, "GET", "/metrics", headers={"Authorization": given}).status_code == 401
        assert call(app, "GET", "/livez").status_code == 200

    def test_no_private_number_is_at_the_readers_address(self, watched):
        watched.live.tick()
        public = watched.live.get("/metrics").text
        for name in ("dpfuse_tick_", "dpfuse_reports", "process_", "dpfuse_ledger_bytes"):
            assert name not in public


def test_a_run_of_skips_is_logged_once_and_its_length_once(caplog):
    operations = Operations()
    with caplog.at_level(logging.WARNING):
        operations.on_release(1, 0.0)
        for step in (2, 3, 4):
            operations.on_skip(step, "late")
        operations.on_release(5, 0.0)
        operations.on_skip(6, "bank")
        operations.on_release(7, 0.0)
    logged = [(record.getMessage(), record.fields) for record in caplog.records]
    assert logged == [
        ("a step was skipped", {"step": 2, "reason": "late"}),
        ("releases go on", {"step": 5, "skipped": 3}),
        ("a step was skipped", {"step": 6, "reason": "bank"}),
    ]


@pytest.mark.slow
def test_a_served_centre_has_an_operators_port_and_logs_json(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFUSE_OPERATOR_TOKEN", "a-token")
    endless_design().save(tmp_path / "d.dpfuse")
    with command("keys", "new", "--keys", "k", folder=tmp_path) as made:
        assert made.process.wait(60) == 0, made.stderr()
    options = ["--design=d.dpfuse", "--ledger=l/l.db", "--new", "--keys=k", "--port=0", "--reading-port=0"]
    options += ["--operator-port=0", "--log-format=json", "--log-level=info", "--interval=0.2"]
    with command("serve", *options, folder=tmp_path) as running:
        wait_for(lambda: "operator " in running.stdout() or running.process.poll() is not None)
        operator = running.stdout().split()[1]
        headers = {"Authorization": "Bearer a-token"}
        with httpx.Client(base_url=operator, trust_env=False, headers=headers) as client:
            assert client.get("/livez").status_code == 200
            wait_for(lambda: client.get("/startupz").status_code == 200)
            wait_for(lambda: client.get("/readyz").status_code == 200)
            wait_for(lambda: number_of_steps(client.get("/metrics").text) >= 5)
        running.process.terminate()
        assert running.process.wait(60) == 0
        lines = [json.loads(line) for line in running.stderr().splitlines()]
    assert any(line["message"] == "the centre has started" and line["streams"] == 1 for line in lines)


def test_the_age_of_the_banks_answer_is_public_in_whole_seconds():
    bank = SimpleNamespace(may_release=True, answer_age_s=1.9, terms=SimpleNamespace(epoch_s=2.5))
    parts = PartsWatch(bank, [])()
    assert (parts.epoch_age_s, parts.epoch_s) == (1.0, 2.5) and CentreParts.from_dict(parts._asdict()) == parts
