"""The feed of the page: a point for each release, and the status of the centre."""

from __future__ import annotations

import time

import pytest

from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.public import feed as feed_module
from support.designs import make_design
from support.wire import events, following, rig, serving, wait_for


def test_the_feed_has_a_point_for_each_release(tmp_path):
    with rig(tmp_path, make_design("total", spread=0.3)) as live, serving(live.app) as address:
        published = [live.tick()[0] for _ in range(3)]
        with following(address, path="feed") as lines:
            status, *points = events(lines, 4)
    parts = {"ledger": True, "bank": None, "broker": None, "epoch_age_s": None, "epoch_s": None}
    expected = {"status": "running", "first_step": 1, "step": 3, "design": live.design.fingerprint, "parts": parts}
    assert status == expected
    for point, one in zip(points, published, strict=True):
        assert set(point) == {"step", "at", "mean", "std", "release", "fusion_weight", "loss", "loss_left"}
        assert point["at"] == int(point["at"]) and abs(time.time() - point["at"]) < 60
        assert point["step"] == one.row.step
        assert point["mean"] == pytest.approx(one.mean, rel=1e-5)
        assert point["std"] == pytest.approx(one.std, rel=1e-5)
        assert (point["release"], point["fusion_weight"]) == (one.row.to_dict()["release"], one.row.fusion_weight)
        assert point["loss"] == pytest.approx(as_loss(2.0, one.row.cost), rel=1e-5)
        assert point["loss_left"] == pytest.approx(as_loss(2.0, one.row.budget_left), rel=1e-5)


@pytest.mark.parametrize("features, longest", [("ball", 1), ("box", 2)])
def test_with_individual_accounts_the_loss_is_the_largest_possible_for_a_sensor(tmp_path, features, longest):
    design = make_design("individual", features=features, spread=0.3, horizon=None)
    with rig(tmp_path, design) as live, serving(live.app) as address:
        [one] = live.tick()
        with following(address, path="feed") as lines:
            _, point = events(lines, 2)
    assert "loss_left" not in point
    assert point["loss"] == pytest.approx(2.0 * longest * (one.row.fusion_weight / GRID) ** 2 / 2, rel=1e-5)


def test_a_page_that_reconnects_continues_after_its_last_point(tmp_path):
    with rig(tmp_path) as live, serving(live.app) as address:
        for _ in range(5):
            live.tick()
        for options in ({"params": {"start": 4}}, {"headers": {"Last-Event-ID": "3"}}):
            with following(address, path="feed", **options) as lines:
                assert [event["step"] for event in events(lines, 3)[1:]] == [4, 5]


def test_the_feed_goes_back_a_limited_number_of_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(feed_module, "HISTORY_S", 0.6)
    with rig(tmp_path) as live, serving(live.app) as address:
        for _ in range(6):
            live.tick()
        with following(address, path="feed") as lines:
            assert [event["step"] for event in events(lines, 4)[1:]] == [4, 5, 6]


def test_the_status_is_sent_every_second_and_when_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(feed_module, "STATUS_EVERY_S", 0.05)
    with rig(tmp_path) as live, serving(live.app) as address, following(address, path="feed") as lines:
        assert [event["status"] for event in events(lines, 3)] == ["running"] * 3
        live.watch.status = "over"
        wait_for(lambda: events(lines, 1)[0]["status"] == "over")  # after those that were sent before


def test_in_a_replay_a_point_also_holds_truth_error_latency_and_reports(tmp_path):
    with rig(tmp_path, replay=True) as live, serving(live.app) as address:
        truth = {"stream": "main", "step": 1, "state": [3.25]}
        live.call("POST", "/v1/replay/truth", json=truth)
        live.send(live.report(1), live.report(2))
        [one] = live.tick()
        live.tick()
        with following(address, path="feed") as lines:
            _, known, unknown = events(lines, 3)
    assert known["truth"] == [3.25]
    assert known["error"] == pytest.approx([one.mean[0] - 3.25], rel=1e-4)
    assert (known["reports"], known["latency_ms"]) == (2, 1.0)
    assert (unknown["truth"], unknown["error"], unknown["reports"]) == (None, None, 0)


def test_the_feed_of_an_unknown_stream_is_not_found(tmp_path):
    with rig(tmp_path) as live:
        answer = live.get("/v1/streams/nowhere/feed")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
