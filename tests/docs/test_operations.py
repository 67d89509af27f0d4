"""The operations page: every alert has an entry in its runbook, and its plan of a fleet can be read."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
import yaml

from dpfuse.fleet import FleetReporter
from dpfuse.fleet.plan import FleetPlan
from dpfuse.wire.keys import Keys

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()


def test_every_alert_has_an_entry_in_the_runbook_and_every_entry_an_alert():
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    runbook = PAGE.partition("## Runbook")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(Dpfuse\w+)`", runbook, re.M))
    assert named == {rule["alert"] for rule in rules}
    assert set(re.findall(r"`(Dpfuse\w+)`", PAGE)) <= named


def test_the_plan_on_the_page_is_one(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "roads.toml").write_text(text)
    assert set(FleetPlan.load(tmp_path / "roads.toml").shards) == {"north", "south"}


def test_the_example_of_a_sensor_reports_to_a_fleet(monkeypatch):
    """It is run as it is, until its first pause; the reports themselves are tested in `fleet/test_reporter.py`."""
    (text,) = re.findall(r"  ```py\n(.*?)  ```", PAGE, re.S)
    sent = []

    def send(self, stream, write_lines):
        sent.append((stream, json.loads(*write_lines("n1.2", 5))["step"]))

    def pause(seconds):
        raise StopIteration

    monkeypatch.setattr("time.sleep", pause)
    monkeypatch.setattr(FleetReporter, "send", send)
    monkeypatch.setattr(Keys, "load", lambda path: Keys.from_secret(bytes(32)))
    with pytest.raises(StopIteration):
        exec(textwrap.dedent(text), {})
    assert sent == [("n1", 5)]


def test_addresses_on_the_page_are_served():
    from dpfuse.fleet.overview import make_fleet_app
    from dpfuse.wire.operations import Operations
    from dpfuse.wire.operator_port import make_operator_app

    served = {route.path for app in (make_operator_app(Operations()), make_fleet_app(dict)) for route in app.routes}
    assert {"/startupz", "/readyz", "/livez", "/metrics", "/v1/map", "/healthz"} <= served
