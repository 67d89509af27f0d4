"""Health and metrics: what they show, and that they and the feed do not depend on the sensors."""

from __future__ import annotations

import json
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dpfuse.privacy import Mechanism
from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.privacy.release import Release
from dpfuse.public import feed as feed_module
from dpfuse.public import metrics as metrics_module
from dpfuse.public.hub import Hub
from dpfuse.public.parts import CentreParts
from support.designs import make_design
from support.wire import events, following, rig, serving


def samples(text):
    """The value of each metric, by name and labels."""
    families = list(text_string_to_metric_families(text))
    return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}


class TestHealth:
    def test_a_centre_that_releases_on_time_is_healthy(self, tmp_path):
        with rig(tmp_path) as live:
            for step in range(1, 4):
                live.tick()
                answer = live.get("/healthz")
                assert answer.status_code == 200
                counts = {"step": step, "steps_behind": 0, "steps_missing": 0}
                assert answer.json() == {"health": "ok", "status": "running", **counts}

    def test_a_centre_that_falls_behind_is_late(self, tmp_path):
        with rig(tmp_path) as live:
            live.tick()
            # At 0.2 s a step, a tenth of twenty seconds are ten of them.
            for num_behind, status, code in [(10, "ok", 200), (11, "late", 503)]:
                while live.centre.now < 2 + num_behind:
                    live.centre.skip()
                answer = live.get("/healthz")
                assert (answer.status_code, answer.json()["health"]) == (code, status)
                assert answer.json()["steps_behind"] == answer.json()["steps_missing"] == num_behind

    def test_a_centre_that_skips_a_third_of_its_steps_is_late_until_it_has_released_enough(self, tmp_path):
        with rig(tmp_path) as live:
            seen = []
            for _ in range(13):
                live.tick()
                live.centre.skip()
                live.tick()  # so that it is never behind
                answer = live.get("/readyz")
                assert answer.json()["steps_behind"] == 0
                seen.append((answer.status_code, answer.json()["health"], answer.json()["steps_missing"]))
            assert seen == [(200, "ok", number) for number in range(1, 11)] + [(503, "late", n) for n in (11, 12, 13)]
            while (missing := live.get("/healthz").json()["steps_missing"]) > 10:
                live.tick()
            assert live.get("/healthz").status_code == 200 and missing == 10
            assert live.centre.now == 109  # a hundred steps after step 9: the third one that was skipped is step 8

    @pytest.mark.parametrize("status, code", [("over", 200), ("failed", 503), ("stopped", 503)])
    def test_a_centre_that_has_stopped_gives_the_reason(self, tmp_path, status, code):
        with rig(tmp_path) as live:
            live.tick()
            live.watch.status = status
            answer = live.get("/healthz")
            assert (answer.status_code, answer.json()["health"]) == (code, status)

    def test_health_is_that_of_the_slowest_stream(self, tmp_path):
        with rig(tmp_path, streams=("north", "south")) as live:
            live.tick()
            live.hub.publish([one for one in live.centre.tick() if one.row.stream == "north"])
            counts = {"step": 1, "steps_behind": 1, "steps_missing": 1}
            assert live.get("/healthz").json() == {"health": "ok", "status": "running", **counts}

    @pytest.mark.parametrize(("skip_every", "health"), [(3, "late"), (12, "ok")])
    def test_with_many_streams_a_centre_that_skips_many_steps_is_late(self, skip_every, health):
        """Sixteen releases of each stream are in memory, and the last twenty seconds have two hundred steps."""
        names = [f"s{number}" for number in range(4096)]
        hub = Hub(dict.fromkeys(names, 0), iter)
        for step in range(1, 28):
            if step % skip_every:
                rows = [SimpleNamespace(row=SimpleNamespace(stream=name, step=step)) for name in names]
                hub.publish(rows, [None] * len(rows))
        feed = SimpleNamespace(hub=hub, settings=SimpleNamespace(interval_s=0.1), first_step=1, status="running")
        assert metrics_module.health_of(feed, {"step": 28})["health"] == health

    def test_the_relay_lives_while_releases_are_late(self, tmp_path):
        with rig(tmp_path) as live:
            live.watch.status = "failed"
            assert live.get("/livez").status_code == 200 and live.get("/readyz").status_code == 503


class TestMetrics:
    def test_metrics_hold_the_last_release_of_every_stream(self, tmp_path):
        with rig(tmp_path, make_design("total", spread=0.3), streams=("north", "south")) as live:
            live.tick()
            live.centre.skip()
            last = {one.row.stream: one for one in live.tick()}
            found = samples(live.get("/metrics").text)
            for name, one in last.items():
                stream = ("stream", name)
                assert found["dpfuse_step", stream] == 3
                assert found["dpfuse_releases_total", stream] == 2
                assert found["dpfuse_skipped_steps_total", stream] == 1
                assert found["dpfuse_fusion_weight", stream] == one.row.fusion_weight
                assert found["dpfuse_loss", stream] == as_loss(2.0, one.row.cost)
                assert found["dpfuse_loss_left", stream] == as_loss(2.0, one.row.budget_left)
                assert found["dpfuse_estimate", ("coordinate", "1"), stream] == one.mean[0]
                assert found["dpfuse_estimate_std", ("coordinate", "1"), stream] == one.std[0]
            assert found["dpfuse_budget",] == 1.5
            assert found["dpfuse_order",] == 2.0
            assert found["dpfuse_ticker_status", ("status", "running")] == 1
            assert found["dpfuse_ticker_status", ("status", "failed")] == 0

    def test_no_metric_shows_what_sensors_have_left(self, tmp_path):
        with rig(tmp_path) as live:
            live.send(*(live.report(sensor) for sensor in range(3)))
            live.tick()
            names = {name for name, *_ in samples(live.get("/metrics").text)}
            assert "dpfuse_loss" in names
            assert not {name for name in names if "left" in name or "sensor" in name or "report" in name}

    def test_no_metric_is_about_the_process(self, tmp_path):
        """Time and memory depend on the number of sensors."""
        with rig(tmp_path) as live:
            live.tick()
            assert all(name.startswith("dpfuse_") for name, *_ in samples(live.get("/metrics").text))

    def test_before_the_first_release_there_is_no_estimate(self, tmp_path):
        with rig(tmp_path) as live:
            found = samples(live.get("/metrics").text)
            assert found["dpfuse_step", ("stream", "main")] == 0
            assert not {name for name, *_ in found if "estimate" in name}

    def test_metrics_hold_time_and_bytes_of_releases_in_whole_seconds(self, tmp_path, monkeypatch):
        monkeypatch.setattr(feed_module, "wall_clock", lambda: 1_800_000_000.7)
        with rig(tmp_path) as live:
            live.tick()
            live.tick()
            found = samples(live.get("/metrics").text)
            width = len(live.hub.messages("main")[0].content)
            assert found["dpfuse_last_release_timestamp_seconds", ("stream", "main")] == 1_800_000_000
            assert found["dpfuse_release_bytes_total", ("stream", "main")] == 2 * width

    def test_metrics_show_the_parts_that_a_centre_has(self, tmp_path):
        with rig(tmp_path) as live:
            live.tick()
            found = samples(live.get("/metrics").text)
            assert found["dpfuse_ledger_up",] == 1
            assert not any("bank" in name or "broker" in name for name, *_ in found)
            live.feed._parts = lambda: CentreParts(True, False, True, 12.5, 60.0)
            found = samples(live.get("/metrics").text)
            assert found["dpfuse_bank_up",] == 0 and found["dpfuse_broker_connected",] == 1
            assert found["dpfuse_bank_epoch_age_seconds",] == 12.5
            assert found["dpfuse_bank_epoch_seconds",] == 60.0
            live.watch.status = "failed"
            assert samples(live.get("/metrics").text)["dpfuse_ledger_up",] == 0

    def test_names_and_units_of_a_design_are_in_metrics_page_and_guarantee(self, tmp_path):
        design = make_design("individual", horizon=None).with_labels(["density [veh/km]"], ["speed [m/s]", "lane"])
        with rig(tmp_path, design) as live:
            found = samples(live.get("/metrics").text)
            assert found["dpfuse_coordinate_info", ("coordinate", "1"), ("name", "density"), ("unit", "veh/km")] == 1
            assert found["dpfuse_channel_info", ("channel", "1"), ("name", "speed"), ("unit", "m/s")] == 1
            assert found["dpfuse_channel_info", ("channel", "2"), ("name", "lane"), ("unit", "")] == 1
            assert '{"name": "density", "unit": "veh/km"}' in live.get("/").text
            facts = live.get("/v1/guarantee").json()
            assert facts["labels"] == ["density [veh/km]"] and facts["channels"][1]["label"] == "lane"


def fixed_draws(mechanism, many, noise):
    """In the place of noise: releases that do not depend on what was summed."""
    rng = np.random.default_rng(len(many))
    return [Release(rng.integers(-GRID, GRID, mechanism.dimension), one.fusion_weight, one.budget_left) for one in many]


def what_is_seen(folder, design, sensors, **options):
    """Everything that an observer gets in four steps with these sensors."""
    folder.mkdir()
    seen = []
    with rig(folder, design, **options) as live, serving(live.app) as address:
        for step in range(1, 5):
            live.send(*(live.report(sensor, [0.1 * sensor, -0.4], step=step) for sensor in sensors))
            live.tick()
            with httpx.Client(trust_env=False) as client:
                seen += [client.get(f"{address}/{path}").content for path in ("metrics", "healthz")]
        with following(address, path="feed") as lines:
            seen.append(json.dumps(events(lines, 5)).encode())
        rows = [(one.row.step, one.row.release, one.row.fusion_weight) for one in live.hub.recent("main")]
    return seen, rows


class TestIndependenceOfSensors:
    """If the rows are the same, everything else that is public is the same, byte for byte."""

    @pytest.fixture(autouse=True)
    def same_rows(self, monkeypatch):
        monkeypatch.setattr(Mechanism, "draw_many", fixed_draws)
        monkeypatch.setattr(feed_module, "wall_clock", lambda: 1_800_000_000.7)

    @pytest.mark.parametrize("accounting", ["total", "individual"])
    def test_metrics_health_and_feed_do_not_depend_on_the_sensors(self, tmp_path, accounting):
        design = make_design(accounting, spread=0.5, horizon=None if accounting == "individual" else 6)
        few, rows = what_is_seen(tmp_path / "few", design, [])
        many, other_rows = what_is_seen(tmp_path / "many", design, range(30))
        assert rows == other_rows
        assert few == many

    def test_a_metric_with_the_number_of_sensors_is_found(self, tmp_path, monkeypatch):
        """Negative control, in the metrics."""
        counted = []
        collect = metrics_module.Collector._settings

        def leaky(self):
            yield from collect(self)
            yield metrics_module._gauge("dpfuse_sensors", "Who is there", float(len(counted)))

        monkeypatch.setattr(metrics_module.Collector, "_settings", leaky)
        design = make_design(spread=0.5)
        few, _ = what_is_seen(tmp_path / "few", design, [])
        counted += range(30)
        many, _ = what_is_seen(tmp_path / "many", design, range(30))
        assert few[-1] == many[-1]
        assert few[0] != many[0]

    def test_the_feed_of_a_replay_depends_on_the_sensors(self, tmp_path):
        """Negative control, in the feed: a replay shows the number of reports."""
        design = make_design(spread=0.5)
        few, _ = what_is_seen(tmp_path / "few", design, [], replay=True)
        many, _ = what_is_seen(tmp_path / "many", design, range(30), replay=True)
        assert few[:-1] == many[:-1]
        assert few[-1] != many[-1]
