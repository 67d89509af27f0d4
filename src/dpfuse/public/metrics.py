"""`/healthz` and `/metrics`: functions of releases, of the clock and of public settings alone.

There are no metrics of the process. Time, memory and the number of messages vary with how many sensors there are, and
who is there is private. How many people look at the page is nobody's business either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from dpfuse._extras import requires_extra
from dpfuse.privacy.budget import GRID, as_loss
from dpfuse.public.openapi import answers

with requires_extra("live", "GET /metrics"):
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from dpfuse.public.feed import Feed

STATES = ("running", "over", "failed", "stopped")
# Steps that may be missing before a centre counts as late, and the least time that they must stand for.
_LATE_STEPS, _LATE_S = 5, 2.0

HEALTH = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "late", "over", "failed", "stopped"]},
        "state": {"enum": list(STATES)},
        "step": {"type": "integer", "description": "the last one released, of the slowest stream"},
        "steps_behind": {"type": "integer", "description": "that should have been released since, by the clock"},
    },
    "required": ["status", "state", "step", "steps_behind"],
}

Clock = Callable[[], Mapping[str, Any]]


def metrics_router(feed: Feed, clock: Clock) -> APIRouter:
    """`GET /healthz` and `GET /metrics`.

    Args:
        clock: the ticker's, public.
    """
    router = APIRouter()
    registry = CollectorRegistry()
    registry.register(Collector(feed))

    described = answers(200, HEALTH)
    described[503] = described[200] | {"description": "releases do not come out by the clock, or no more"}

    @router.get("/healthz", responses=described, tags=["facts"])
    async def get_health() -> Response:
        """Whether releases come out by the clock; 503 if not."""
        health = health_of(feed, clock())
        is_well = health["status"] in ("ok", "over")
        return Response(json.dumps(health), 200 if is_well else 503, media_type="application/json")

    @router.get("/metrics", responses=answers(200, "text/plain"), tags=["facts"])
    async def get_metrics() -> Response:
        """The last release of every stream, for Prometheus."""
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def health_of(feed: Feed, clock: Mapping[str, Any]) -> dict[str, Any]:
    """How the centre is, and by how many steps the slowest stream is behind the clock."""
    last = min(feed.hub.last_step(stream) for stream in feed.hub.streams)
    num_behind = max(0, clock["step"] - 1 - last)
    allowed = max(_LATE_STEPS, _LATE_S / feed.interval_s)
    status = feed.state
    if status == "running":
        status = "ok" if num_behind <= allowed else "late"
    return {"status": status, "state": feed.state, "step": last, "steps_behind": num_behind}


class Collector:
    """The metrics, made anew from the feed each time they are asked for."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """All of them, in a fixed order."""
        yield from self._settings()
        yield from self._streams()

    def _settings(self) -> Iterator[Metric]:
        feed = self._feed
        about = {"version": version("dpfuse"), "design": feed.fingerprint}
        yield InfoMetricFamily("dpfuse_build", "The version and the design that runs", value=about)
        states = GaugeMetricFamily("dpfuse_ticker_state", "1 for what the clock of the centre does", labels=["state"])
        for state in STATES:
            states.add_metric([state], state == feed.state)
        yield states
        yield _gauge("dpfuse_interval_seconds", "Time between releases", feed.interval_s)
        yield _gauge("dpfuse_order", "The Rényi order of the guarantee", feed.guarantee.order)
        yield _gauge("dpfuse_budget", "The Rényi budget of the guarantee", feed.guarantee.budget)

    def _streams(self) -> Iterator[Metric]:
        feed, labels = self._feed, ["stream"]
        step = GaugeMetricFamily("dpfuse_step", "The last step released", labels=labels)
        released = CounterMetricFamily("dpfuse_releases", "Releases of this process", labels=labels)
        skipped = CounterMetricFamily("dpfuse_skipped_steps", "Steps without a release", labels=labels)
        weight = GaugeMetricFamily("dpfuse_fusion_weight", "In standard deviations of noise", labels=labels)
        loss = GaugeMetricFamily(
            "dpfuse_loss", "Rényi loss of the last step; individual: the most a sensor could pay", labels=labels
        )
        left = GaugeMetricFamily("dpfuse_budget_left", "Rényi budget left to the stream", labels=labels)
        mean = GaugeMetricFamily("dpfuse_estimate", "The state as estimated", labels=[*labels, "coordinate"])
        std = GaugeMetricFamily("dpfuse_estimate_std", "Its standard deviation", labels=[*labels, "coordinate"])
        for stream in feed.hub.streams:
            num_released, num_skipped = feed.counts(stream)
            step.add_metric([stream], feed.hub.last_step(stream))
            released.add_metric([stream], num_released)
            skipped.add_metric([stream], num_skipped)
            latest = feed.latest(stream)
            if latest is None:
                continue
            weight.add_metric([stream], latest.row.fusion_weight / GRID)
            loss.add_metric([stream], feed.loss(latest))
            if latest.row.budget_left is not None:
                left.add_metric([stream], as_loss(feed.guarantee.order, latest.row.budget_left))
            for coordinate, (one_mean, one_std) in enumerate(zip(latest.mean, latest.std, strict=True), 1):
                mean.add_metric([stream, str(coordinate)], one_mean)
                std.add_metric([stream, str(coordinate)], one_std)
        yield from (step, released, skipped, weight, loss)
        if feed.guarantee.accounting == "total":
            yield left
        yield from (mean, std)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
