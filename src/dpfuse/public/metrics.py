"""`/healthz`, `/livez`, `/readyz` and `/metrics`: functions of releases, the clock and public settings alone.

There are no metrics of the process: time, memory and the number of messages depend on the sensors, and which sensors
report is private. The number of visitors of the page is not shown either. The operator's own port has these, see
`dpfuse.wire.operator_port`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import APIRouter, Response

from dpfuse._extras import requires_extra
from dpfuse.privacy.budget import as_loss
from dpfuse.public.hub import num_in_memory
from dpfuse.public.openapi import answers
from dpfuse.public.settings import split_label
from dpfuse.public.status import STATUSES
from dpfuse.public_inputs import unpack

with requires_extra("live", "GET /metrics"):
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
    from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from dpfuse.public.feed import Feed

# A centre is late if more than a tenth of the last so many steps, or seconds of steps if these are more, are missing.
# Of few steps in memory three may be.
_RECENT_STEPS, _RECENT_S, _MISSING_SHARE, _FEW = 50, 20.0, 0.1, 3

HEALTH = {
    "type": "object",
    "properties": {
        "health": {"enum": ["ok", "late", *(status for status in STATUSES if status != "running")]},
        "status": {"enum": list(STATUSES)},
        "step": {"type": "integer", "description": "the last released step of the slowest stream"},
        "steps_behind": {"type": "integer", "description": "steps that, by the clock, should have been released since"},
        "steps_missing": {"type": "integer", "description": "recent steps without a release, of the worst stream"},
    },
    "required": ["health", "status", "step", "steps_behind", "steps_missing"],
}

Clock = Callable[[], Mapping[str, Any]]


def metrics_router(feed: Feed, clock: Clock) -> APIRouter:
    """`GET /healthz`, `/livez`, `/readyz` and `/metrics`.

    Args:
        clock: returns the ticker's clock, which is public.
    """
    router = APIRouter()
    registry = CollectorRegistry()
    registry.register(Collector(feed))

    described = answers(200, HEALTH)
    described[503] = described[200] | {"description": "releases are late, or have stopped"}

    @router.get("/healthz", responses=described, tags=["facts"])
    @router.get("/readyz", responses=described, tags=["facts"])
    async def get_health() -> Response:
        """Whether releases are on time; 503 if not."""
        health = health_of(feed, clock())
        return Response(json.dumps(health), 200 if is_healthy(health) else 503, media_type="application/json")

    @router.get("/livez", responses=answers(200, {"type": "object"}), tags=["facts"])
    async def get_liveness() -> Response:
        """Whether this process answers, whatever the centre does; a supervisor restarts it if not."""
        return Response("{}", media_type="application/json")

    @router.get("/metrics", responses=answers(200, "text/plain"), tags=["facts"])
    async def get_metrics() -> Response:
        """The last release of every stream, for Prometheus."""
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return router


def health_of(feed: Feed, clock: Mapping[str, Any]) -> dict[str, Any]:
    """The centre's health, and the numbers of steps that its streams lack, by the clock; public.

    A tenth of the recent steps may be missing, whether they were skipped one by one or have all yet to come.
    """
    hub, ended = feed.hub, clock["step"]
    num_recent = max(_RECENT_STEPS, math.ceil(_RECENT_S / feed.settings.interval_s))
    num_recent = min(num_recent, num_in_memory(len(hub.streams)))
    last = min(map(hub.last_step, hub.streams))
    since = max(ended - num_recent, feed.first_step)
    num_missing = max(hub.num_missing(stream, since, ended) for stream in hub.streams)
    status = health = feed.status
    if status == "running":
        health = "ok" if num_missing <= max(_FEW, _MISSING_SHARE * num_recent) else "late"
    num_behind = max(0, ended - 1 - last)
    return {"health": health, "status": status, "step": last, "steps_behind": num_behind, "steps_missing": num_missing}


def is_healthy(health: Mapping[str, Any]) -> bool:
    """Whether that health is good: releases are on time, or a finite design has made its last one."""
    return health["health"] in ("ok", "over")


class Collector:
    """Makes the metrics from the feed at each request."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """All metrics, in a fixed order."""
        yield from self._settings()
        yield from self._labels()
        yield from self._parts()
        yield from self._streams()

    def _settings(self) -> Iterator[Metric]:
        feed = self._feed
        about = {"version": version("dpfuse"), "design": feed.settings.fingerprint}
        yield InfoMetricFamily("dpfuse_build", "The version of dpfuse and the design", value=about)
        statuses = GaugeMetricFamily("dpfuse_ticker_status", "1 for the ticker's status, else 0", labels=["status"])
        for status in STATUSES:
            statuses.add_metric([status], status == feed.status)
        yield statuses
        yield _gauge("dpfuse_interval_seconds", "Seconds between releases", feed.settings.interval_s)
        yield _gauge("dpfuse_order", "The Rényi order of the guarantee", feed.guarantee.order)
        yield _gauge("dpfuse_budget", "The Rényi budget of the guarantee", feed.guarantee.budget)

    def _labels(self) -> Iterator[Metric]:
        """Names and units of the design's coordinates, channels and public inputs."""
        settings = self._feed.settings
        coordinate = GaugeMetricFamily(
            "dpfuse_coordinate_info",
            "Name and unit of a coordinate of the state",
            labels=["coordinate", "name", "unit"],
        )
        for number, label in enumerate(settings.labels, 1):
            coordinate.add_metric([str(number), *split_label(label)], 1)
        channel = GaugeMetricFamily(
            "dpfuse_channel_info", "Name and unit of a channel of a measurement", labels=["channel", "name", "unit"]
        )
        for number, label in enumerate(settings.channel_labels, 1):
            channel.add_metric([str(number), *split_label(label)], 1)
        yield from (coordinate, channel)
        if settings.inputs:
            given = GaugeMetricFamily(
                "dpfuse_input_info", "Name and unit of a public input", labels=["input", "name", "unit"]
            )
            for number, label in enumerate(settings.input_labels, 1):
                given.add_metric([str(number), *split_label(label)], 1)
            yield given

    def _parts(self) -> Iterator[Metric]:
        """Only the parts that the centre has."""
        parts = self._feed.parts
        yield _gauge(
            "dpfuse_ledger_up", "1 if the ledger takes commits", parts.ledger and self._feed.status != "failed"
        )
        if parts.bank is not None:
            yield _gauge("dpfuse_bank_up", "1 if the bank has answered within its patience", parts.bank)
        if parts.epoch_age_s is not None:
            yield _gauge("dpfuse_bank_epoch_age_seconds", "Seconds since the bank answered", parts.epoch_age_s)
        if parts.epoch_s is not None:
            yield _gauge("dpfuse_bank_epoch_seconds", "Seconds between boundaries of the bank", parts.epoch_s)
        if parts.broker is not None:
            yield _gauge("dpfuse_broker_connected", "1 if the broker is connected", parts.broker)

    def _streams(self) -> Iterator[Metric]:
        feed, labels = self._feed, ["stream"]
        step = GaugeMetricFamily("dpfuse_step", "The last released step", labels=labels)
        released = CounterMetricFamily("dpfuse_releases", "Releases by this process", labels=labels)
        skipped = CounterMetricFamily("dpfuse_skipped_steps", "Steps that this process skipped", labels=labels)
        size = CounterMetricFamily("dpfuse_release_bytes", "Bytes of the messages of these releases", labels=labels)
        moment = GaugeMetricFamily(
            "dpfuse_last_release_timestamp_seconds", "Wall-clock time of the last release", labels=labels
        )
        weight = GaugeMetricFamily("dpfuse_fusion_weight", "Of the last step, in grid steps", labels=labels)
        loss = GaugeMetricFamily(
            "dpfuse_loss", "Rényi loss of the last step; with individual accounts, the largest possible", labels=labels
        )
        left = GaugeMetricFamily("dpfuse_loss_left", "Rényi loss that the stream may still spend", labels=labels)
        mean = GaugeMetricFamily("dpfuse_estimate", "Mean of the estimated state", labels=[*labels, "coordinate"])
        std = GaugeMetricFamily("dpfuse_estimate_std", "Its standard deviation", labels=[*labels, "coordinate"])
        for stream in feed.hub.streams:
            num_released, num_skipped = feed.counts(stream)
            step.add_metric([stream], feed.hub.last_step(stream))
            released.add_metric([stream], num_released)
            skipped.add_metric([stream], num_skipped)
            latest = feed.latest(stream)
            if latest is None:
                continue
            size.add_metric([stream], num_released * self._width(stream))
            if (at_s := feed.time_of(latest.row.step)) is not None:
                moment.add_metric([stream], at_s)
            weight.add_metric([stream], latest.row.fusion_weight)
            loss.add_metric([stream], feed.loss(latest))
            if latest.row.budget_left is not None:
                left.add_metric([stream], as_loss(feed.guarantee.order, latest.row.budget_left))
            for coordinate, (one_mean, one_std) in enumerate(zip(latest.mean, latest.std, strict=True), 1):
                mean.add_metric([stream, str(coordinate)], one_mean)
                std.add_metric([stream, str(coordinate)], one_std)
        yield from (step, released, skipped, size, moment, weight, loss)
        if feed.guarantee.accounting == "total":
            yield left
        yield from (mean, std)
        if feed.settings.inputs:
            yield from self._inputs()

    def _inputs(self) -> Iterator[Metric]:
        """The public inputs of the last row, which are null and oldest before the first value."""
        labels = ["stream", "input"]
        value = GaugeMetricFamily("dpfuse_input", "Public input that E reads with the last release", labels=labels)
        age = GaugeMetricFamily("dpfuse_input_age_steps", "Steps since its last value", labels=labels)
        for stream in self._feed.hub.streams:
            latest = self._feed.latest(stream)
            if latest is None or latest.row.inputs is None:
                continue
            values, ages = np.split(unpack(latest.row.inputs), 2)
            for number, (own_value, own_age) in enumerate(zip(values.tolist(), ages.tolist(), strict=True), 1):
                value.add_metric([stream, str(number)], own_value)
                age.add_metric([stream, str(number)], own_age)
        yield from (value, age)

    def _width(self, stream: str) -> int:
        """Bytes of a release message: they all have one width."""
        hub = self._feed.hub
        return next((len(message.content) for _, message in hub.recent_messages(stream, hub.last_step(stream))), 0)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
